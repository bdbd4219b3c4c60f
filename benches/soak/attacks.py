"""What a hostile tenant does to the others: each attack is asked for again and again by several clients at once."""

import json
import socket
import time

from home import KEPT

BODY = b" " * (8 << 20)


class Attack:
    """`ask(client, round)` does it once and gives a status, or what happened instead."""

    def __init__(self, name, clients, ask):
        self.name, self.clients, self.ask = name, clients, ask


def post(path, **fields):
    """A request that is the same each time."""
    body = json.dumps({"model": KEPT, **fields}).encode()
    return lambda client, _: client.ask("POST", path, body).status


def conversation(messages):
    turns = ["hello", "hello to you"]
    return [{"role": ["user", "assistant"][at % 2], "content": turns[at % 2]} for at in range(messages)]


def different_prompts(client, number):
    """Prompts that have nothing in common, so that no cache helps."""
    text = f"{number * 7919} " + "The quick brown fox jumps over the lazy dog and thinks about it for a while. " * 430
    return client.ask("POST", "/v1/completions", {"model": KEPT, "prompt": text, "max_tokens": 2}).status


def different_schemas(client, number):
    """Schemas of 200 KB that were never seen before."""
    properties = {f"p{number}_{at}": {"type": "string", "pattern": f"^[a-f]{{{at % 50 + 1},90}}$"} for at in range(3000)}
    schema = {"type": "object", "properties": properties}
    shape = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    ask = {"model": KEPT, "messages": conversation(1), "max_tokens": 4, "response_format": shape}
    return client.ask("POST", "/v1/chat/completions", ask).status


def unfinished_body(client, _):
    """All of a large body but its last byte."""
    connection = client.connect()
    # What waits on this side would be in the attacker's own machine.
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
    for part in [f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {client.key}\r\n".encode(),
                 f"content-type: application/json\r\ncontent-length: {len(BODY)}\r\n\r\n".encode()]:
        connection.sock.sendall(part)
    connection.sock.settimeout(3)
    try:
        connection.sock.sendall(BODY[:-1])
        answer = connection.sock.recv(12)
        return answer[9:12].decode() or "closed"
    except (TimeoutError, socket.timeout):
        return "left waiting"
    finally:
        client.close()


def idle(client, _):
    """A connection that says nothing."""
    client.connect()
    time.sleep(5)
    client.close()
    return "idle"


# By the numbers of the audit's table, then what else was thought of.
ATTACKS = [
    Attack("1: 128 prompts, n=128, a stop of 4 MB", 4,
           post("/v1/completions", prompt=["a"] * 128, n=128, stop=["x" * 4_000_000])),
    Attack("2: 8,000 messages, truncated", 32,
           post("/v1/responses", input=conversation(8001), truncation="auto", max_output_tokens=4)),
    Attack("2: prompts of 8 MB, n=64", 4, post("/v1/completions", prompt="x " * 4_000_000, n=64)),
    Attack("3: a name of 5 MB in a session", 4, post(
        "/v1/chat/completions", session="x", messages=[{"role": "user", "content": "hi", "name": "A" * 5_000_000}])),
    Attack("4: 8 prompts, n=128, 1,000 tokens each", 2,
           post("/v1/completions", prompt=["Once upon a time"] * 8, n=128, max_tokens=1000)),
    Attack("4: 1 prompt, n=64, 200 tokens each", 4,
           post("/v1/completions", prompt="Once upon a time", n=64, max_tokens=200)),
    Attack("13: 300 bodies of 8 MB without their last byte", 300, unfinished_body),
    Attack("14: 1,100 connections that say nothing", 1100, idle),
    Attack("25: 4 MB to tokenize", 4, post("/v1/tokenize", prompt="x " * 2_000_000)),
    Attack("prompts of 7,000 tokens, all different", 12, different_prompts),
    Attack("schemas of 200 KB, all different", 8, different_schemas),
]
