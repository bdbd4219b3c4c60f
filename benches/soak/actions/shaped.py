"""Answers that must have a form, and whether they have it."""

import json
import re

from .generate import body

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "colour": {"enum": ["red", "green", "blue"]},
    },
    "required": ["name", "age", "colour"],
    "additionalProperties": False,
}
PATTERN = r"[0-9]{4}-[0-9]{2}-[0-9]{2} (rain|snow|sun)"


def json_schema(visit):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    answer = visit.ask("POST", "/v1/chat/completions", body(visit, response_format=form, max_completion_tokens=120))
    choice = answer.body["choices"][0] if answer else None
    if choice and choice["finish_reason"] == "stop" and not is_person(choice["message"]["content"]):
        visit.wrong(f"not what the schema says: {choice['message']['content']!r}")


def is_person(content):
    try:
        person = json.loads(content)
    except ValueError:
        return False
    return set(person) == {"name", "age", "colour"} and 0 <= person["age"] <= 120


def regex(visit):
    answer = visit.ask("POST", "/v1/chat/completions", body(visit, regex=PATTERN, max_completion_tokens=40))
    choice = answer.body["choices"][0] if answer else None
    if choice and choice["finish_reason"] == "stop" and not re.fullmatch(PATTERN, choice["message"]["content"]):
        visit.wrong(f"does not match: {choice['message']['content']!r}")


def tool_call(visit):
    tool = {"type": "function", "function": {"name": "register", "description": "Registers a person", "parameters": SCHEMA}}
    asked = body(visit, tools=[tool], tool_choice="required", max_completion_tokens=150, stream=visit.random.random() < 0.3)
    answer = visit.ask("POST", "/v1/chat/completions", asked)
    if answer is None or asked["stream"]:
        return
    choice = answer.body["choices"][0]
    if choice["finish_reason"] == "tool_calls":
        arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
        if not is_person(arguments):
            visit.wrong(f"arguments are not what the schema says: {arguments!r}")


ALL = [json_schema, regex, tool_call]
