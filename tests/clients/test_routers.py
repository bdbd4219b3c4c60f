"""Workers behind the routers that exist: sglang-router and vllm-router, as they are published."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

import httpx
import openai
import pytest
from test_openai import PERSON, QUESTION, WEATHER

WORKERS = 2
WAYS = ["sglang", "sglang by gRPC", "vllm"]
ROUTERS = {
    "sglang": [sys.executable, "-m", "sglang_router.launch_router"],
    "vllm": [os.path.join(os.path.dirname(sys.executable), "vllm-router")],
}
CHATS = {
    "plain": {"messages": QUESTION},
    "sampled": {"messages": QUESTION, "temperature": 0.9, "top_p": 0.9, "seed": 7},
    "stopped": {"messages": QUESTION, "stop": ["\n", "and"]},
    "several": {"messages": QUESTION, "n": 2, "seed": 3, "temperature": 0.7},
    "probabilities": {"messages": QUESTION, "logprobs": True, "top_logprobs": 2},
    "schema": {
        "messages": [{"role": "user", "content": "Invent a person."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}},
        "max_completion_tokens": 60,
    },
    "tool": {
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "max_completion_tokens": 60,
    },
    "conversation": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            *QUESTION,
            {"role": "assistant", "content": "Red, green and blue."},
            {"role": "user", "content": "And a fourth?"},
        ]
    },
}

# Answered at length.
LONG = [{"role": "user", "content": "Tell me a long story about a fox and a crow."}]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Worker:
    """A server with one thread, as one of several on this machine."""

    def __init__(self, folder, number, model="smollm2", arguments=None, tokenizer=None, **environment):
        tokenizer = tokenizer or os.path.join(folder, f"tokenizer-{number}")
        self.log = open(os.path.join(folder, f"worker-{number}.log"), "w+")
        arguments = arguments or ["--memory-folder", os.path.join(folder, f"memory-{number}")]
        grpc = ["--grpc-port", "0", "--grpc-tokenizer", tokenizer]
        command = [os.environ["RUVLLM_BIN"], "serve", model, "--port", "0", "--threads", "1", "--context", "2048", *grpc, *arguments]
        self.process = subprocess.Popen(command, stderr=self.log, stdout=self.log, env=os.environ | environment)

    def wait(self):
        for _ in range(1200):
            self.log.seek(0)
            found = re.search(r"^gRPC on (\S+)\nlistening on (\S+)$", self.log.read(), re.MULTILINE)
            if found:
                self.grpc, self.url = f"grpc://{found[1]}", found[2]
                return self
            assert self.process.poll() is None, "the worker has ended"
            time.sleep(0.1)
        raise AssertionError("the worker does not start")

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.process.wait(timeout=120)


@contextlib.contextmanager
def workers(count):
    with tempfile.TemporaryDirectory() as folder:
        started = [Worker(folder, number) for number in range(count)]
        try:
            yield [worker.wait() for worker in started]
        finally:
            for worker in started:
                if worker.process.poll() is None:
                    worker.end(signal.SIGKILL)
                worker.log.close()


@contextlib.contextmanager
def router(kind, urls, policy="round_robin", **environment):
    port = free_port()
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", *urls, "--policy", policy, "--prometheus-port", str(free_port())]
    with tempfile.TemporaryFile("w+") as log:
        environment = os.environ | environment
        process = subprocess.Popen([*ROUTERS[kind], *arguments], stdout=log, stderr=log, start_new_session=True, env=environment)
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(600):
                log.seek(0)
                assert process.poll() is None, log.read()
                with contextlib.suppress(httpx.HTTPError):
                    if is_serving(url):
                        break
                time.sleep(0.2)
            else:
                log.seek(0)
                raise AssertionError(log.read())
            yield url
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def is_serving(url):
    body = {"model": "smollm2", "messages": QUESTION, "max_tokens": 1}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200


@pytest.fixture(scope="module")
def pair():
    with workers(WORKERS) as pair:
        yield pair


@pytest.fixture(scope="module", params=list(ROUTERS))
def routed(request, pair):
    with router(request.param, [worker.url for worker in pair]) as url:
        yield url


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    # sglang-router loads the vocabulary of OpenAI's models before it takes workers of gRPC; here from a package, which has it in another form.
    said = pathlib.Path(os.environ["RUVLLM_TEST_PROGRAMS"], "js-tiktoken/dist/ranks/o200k_base.cjs").read_text()
    lines = json.loads(said[said.index("{") : said.rindex("}") + 1])["bpe_ranks"].split("\n")
    folder = tmp_path_factory.mktemp("vocabulary")
    with open(folder / "o200k_base.tiktoken", "w") as file:
        for _, first, *tokens in (line.split(" ") for line in lines if line):
            file.writelines(f"{token} {rank}\n" for rank, token in enumerate(tokens, int(first)))
    return folder


@contextlib.contextmanager
def router_of(way, pair, vocabulary):
    """A router that reaches its workers over HTTP, or by gRPC."""
    kind, by_grpc = way.removesuffix(" by gRPC"), way.endswith(" by gRPC")
    environment = {"TIKTOKEN_ENCODINGS_BASE": str(vocabulary)} if by_grpc else {}
    with router(kind, [worker.grpc if by_grpc else worker.url for worker in pair], **environment) as url:
        yield url


@pytest.fixture(scope="module")
def routed_by_grpc(pair, vocabulary):
    with router_of("sglang by gRPC", pair, vocabulary) as url:
        yield url


def client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=300)


def essence(said):
    """What does not depend on when and where an answer was made."""
    if isinstance(said, dict):
        left_out = ("id", "created", "timings", "usage", "system_fingerprint")
        return {name: essence(value) for name, value in said.items() if name not in left_out and value is not None}
    return [essence(value) for value in said] if isinstance(said, list) else said


def asked(url, fields):
    body = {"model": "smollm2", "max_completion_tokens": 16, "temperature": 0} | fields
    return client(url).chat.completions.create(**body)


@pytest.mark.parametrize("name", CHATS)
def test_answers_are_those_of_the_worker(name, pair, routed):
    direct = asked(pair[0].url, CHATS[name]).to_dict()
    # Each of the workers, in turn.
    for _ in range(WORKERS):
        assert essence(asked(routed, CHATS[name]).to_dict()) == essence(direct)


def test_chunks_are_those_of_the_worker(pair, routed):
    def text(url):
        chunks = asked(url, {"messages": QUESTION, "stream": True, "max_completion_tokens": 24})
        return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)

    assert text(routed) == text(pair[0].url) != ""


def test_texts_are_continued(pair, routed):
    fields = {"model": "smollm2", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    direct, through = (client(url).completions.create(**fields).choices[0].text for url in (pair[0].url, routed))
    assert through == direct


def test_the_model_is_known_by_its_name(routed):
    listed = httpx.get(f"{routed}/v1/models", timeout=60).raise_for_status().json()["data"]
    assert "smollm2" in [card["id"] for card in listed]


def test_errors_come_through(routed):
    refused = httpx.post(f"{routed}/v1/chat/completions", json={"model": "smollm2", "messages": QUESTION, "temperature": "hot"}, timeout=60)
    # One router checks the types itself.
    assert refused.status_code in (400, 422) and "temperature" in refused.text or refused.status_code == 422


def said_by_a_router(answer):
    """What the router makes of tokens; fields that only one of the two has are left out."""
    said = essence(answer.to_dict())
    for choice in said["choices"]:
        choice.pop("matched_stop", None)
        choice["message"].pop("reasoning_content", None)
    return said


@pytest.mark.parametrize("name", ["plain", "stopped", "probabilities", "schema", "conversation"])
def test_tokens_by_grpc_become_the_answers_of_http(name, pair, routed_by_grpc):
    direct = said_by_a_router(asked(pair[0].url, CHATS[name]))
    for _ in range(WORKERS):
        assert said_by_a_router(asked(routed_by_grpc, CHATS[name])) == direct


def test_chunks_by_grpc_become_the_text_of_http(pair, routed_by_grpc):
    def text(url):
        chunks = asked(url, {"messages": QUESTION, "stream": True, "max_completion_tokens": 24})
        return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)

    assert text(routed_by_grpc) == text(pair[0].url) != ""


def test_tools_and_several_answers_go_by_grpc(routed_by_grpc):
    called = asked(routed_by_grpc, CHATS["tool"]).choices[0].message.tool_calls[0].function
    assert called.name == "get_weather" and "city" in json.loads(called.arguments)
    assert len(asked(routed_by_grpc, CHATS["several"]).choices) == 2


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_dies_takes_nobody_with_it(way, vocabulary):
    """It is killed in the middle of its answers: those of the other end, and the next request is answered."""
    with workers(WORKERS) as pair, router_of(way, pair, vocabulary) as url:
        body = {"model": "smollm2", "messages": LONG, "max_tokens": 120, "temperature": 0, "stream": True}

        def stream(_):
            data = 0
            try:
                with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=120) as answer:
                    for line in answer.iter_lines():
                        data += line.startswith("data: {")
                        if line == "data: [DONE]":
                            return "whole", data
            except httpx.HTTPError:
                pass
            return "broken", data

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(stream, number) for number in range(4)]
            until_busy(pair)
            pair[0].end(signal.SIGKILL)
            outcomes = [answer.result() for answer in answers]
        assert sum(outcome == "whole" for outcome, _ in outcomes) >= 2, outcomes
        # Routers notice within a few requests that nobody is there.
        answered = [is_serving(url) for _ in range(6)]
        assert answered[-1] and sum(answered) >= 4, answered


@pytest.mark.parametrize("way", WAYS)
def test_a_drained_worker_loses_no_answer(way, vocabulary):
    with workers(WORKERS) as pair, router_of(way, pair, vocabulary) as url:
        body = {"model": "smollm2", "messages": LONG, "max_tokens": 80, "temperature": 0}

        def said(at):
            return httpx.post(f"{at}/v1/chat/completions", json=body, timeout=120).json()["choices"][0]["message"]["content"]

        whole = said(pair[1].url)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(said, url) for _ in range(4)]
            until_busy(pair)
            assert pair[0].end() == 0
            for answer in answers:
                assert answer.result() == whole
        # Routers try another worker where nobody listens.
        assert all(is_serving(url) for _ in range(6))


def until_busy(pair):
    """Waits until each of the workers has something to do."""
    for _ in range(600):
        if all(httpx.get(f"{worker.url}/get_load", timeout=60).json()[0]["num_reqs"] >= 1 for worker in pair):
            return
        time.sleep(0.05)
    raise AssertionError("a worker has nothing to do")


def test_a_worker_with_another_model_does_not_answer_under_its_name(routed):
    refused = httpx.post(f"{routed}/v1/chat/completions", json={"model": "nobody", "messages": QUESTION}, timeout=60)
    assert refused.status_code in (404, 503), refused.text
