#!/usr/bin/env python3
"""Renders conversations with transformers' own template machinery and writes digests of the results.

    pip install transformers jinja2
    python e2e/golden/make_template_goldens.py TEMPLATES_FOLDER

TEMPLATES_FOLDER holds published chat templates (*.jinja). They belong to their authors, so only SHA-256 digests of the
renderings are written, to template_goldens.json beside this file; the conversations are ours (template_cases.json).
`engine/text/tests/template_goldens.rs` renders the same with our library and compares.

A golden is one of
  {"text": digest of the rendering}
  {"refused": digest of the message that the template passed to raise_exception}
  {"error": true}   the template failed in some other way
"""

import datetime
import hashlib
import json
import pathlib
import sys

import jinja2
from transformers.utils import chat_template_utils as utils

HERE = pathlib.Path(__file__).parent


class FixedClock(datetime.datetime):
    """The time that templates see; template_cases.json gives it in seconds since 1970."""

    seconds = 0

    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(cls.seconds, datetime.timezone.utc).replace(tzinfo=None)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def render(template: str, case: dict, special_tokens: dict):
    arguments = dict(special_tokens)
    arguments.update(case.get("template_kwargs", {}))
    try:
        messages = utils._normalize_chat_messages(case["messages"])
        rendered, _ = utils.render_jinja_template(
            conversations=[messages],
            tools=case.get("tools"),
            documents=case.get("documents"),
            chat_template=template,
            add_generation_prompt=case.get("add_generation_prompt", False),
            continue_final_message=case.get("continue_final_message", False),
            **arguments,
        )
        return {"text": rendered[0]}
    except jinja2.exceptions.UndefinedError:
        return {"error": True}
    except jinja2.exceptions.SecurityError:
        return {"error": True}
    except jinja2.exceptions.TemplateError as error:
        # raise_exception raises the base class itself.
        return {"refused": str(error)} if type(error) is jinja2.exceptions.TemplateError else {"error": True}
    except Exception:
        return {"error": True}


def main():
    folder = pathlib.Path(sys.argv[1])
    cases = json.loads((HERE / "template_cases.json").read_text())
    FixedClock.seconds = cases["now"]
    utils.datetime = FixedClock
    goldens = {}
    for path in sorted(folder.glob("*.jinja")):
        template = path.read_text()
        results = {}
        for name, case in cases["cases"].items():
            result = render(template, case, cases["special_tokens"])
            if len(sys.argv) > 2:
                out = pathlib.Path(sys.argv[2]) / path.stem
                out.mkdir(parents=True, exist_ok=True)
                (out / name).write_text(json.dumps(result, ensure_ascii=False))
            results[name] = {key: digest(value) if value is not True else True for key, value in result.items()}
        goldens[path.name] = results
    text = json.dumps(goldens, indent=1, sort_keys=True) + "\n"
    (HERE / "template_goldens.json").write_text(text)
    print(f"{len(goldens)} templates, {len(cases['cases'])} cases each")


if __name__ == "__main__":
    main()
