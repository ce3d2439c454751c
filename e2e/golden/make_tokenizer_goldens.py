#!/usr/bin/env python3
"""Writes the tokens that transformers gives our texts with the tokenizer of the default model.

    pip install transformers gguf
    python e2e/golden/make_tokenizer_goldens.py FOLDER SmolLM2-135M-Instruct.Q4_1.gguf

The texts are ours (tokenizer_texts.json); the vocabulary isn't committed, only the ids (smollm2_tokens.json).

transformers builds a tokenizer from the GGUF's vocabulary but drops its pre-tokenizer's digit rule, so that rule of the
model's own tokenizer.json (every digit alone, then GPT-2's pattern) is put back here.
"""

import json
import pathlib
import sys

from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

HERE = pathlib.Path(__file__).parent


def main():
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], gguf_file=sys.argv[2])
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    texts = json.loads((HERE / "tokenizer_texts.json").read_text())
    goldens = {
        name: {
            "tokens": backend.encode(text, add_special_tokens=False).ids,
            "decoded_without_special": backend.decode(backend.encode(text, add_special_tokens=False).ids),
        }
        for name, text in texts.items()
    }
    lines = [f" {json.dumps(name)}: {json.dumps(golden)}" for name, golden in goldens.items()]
    (HERE / "smollm2_tokens.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(goldens)} texts")


if __name__ == "__main__":
    main()
