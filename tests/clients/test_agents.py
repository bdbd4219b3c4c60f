"""Claude Code and Codex, as people install them, against a live server.

Each runs with an empty environment, a home folder of its own, a dummy key, and knows only the server's address. A small model
does not call tools when it should; a proxy between agent and server asks for a call where the first question is answered.
"""

import json
import os
import pathlib
import subprocess
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

URL = os.environ.get("RUVLLM_TEST_URL", "http://127.0.0.1:8080")
MODEL = os.environ.get("RUVLLM_TEST_MODEL", "smollm2")
PROGRAMS = pathlib.Path(os.environ.get("RUVLLM_TEST_PROGRAMS", "target/clients/node_modules")).absolute()
# Long, as those of agents are, and the same every time.
SYSTEM = " ".join(f"Rule {i}: be brief and correct about topic {i}." for i in range(200))


class Proxy(ThreadingHTTPServer):
    """Passes everything on, except that `change` may change the body of a request. Keeps the bodies."""

    def __init__(self, change):
        super().__init__(("127.0.0.1", 0), Handler)
        self.change, self.bodies, self.statuses = change, [], []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if body:
            parsed = json.loads(body)
            self.server.change(parsed)
            self.server.bodies.append(parsed)
            body = json.dumps(parsed).encode()
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "content-length", "accept-encoding")}
        request = urllib.request.Request(URL + self.path, data=body or None, headers=headers, method=self.command)
        try:
            answer = urllib.request.urlopen(request, timeout=600)
        except urllib.error.HTTPError as error:
            answer = error
        self.server.statuses.append(answer.status)
        self.send_response(answer.status)
        for name in ("content-type", "x-ruvllm-ignored"):
            if answer.headers.get(name):
                self.send_header(name, answer.headers[name])
        self.end_headers()
        while chunk := answer.read1(65536):
            self.wfile.write(chunk)
            self.wfile.flush()

    do_GET = do_POST = do_HEAD = pass_on


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "work").mkdir()
    return tmp_path


def run(program, arguments, folder, variables):
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **variables}
    command = ["node", str(PROGRAMS / program), *arguments]
    done = subprocess.run(
        command, cwd=folder / "work", env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600
    )
    return done.returncode, done.stdout, done.stderr


def claude(folder, url, *arguments):
    variables = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "dummy",
        "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "40",
    }
    fixed = ["--output-format", "json", "--system-prompt", SYSTEM, "--tools", "Read"]
    code, out, err = run("@anthropic-ai/claude-code/cli-wrapper.cjs", [*arguments, *fixed], folder, variables)
    return code, json.loads(out) if out.startswith("{") else out + err


def codex(folder, url, *arguments, instructions="Be brief and correct."):
    settings = {
        "model": MODEL,
        "model_provider": "local",
        "model_providers.local.name": "local",
        "model_providers.local.base_url": f"{url}/v1",
        "model_providers.local.wire_api": "responses",
        "model_providers.local.env_key": "DUMMY_KEY",
        "model_providers.local.request_max_retries": 0,
        "model_providers.local.stream_max_retries": 0,
    }
    # Its own have 4,000 tokens, and its tools as many: together as much as the context of a small model.
    (folder / "instructions.md").write_text(instructions)
    settings["model_instructions_file"] = str(folder / "instructions.md")
    options = [option for name, value in settings.items() for option in ("-c", f"{name}={json.dumps(value)}")]
    code, out, err = run(
        "@openai/codex/bin/codex.js", ["exec", *arguments, *options, "--skip-git-repo-check", "--json"], folder, {"DUMMY_KEY": "x"}
    )
    events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return code, events, out + err


def say_hello(body):
    """Has the model say hello and no more, which a small one would not do by itself."""
    schema = {"type": "json_schema", "schema": {"enum": ["Hello."]}}
    if "messages" in body:
        body["tool_choice"] = {"type": "none"}
        body["output_config"] = {**body.get("output_config", {}), "format": schema}
    elif "input" in body:
        body["tool_choice"] = "none"
        body["text"] = {"format": {**schema, "name": "hello"}}


def test_claude_code_answers_and_the_second_turn_is_cached(folder):
    proxy = Proxy(say_hello)
    for arguments in [["-p", "Say hello."], ["-p", "Say it again.", "--continue"]]:
        code, second = claude(folder, proxy.url, *arguments)
        assert code == 0 and second["is_error"] is False and "Hello." in second["result"], second
    usage = second["usage"]
    prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert usage["cache_read_input_tokens"] >= 0.95 * prompt, usage


def test_claude_code_calls_a_tool_and_reads_its_result(folder):
    def call_first(body):
        if body.get("tools") and "tool_result" not in json.dumps(body["messages"]):
            body["tool_choice"] = {"type": "tool", "name": "Read"}

    proxy = Proxy(call_first)
    code, answer = claude(folder, proxy.url, "-p", "Read the file notes.txt.", "--max-turns", "3")
    assert isinstance(answer, dict), answer
    history = [json.dumps(body["messages"]) for body in proxy.bodies if "messages" in body]
    assert any('"tool_use"' in messages and '"tool_result"' in messages for messages in history), answer
    assert set(proxy.statuses) == {200}


def test_claude_code_understands_an_overflow(folder):
    (folder / "long.txt").write_text("fox " * 40_000)
    code, answer = claude(folder, URL, "-p", (folder / "long.txt").read_text()[:100_000])
    assert code != 0 and "too long" in json.dumps(answer).lower(), answer


def test_codex_answers_and_the_second_turn_is_cached(folder):
    proxy = Proxy(say_hello)
    usages = []
    for arguments in [["Say hello."], ["resume", "--last", "Say it again."]]:
        code, events, said = codex(folder, proxy.url, *arguments, instructions=SYSTEM)
        assert code == 0, said
        usages += [event["usage"] for event in events if event.get("type") == "turn.completed"]
    # What it reports is of the whole conversation.
    prompt, cached = (usages[1][name] - usages[0][name] for name in ("input_tokens", "cached_input_tokens"))
    assert cached >= 0.95 * prompt, usages
    assert set(proxy.statuses) == {200}


def test_codex_calls_a_tool_and_reads_its_result(folder):
    def call_first(body):
        if "function_call_output" not in json.dumps(body["input"]):
            body["tool_choice"] = {"type": "function", "name": "get_goal"}

    proxy = Proxy(call_first)
    code, events, said = codex(folder, proxy.url, "What is the goal?")
    assert any("function_call_output" in json.dumps(body["input"]) for body in proxy.bodies), said
    assert set(proxy.statuses) == {200}


def test_codex_understands_an_overflow(folder):
    code, _, said = codex(folder, URL, "fox " * 20_000)
    assert code != 0 and ("context window" in said.lower() or "context_length_exceeded" in said), said[-3000:]
