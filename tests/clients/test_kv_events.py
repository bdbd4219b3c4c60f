"""KV events with ZeroMQ's own library and msgspec, as vLLM's consumers read them."""

import os
import re
import socket
import time

import httpx
import msgspec
import pytest
import zmq

WHOLE = 16
END = bytes([255]) * 8


# The types of vLLM's events, as its consumers declare them.
class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list["Stored | Removed | Cleared"]
    data_parallel_rank: int | None = None


class Event(msgspec.Struct, omit_defaults=True, tag=True):
    pass


class Stored(Event, tag="BlockStored"):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple | None] | None = None


class Removed(Event, tag="BlockRemoved"):
    block_hashes: list[bytes | int]
    medium: str | None


class Cleared(Event, tag="AllBlocksCleared"):
    pass


class Consumer:
    """Knows the pages that are cached, by what it was told."""

    def __init__(self):
        self.pages = {}
        self.number = -1

    def take(self, number, payload):
        assert number == self.number + 1, "none is missing"
        self.number = number
        batch = msgspec.msgpack.decode(payload, type=Batch)
        assert abs(batch.ts - time.time()) < 3600 and batch.data_parallel_rank == 0
        for event in batch.events:
            if isinstance(event, Cleared):
                self.pages.clear()
            elif isinstance(event, Removed):
                for page in event.block_hashes:
                    del self.pages[page]
            else:
                assert event.block_size == WHOLE and event.medium == "GPU" and event.lora_id is None
                assert len(event.token_ids) == WHOLE * len(event.block_hashes)
                before = self.pages[event.parent_block_hash] if event.parent_block_hash is not None else ()
                for index, page in enumerate(event.block_hashes):
                    assert page not in self.pages
                    before = (*before, *event.token_ids[index * WHOLE : (index + 1) * WHOLE])
                    self.pages[page] = before
        return batch

    def hears(self, subscriber, until, within=30):
        end = time.time() + within
        while not until(self):
            assert subscriber.poll(max(1, int((end - time.time()) * 1000))), "nothing more is said"
            topic, number, payload = subscriber.recv_multipart()
            assert re.fullmatch(rb"kv@127\.0\.0\.1:\d+@smollm2", topic)
            self.take(int.from_bytes(number, "big"), payload)


@pytest.fixture(scope="module")
def addresses():
    return os.environ["RUVLLM_TEST_KV_EVENTS"], os.environ["RUVLLM_TEST_KV_REPLAY"]


@pytest.fixture
def connect():
    with zmq.Context() as context:
        sockets = []

        def connect(kind, address, topic=None):
            made = context.socket(kind)
            made.linger = 0
            if topic is not None:
                made.subscribe(topic)
            made.connect(address)
            sockets.append(made)
            return made

        yield connect
        for made in sockets:
            made.close()


def missed(asking, since, prefix=()):
    """All messages from a number on, as a consumer asks for them that has missed some."""
    asking.send_multipart([*prefix, since.to_bytes(8, "big")])
    messages = []
    while True:
        assert asking.poll(10000), "an answer has an end"
        *empty, number, payload = asking.recv_multipart()
        assert empty in ([], [b""])
        if number == END:
            assert payload == b""
            return messages
        messages.append((int.from_bytes(number, "big"), payload))


def replayed(connect, address):
    consumer = Consumer()
    for number, payload in missed(connect(zmq.DEALER, address), 0, prefix=[b""]):
        consumer.take(number, payload)
    return consumer


def ask(url, model, text):
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 24, "temperature": 0}
    rendered = httpx.post(f"{url}/v1/chat/completions/render", json=body, timeout=60).raise_for_status().json()
    httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300).raise_for_status()
    return tuple(rendered["token_ids"])


def hears_of(subscriber, consumer, url, model, about):
    """Asks about something that nobody has asked about, and waits until it is told; returns its whole pages' tokens."""
    tokens = ask(url, model, f"{time.time_ns()}: {about * 20}")
    whole = tokens[: len(tokens) // WHOLE * WHOLE]
    consumer.hears(subscriber, lambda consumer: whole in consumer.pages.values())
    return whole


def test_a_subscriber_knows_the_pages_of_a_prompt(url, model, addresses, connect):
    subscriber = connect(zmq.SUB, addresses[0], b"kv@")
    consumer = replayed(connect, addresses[1])
    time.sleep(1)
    whole = hears_of(subscriber, consumer, url, model, "one two three four five ")
    every = [whole[:end] for end in range(WHOLE, len(whole) + 1, WHOLE)]
    known = set(consumer.pages.values())
    assert all(beginning in known for beginning in every)
    # Once more: nothing new is cached of it.
    before = len(consumer.pages)
    again = replayed(connect, addresses[1])
    assert before <= len(again.pages) <= before + 2, "the answer's own pages may come later"


def test_a_consumer_knows_exactly_the_pages_that_are_cached(url, model, addresses, connect, operator):
    for number in range(40):
        # Texts that part from each other anywhere, and some that are asked again.
        ask(url, model, f"{'to be or not to be ' * (number * 7 % 30)}{number % 13}")
    time.sleep(1)
    [cache] = [one for one in httpx.get(f"{url}/v1/cache", headers=operator).json()["models"] if one["model"] == model]
    assert len(replayed(connect, addresses[1]).pages) == cache["whole_pages"] > 40


def test_what_was_missed_is_sent_again(url, model, addresses, connect):
    ask(url, model, f"Another one, {time.time_ns()}: " + "red green blue " * 20)
    time.sleep(1)
    # As vLLM's own example asks, and with the envelope of its tests.
    first = missed(connect(zmq.DEALER, addresses[1]), 0, prefix=[b""])
    assert [number for number, _ in first] == list(range(len(first))) and len(first) > 0
    last = first[-1][0]
    requester = connect(zmq.REQ, addresses[1])
    requester.send(last.to_bytes(8, "big"))
    assert requester.poll(10000)
    number, payload = requester.recv_multipart()
    assert (int.from_bytes(number, "big"), payload) == first[-1]
    assert missed(connect(zmq.DEALER, addresses[1]), last + 1, prefix=[b""]) == []


def test_only_what_was_subscribed_to_is_sent(url, model, addresses, connect):
    other = connect(zmq.SUB, addresses[0], b"kv@10.0.0.1")
    fickle = connect(zmq.SUB, addresses[0], b"kv@")
    time.sleep(1)
    fickle.unsubscribe(b"kv@")
    time.sleep(1)
    ask(url, model, f"A third, {time.time_ns()}: " + "salt and pepper " * 20)
    assert not other.poll(1500) and not fickle.poll(10)


def test_peers_that_speak_something_else_do_no_harm(url, model, addresses, connect):
    for address in addresses:
        host, port = address.removeprefix("tcp://").rsplit(":", 1)
        for said in (b"GET / HTTP/1.1\r\n\r\n" * 10, b"", bytes(range(256)) * 40, b"\xff" + bytes(8) + b"\x7f\x03" + bytes(53)):
            with socket.create_connection((host, int(port)), timeout=10) as peer:
                peer.sendall(said)
    # A publisher is no subscriber, and a request of three bytes is no number.
    connect(zmq.PUSH, addresses[0])
    connect(zmq.DEALER, addresses[1]).send_multipart([b"", b"abc"])
    subscriber = connect(zmq.SUB, addresses[0], b"")
    consumer = replayed(connect, addresses[1])
    time.sleep(1)
    hears_of(subscriber, consumer, url, model, "bread and butter ")
