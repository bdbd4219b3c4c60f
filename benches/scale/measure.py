"""Measures several workers on this machine, and what routers and their events cost.

    python -m venv venv && venv/bin/pip install sglang-router==0.3.2 pyzmq==27.3.0 msgspec==0.22.0
    venv/bin/python benches/scale/measure.py target/release/ruvllm

Each worker has one thread on a core of its own. Measures, in turns:

    throughput  requests a second of the workload `mixed`: one worker, and two behind a router
    hits        the share of prompt tokens that were cached: one worker, two by cache-aware routing, two in turn
    overhead    what a router adds to a request, in milliseconds
    move        the first token of a text of 2,000 tokens that another worker has computed, by the shared disk tier, and without
    events      throughput with KV events and a subscriber, and without
    replay      whether a consumer of KV events knows exactly what is cached after 10,000 random requests (--requests)
"""

import argparse
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

WORDS = "time person year way day thing man world life hand part child eye woman place work week case point company number".split()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def until(what, condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if found := condition():
                return found
        time.sleep(0.05)
    sys.exit(f"{what} takes more than {seconds} seconds")


@contextlib.contextmanager
def worker(options, core, *more):
    """The URL of a worker on one core, and what it said."""
    with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "log"), "w+") as log:
        command = [options.program, "serve", "smollm2", "--port", "0", "--threads", "1", "--no-memory", *more]
        if "--context" not in more:
            command += ["--context", "4096"]
        pinned = lambda: os.sched_setaffinity(0, {core})
        process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=pinned)
        try:

            def said():
                if process.poll() is not None:
                    sys.exit(f"the worker has ended: {open(log.name).read()}")
                text = open(log.name).read()
                return re.search(r"^listening on (\S+)$", text, re.MULTILINE) and text

            text = until("the start of a worker", said)
            yield re.search(r"^listening on (\S+)$", text, re.MULTILINE)[1], text
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


@contextlib.contextmanager
def router(urls, policy):
    port = free_port()
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--policy", policy, "--prometheus-port", str(free_port())]
    command = [sys.executable, "-m", "sglang_router.launch_router", *arguments, "--log-level", "warn", "--worker-urls", *urls]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        until("the start of the router", lambda: ask(Client(url), "Hello", 1))
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Client:
    """One that keeps its connection, as programs do."""

    def __init__(self, url):
        self.connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=600)

    def post(self, path, body):
        self.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = self.connection.getresponse()
        if response.status != 200:
            raise OSError(response.read().decode())
        return response


