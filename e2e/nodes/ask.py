"""Inside of a pod: asks a gateway with the OpenAI client.

    ask.py URL AUTHORITY [KEY]
"""

import base64
import json
import ssl
import sys
import time

sys.path.insert(0, "/packages")
import openai  # noqa: E402


def connect(url, authority, key="none"):
    context = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=120, http_client=openai.DefaultHttpxClient(verify=context))


def main(url, authority, key="none"):
    client = connect(url, authority, key)
    model = client.models.list().data[0].id
    begin = time.monotonic()
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    whole = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=20)
    took = time.monotonic() - begin
    chunks = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=20, stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    print(json.dumps({"model": model, "answer": whole.choices[0].message.content, "streamed": streamed, "seconds": took}))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except openai.APIStatusError as error:
        print(json.dumps({"status": error.status_code}))
