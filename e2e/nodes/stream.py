"""Inside of a pod: streams of a given length, all at once; then what became of them.

    stream.py URL AUTHORITY MODEL TOKENS CLIENTS WORDS
"""

import json
import sys
import threading

from ask import connect


class Streams:
    def __init__(self, clients):
        self.lock = threading.Lock()
        self.begun = threading.Barrier(clients + 1, timeout=240)
        self.finished, self.failures = 0, []

    def run(self, url, authority, model, tokens, words, number):
        first = True
        try:
            prompt = f"Client {number}: " + " ".join(f"{number * word}" for word in range(1, words + 1))
            stream = connect(url, authority).completions.create(
                model=model, prompt=prompt, max_tokens=tokens, temperature=0, stream=True, extra_body={"ignore_eos": True},
                stream_options={"include_usage": True})
            for chunk in stream:
                if first:
                    first = False
                    self.begun.wait()
                last = chunk
            failure = None if last.usage.completion_tokens == tokens else f"cut short: {last.usage.completion_tokens} tokens"
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        if first:
            self.begun.wait()
        with self.lock:
            if failure:
                self.failures.append(failure)
            else:
                self.finished += 1


def main(url, authority, model, tokens, clients, words):
    streams = Streams(int(clients))
    threads = [threading.Thread(target=streams.run, args=(url, authority, model, int(tokens), int(words), number)) for number in range(1, int(clients) + 1)]
    for thread in threads:
        thread.start()
    streams.begun.wait()
    print(json.dumps({"streaming": True}), flush=True)
    for thread in threads:
        thread.join()
    print(json.dumps({"finished": streams.finished, "failures": streams.failures}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
