"""Clients that stream without pause, until a line comes in; then what they counted.

    load.py URL AUTHORITY CLIENTS [KEY [MODEL [fresh]]]

An empty model is the first one. `fresh`: each request has a connection of its own.
"""

import json
import sys
import threading
import time

from ask import connect

TOKENS = 24


class Counts:
    def __init__(self):
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.first = threading.Event()
        self.finished = 0
        self.failures = []

    def run(self, url, authority, number, key, model, fresh):
        client = connect(url, authority, key)
        model = model or client.models.list().data[0].id
        asked = 0
        while not self.stop.is_set():
            asked += 1
            begin = time.time()
            try:
                if fresh:
                    client.close()
                    client = connect(url, authority, key)
                stream = client.completions.create(
                    model=model, prompt=f"Client {number} counts for the time number {asked}: one, two,", max_tokens=TOKENS, temperature=0,
                    stream=True, extra_body={"ignore_eos": True}, stream_options={"include_usage": True})
                reason, tokens = None, 0
                for chunk in stream:
                    self.first.set()
                    if chunk.choices and chunk.choices[0].finish_reason:
                        reason = chunk.choices[0].finish_reason
                    if chunk.usage:
                        tokens = chunk.usage.completion_tokens
                failure = None if (reason, tokens) == ("length", TOKENS) else f"cut short: {reason}, {tokens} tokens"
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
            with self.lock:
                if failure:
                    self.failures.append({"client": number, "at": begin, "after": time.time() - begin, "failure": failure})
                    time.sleep(0.1)
                else:
                    self.finished += 1


def main(url, authority, clients, key="none", model=None, how="kept"):
    counts = Counts()
    threads = [threading.Thread(target=counts.run, args=(url, authority, number, key, model, how == "fresh")) for number in range(int(clients))]
    for thread in threads:
        thread.start()
    print(json.dumps({"streaming": counts.first.wait(60)}), flush=True)
    sys.stdin.readline()
    counts.stop.set()
    for thread in threads:
        thread.join()
    print(json.dumps({"finished": counts.finished, "failures": counts.failures}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
