"""Two RuvLLM servers behind Dynamo's own frontend, as it is published."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import httpx
import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests/clients"))
from test_routers import CHATS, LONG, QUESTION, Worker, asked, free_port  # noqa: E402

# As on a machine that many share.
PATIENCE_S = 600


def until(what, is_so):
    end = time.time() + PATIENCE_S
    while not is_so():
        assert time.time() < end, what
        time.sleep(0.2)


class Pair:
    """A server, and the program that makes it a worker of Dynamo."""

    def __init__(self, folder, number, environment):
        arguments = ["--kv-events", "127.0.0.1:0", "--kv-events-replay", "127.0.0.1:0", "--memory-folder", str(folder / f"memory-{number}")]
        # With paths of their own, one of them was left out.
        self.server = Worker(folder, number, arguments=arguments, tokenizer=str(folder / "tokenizer"))
        self.environment, self.folder, self.number, self.sidecar = environment, folder, number, None

    def connect(self):
        self.server.wait()
        self.server.log.seek(0)
        events, again = re.findall(r"^KV events (?:once more )?on (\S+)$", self.server.log.read(), re.MULTILINE)
        self.log = open(self.folder / f"sidecar-{self.number}.log", "w+")
        command = [sys.executable, HERE / "ruvllm_worker.py", "--server", self.server.grpc.removeprefix("grpc://")]
        command += ["--kv-events", events, "--kv-events-replay", again]
        self.sidecar = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=self.environment)
        return self

    def load(self):
        return httpx.get(f"{self.server.url}/get_load", timeout=60).json()[0]["num_reqs"]

    def served(self):
        """The number of answers that the server has begun."""
        text = httpx.get(f"{self.server.url}/metrics", timeout=60).text
        return sum(float(value) for value in re.findall(r'^vllm:request_success_total\{[^}]*\} (\S+)$', text, re.MULTILINE))

    def end(self):
        for process in filter(None, (self.sidecar, self.server.process)):
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    store = str(tmp_path_factory.mktemp("store"))
    return os.environ | {"DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": store, "DYN_EVENT_PLANE": "zmq", "DYN_TCP_RPC_HOST": "127.0.0.1"}


@pytest.fixture(scope="module")
def pairs(environment, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    pairs = []
    try:
        for number in range(2):
            pairs.append(Pair(folder, number, environment))
            pairs[-1].connect()
        yield pairs
    finally:
        for pair in pairs:
            pair.end()


@pytest.fixture(scope="module")
def url(pairs, environment, tmp_path_factory):
    port = free_port()
    log = open(tmp_path_factory.mktemp("frontend") / "log", "w+")
    command = [sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port), "--router-mode", "kv"]
    frontend = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    url = f"http://127.0.0.1:{port}"

    def is_there():
        log.seek(0)
        assert frontend.poll() is None, log.read()
        with contextlib.suppress(httpx.HTTPError):
            instances = httpx.get(f"{url}/health", timeout=60).json().get("instances", [])
            return sum(one["endpoint"] == "generate" for one in instances) == len(pairs) and is_answered(url)

    try:
        until("the frontend serves", is_there)
        yield url
    finally:
        frontend.send_signal(signal.SIGKILL)
        frontend.wait()


def is_answered(url):
    body = {"model": "smollm2", "messages": QUESTION, "max_tokens": 1}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE_S).status_code == 200


def said(answer):
    return [(choice.message.content, choice.finish_reason) for choice in answer.choices]


@pytest.mark.parametrize("name", ["plain", "stopped", "schema", "conversation"])
def test_answers_are_those_of_the_server(name, pairs, url):
    assert said(asked(url, CHATS[name])) == said(asked(pairs[0].server.url, CHATS[name]))


def test_probabilities_are_those_of_the_server(pairs, url):
    def likely(at):
        content = asked(at, CHATS["probabilities"]).choices[0].logprobs.content
        return [(one.logprob, [top.logprob for top in one.top_logprobs]) for one in content]

    for through, direct in zip(likely(url), likely(pairs[0].server.url), strict=True):
        assert through[0] == pytest.approx(direct[0], abs=1e-4) and through[1] == pytest.approx(direct[1], abs=1e-4)


def test_chunks_are_those_of_the_server(pairs, url):
    def text(at):
        chunks = asked(at, {"messages": QUESTION, "stream": True, "max_completion_tokens": 24})
        return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)

    assert text(url) == text(pairs[0].server.url) != ""


def test_an_answer_that_nobody_reads_ends(pairs, url):
    body = {"model": "smollm2", "messages": LONG, "max_tokens": 1500, "temperature": 0.9, "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=PATIENCE_S) as answer:
        lines = answer.iter_lines()
        assert next(lines)
        until("it runs", lambda: sum(pair.load() for pair in pairs) == 1)
    until("it has ended", lambda: sum(pair.load() for pair in pairs) == 0)


def test_what_cannot_be_done_is_told(url):
    body = {"model": "smollm2", "messages": QUESTION, "max_tokens": 1}
    refused = httpx.post(f"{url}/v1/chat/completions", json=body | {"nvext": {"guided_regex": "["}}, timeout=PATIENCE_S)
    assert refused.status_code == 400 and "regex" in refused.text, refused.text


def test_prompts_go_where_their_beginning_is_cached(pairs, url):
    text = "In the beginning there was a fox, and a crow, and some cheese. " * 12
    before = [pair.served() for pair in pairs]
    for number in range(5):
        messages = [{"role": "user", "content": f"{text} {number}"}]
        usage = asked(url, {"messages": messages, "max_completion_tokens": 2}).usage
        if number:
            assert usage.prompt_tokens_details.cached_tokens > usage.prompt_tokens * 0.8
        # What was cached is told a moment later.
        time.sleep(1)
    assert sorted(pair.served() - then for pair, then in zip(pairs, before, strict=True)) == [0, 5]
    # Not by chance: the router knew how much of each prompt the other four would find.
    metrics = httpx.get(f"{url}/metrics", timeout=60).text
    known = re.findall(r"^dynamo_component_router_kv_hit_rate_sum\{[^}]*\} (\S+)$", metrics, re.MULTILINE)
    assert sum(map(float, known)) > 4 * 0.8, metrics


def test_a_server_that_drains_leaves(pairs, url):
    """The last one: it ends one of them."""
    assert pairs[0].server.end() == 0
    assert pairs[0].sidecar.wait(timeout=PATIENCE_S) == 0
    assert all(is_answered(url) for _ in range(4))
