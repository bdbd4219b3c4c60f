"""Writes chat_templates.json: what transformers makes of published chat templates and of chat_conversations.json.
Fills in jinja.json: what it makes of small templates, each for one thing that a template may use.

Run once, outside of the tests, and again when conversations change:
    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install transformers jinja2
    /tmp/venv/bin/python tests/golden/chat_templates.py <folder with *.jinja> [--full <folder>]
transformers 5.23.0 and jinja2 3.1.6 were used, with the templates of llama-cpp-python 0.3.36 (tests/fetch.py).

A rendering is noted as its length in bytes and the beginning of its SHA-256; "refused" is where the template itself said no,
and "failed" where it ran into something else. `--full` writes the texts themselves, which a failing test compares with its own if RUVLLM_CHAT_RENDERINGS names their folder.
"""

import argparse
import datetime
import hashlib
import json
import os
import time
from pathlib import Path

import jinja2
import transformers
from transformers.utils import chat_template_utils

HERE = Path(__file__).parent
HASH_DIGITS = 16


def fix_time(unix_s):
    """Makes the templates' clock stand still, whatever the time zone."""
    os.environ["TZ"] = "UTC"
    time.tzset()

    class Fixed(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(1970, 1, 1) + datetime.timedelta(seconds=unix_s)

    chat_template_utils.datetime = Fixed


def digest(data):
    return hashlib.sha256(data).hexdigest()[:HASH_DIGITS]


def render(source, conversation, given):
    """Returns the text, or the error there was instead."""
    tools = given["tools"][conversation["tools"]] if "tools" in conversation else None
    tokens = {"bos_token": given["bos_token"], "eos_token": given["eos_token"]}
    try:
        texts, _ = chat_template_utils.render_jinja_template(
            [conversation["messages"]],
            tools=tools,
            chat_template=source,
            add_generation_prompt=conversation["add_generation_prompt"],
            **tokens,
            **conversation.get("variables", {}),
        )
    # Whatever a template runs into, a user sees that it does not take the conversation.
    except Exception as error:
        return None, error
    return texts[0], None


def noted(text, error):
    if error is not None:
        return "refused" if type(error) is jinja2.TemplateError else "failed"
    data = text.encode()
    return f"{len(data)} {digest(data)}"


def fill_in_small_templates(given):
    """Renders what jinja.json lists: templates, texts (null for refusals) and, where ours differ, why that is so."""
    path = HERE / "jinja.json"
    listed = json.loads(path.read_text())
    conversation = {**given["conversations"][0], "tools": "weather", "variables": listed["variables"]}
    entries = [[source, render(source, conversation, given)[0], *why] for source, _, *why in listed["templates"]]
    lines = ",\n".join("  " + json.dumps(entry, ensure_ascii=False) for entry in entries)
    variables = json.dumps(listed["variables"], ensure_ascii=False)
    path.write_text(f'{{\n "variables": {variables},\n "templates": [\n{lines}\n ]\n}}\n')


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("templates", type=Path)
    arguments.add_argument("--full", type=Path)
    arguments = arguments.parse_args()
    given = json.loads((HERE / "chat_conversations.json").read_text())
    fix_time(given["now_unix_s"])
    templates = {}
    for path in sorted(arguments.templates.glob("*.jinja")):
        # Line ends as they are in the file.
        source = path.read_bytes().decode()
        renderings = []
        for number, conversation in enumerate(given["conversations"]):
            text, error = render(source, conversation, given)
            renderings.append(noted(text, error))
            if arguments.full:
                folder = arguments.full / path.stem
                folder.mkdir(parents=True, exist_ok=True)
                kind, full = ("txt", text) if error is None else ("error", f"{type(error).__name__}: {error}")
                (folder / f"{number}.{kind}").write_bytes(full.encode())
        templates[path.name] = {"source": digest(source.encode()), "renderings": renderings}
    versions = {"transformers": transformers.__version__, "jinja2": jinja2.__version__}
    text = json.dumps({**versions, "templates": templates}, indent=1, ensure_ascii=False)
    (HERE / "chat_templates.json").write_text(text + "\n")
    fill_in_small_templates(given)


main()