def ask(client, text, max_tokens):
    body = {"model": "smollm2", "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "temperature": 0}
    return json.loads(client.post("/v1/chat/completions", body).read())


def first_token(url, text):
    """Seconds until the first piece of an answer, and how many tokens of the prompt were cached."""
    body = {"model": "smollm2", "prompt": text, "max_tokens": 8, "temperature": 0}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    client = Client(url)
    client.connection.connect()
    began = time.monotonic()
    took = cached = None
    for line in client.post("/v1/completions", body):
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if took is None and chunk["choices"] and chunk["choices"][0]["text"]:
            took = time.monotonic() - began
        if chunk.get("usage"):
            cached = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
    return took, cached


def load(options, url, workload="mixed", requests=12):
    """Requests a second under the load of `ruvllm bench serve`."""
    command = [options.program, "bench", "serve", url, "--model", "smollm2", "--workload", workload, "--clients", "8", "--requests", str(requests)]
    measured = json.loads(subprocess.run([*command, "--json"], check=True, capture_output=True, text=True).stdout)
    [run] = measured["runs"]
    if run["errors"]:
        sys.exit(f"{run['errors']} of {run['requests']} requests failed: {run['error']}")
    return run


def median(values):
    return round(statistics.median(values), 4)


def throughput(options):
    one, two = [], []
    with worker(options, 0) as (first, _), worker(options, 1) as (second, _), router([first, second], "cache_aware") as both:
        for _ in range(options.rounds):
            one.append(load(options, first)["requests_s"])
            two.append(load(options, both)["requests_s"])
    return {"one": median(one), "two": median(two), "ratio": median([b / a for a, b in zip(one, two)])}


def hits(options):
    found = {}
    for name, count, policy in (("one", 1, "round_robin"), ("cache_aware", 2, "cache_aware"), ("round_robin", 2, "round_robin")):
        with contextlib.ExitStack() as stack:
            urls = [stack.enter_context(worker(options, core))[0] for core in range(count)]
            url = stack.enter_context(router(urls, policy))
            run = load(options, url, requests=20)
            found[name] = round(run["cached_tokens"] / run["prompt_tokens"], 4)
    return found


def overhead(options):
    direct, routed = [], []
    with worker(options, 0) as (url, _), router([url], "round_robin") as through:
        clients = Client(url), Client(through)
        for _ in range(300):
            for client, times in zip(clients, (direct, routed)):
                began = time.monotonic()
                ask(client, "Hello", 1)
                times.append((time.monotonic() - began) * 1000)
    return {"direct_ms": median(direct), "routed_ms": median(routed), "p50_ms": median(routed) - median(direct)}


def move(options):
    computed, moved = [], []
    with tempfile.TemporaryDirectory() as folder:
        shared = ("--kv-disk", folder)
        with worker(options, 0, *shared) as (first, _), worker(options, 1, *shared) as (second, _):
            for number in range(options.rounds):
                text = f"Text {number}: " + " ".join(WORDS[(at * at + number) % len(WORDS)] for at in range(1950))
                took, cached = first_token(first, text)
                assert cached < 32, cached
                computed.append(took)
                time.sleep(1)
                took, cached = first_token(second, text)
                assert cached > 1900, cached
                moved.append(took)
    return {"computed_s": median(computed), "moved_s": median(moved), "ratio": median([a / b for a, b in zip(computed, moved)])}


def events(options):
    import zmq

    told, silent = [], []
    with worker(options, 0) as (plain, _), worker(options, 0, "--kv-events", "127.0.0.1:0") as (telling, said):
        subscriber = zmq.Context().socket(zmq.SUB)
        subscriber.subscribe(b"")
        subscriber.connect(re.search(r"^KV events on (\S+)$", said, re.MULTILINE)[1])
        messages = []

        def listen():
            while True:
                messages.append(subscriber.recv_multipart())

        threading.Thread(target=listen, daemon=True).start()
        for at in range(options.rounds):
            for url, rates in ((plain, silent), (telling, told))[:: 1 if at % 2 == 0 else -1]:
                rates.append(load(options, url, "unique", requests=4)["requests_s"])
    ratios = [a / b for a, b in zip(told, silent)]
    return {"without": median(silent), "with": median(told), "ratio": median(ratios), "messages": len(messages)}


class Pages:
    """A consumer of KV events: the tokens that each cached page ends."""

    def __init__(self):
        self.tokens, self.removed, self.evicted = {}, [], 0

    def take(self, payload):
        import msgspec

        for event in msgspec.msgpack.decode(payload)[1]:
            if event["type"] == "AllBlocksCleared":
                self.tokens.clear()
            elif event["type"] == "BlockRemoved":
                for page in event["block_hashes"]:
                    self.removed.append(self.tokens.pop(page))
                    self.evicted += 1
                del self.removed[:-1000]
            else:
                before, size = self.tokens.get(event["parent_block_hash"], ()), event["block_size"]
                for at, page in enumerate(event["block_hashes"]):
                    before = (*before, *event["token_ids"][at * size : (at + 1) * size])
                    assert page not in self.tokens, "a page is told of twice"
                    self.tokens[page] = before


def listen(address, pages):
    """Follows the events in a thread of its own."""
    import zmq

    subscriber = zmq.Context().socket(zmq.SUB)
    subscriber.rcvhwm = 0
    subscriber.subscribe(b"")
    subscriber.connect(address)

    def follow():
        expected = None
        while True:
            _, number, payload = subscriber.recv_multipart()
            number = int.from_bytes(number, "big")
            assert expected in (None, number), "a message is missing"
            expected = number + 1
            pages.take(payload)

    threading.Thread(target=follow, daemon=True).start()


def replay(options):
    """Short prompts that part from each other anywhere, in a cache that is too small for them."""
    import random

    chance = random.Random(1)
    stems = [[chance.randrange(300, 40000) for _ in range(chance.randrange(8, 64))] for _ in range(300)]
    pages, lock, failures = Pages(), threading.Lock(), []
    with worker(options, 0, "--context", "512", "--kv-memory", "64M", "--kv", "f16", "--kv-events", "127.0.0.1:0") as (url, said):
        # The first server makes it.
        token = subprocess.run([options.program, "keys", "token"], check=True, capture_output=True, text=True).stdout.strip()
        listen(re.search(r"^KV events on (\S+)$", said, re.MULTILINE)[1], pages)
        time.sleep(1)

        def prompt():
            with lock:
                stem = chance.choice(stems)
                return stem[: chance.randrange(1, len(stem) + 1)] + [chance.randrange(300, 40000) for _ in range(chance.randrange(0, 20))]

        def one(client, tokens):
            body = {"model": "smollm2", "prompt": tokens, "max_tokens": 1, "temperature": 0}
            return json.loads(client.post("/v1/completions", body).read())["usage"]

        def many(count):
            try:
                client = Client(url)
                for _ in range(count):
                    one(client, prompt())
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=many, args=(options.requests // 8,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(2)
        if failures:
            sys.exit(f"a request failed: {failures[0]}")

        def cached_pages():
            connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc)
            connection.request("GET", "/v1/cache", headers={"Authorization": f"Bearer {token}"})
            [cache] = json.loads(connection.getresponse().read())["models"]
            return cache["whole_pages"]

        known, there, evicted = len(pages.tokens), cached_pages(), pages.evicted
        # What it knows is found, and what it heard is gone is not: each is asked for, with one more token. Asking changes the cache,
        # so what is known is looked up again for each.
        client, wrong, asked = Client(url), 0, 0
        for _ in range(min(300, options.requests)):
            tokens = chance.choice(list(pages.tokens.values()))
            asked += 1
            wrong += one(client, [*tokens, 299])["prompt_tokens_details"]["cached_tokens"] < len(tokens)
            time.sleep(0.02)
            tokens = chance.choice(pages.removed) if pages.removed else ()
            if tokens and tokens not in set(pages.tokens.values()):
                asked += 1
                wrong += one(client, [*tokens, 299])["prompt_tokens_details"]["cached_tokens"] >= len(tokens)
                time.sleep(0.02)
    return {"requests": options.requests, "known": known, "cached": there, "evicted": evicted, "asked": asked, "wrong": wrong}


MEASURES = {measure.__name__: measure for measure in (throughput, hits, overhead, move, events, replay)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the ruvllm program")
    parser.add_argument("measures", nargs="*", choices=[[], *MEASURES], default=list(MEASURES), metavar="MEASURE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=10_000)
    options = parser.parse_args()
    for name in options.measures or MEASURES:
        print(json.dumps({name: MEASURES[name](options)}), flush=True)


if __name__ == "__main__":
    main()
