"""Inside of a pod: lists the models of a gateway with the OpenAI client and asks each of them.

    models.py URL AUTHORITY KEY
"""

import json
import sys

from ask import connect, openai


def answer(client, model):
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    try:
        whole = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=20)
    except openai.APIStatusError as error:
        return {"status": error.status_code}
    return {"model": whole.model, "answer": whole.choices[0].message.content}


def main(url, authority, key):
    client = connect(url, authority, key)
    print(json.dumps({model.id: answer(client, model.id) for model in client.models.list()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
