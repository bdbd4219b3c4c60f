"""Clients that do not behave: they hang up, read slowly, or ask for what makes no sense."""

import http.client
import json
import socket
import time

from home import EMBEDDING, KEPT
from wire import Answer, Stuck, parsed
from words import text

from .generate import body

CHAT = "/v1/chat/completions"
# How long a client may take to read one answer.
READING_MAX_S = 8


def hang_up_midway(visit):
    asked = body(visit, stream=True, max_completion_tokens=200)
    leave(visit, asked, events_max=visit.random.randrange(1, 10))


def hang_up_at_once(visit):
    """Before the first byte of an answer, while a long prompt is prepared, queued or computed."""
    asked = body(visit, messages=[{"role": "user", "content": text(visit.random, visit.random.randrange(20, 1500))}])
    client = visit.client()
    try:
        client.send("POST", CHAT, asked)
        time.sleep(visit.random.choice([0, 0.01, 0.1, 0.5]))
        visit.tally.count(visit.kind, "left")
    except OSError as error:
        visit.broken(repr(error))
    finally:
        client.close()


def read_slowly(visit):
    asked = body(visit, stream=True, n=4, max_completion_tokens=60)
    events_max = 40
    leave(visit, asked, events_max, pause_s=READING_MAX_S / events_max)


def leave(visit, asked, events_max, pause_s=0.0):
    """Reads some events of a stream and hangs up."""
    client = visit.client()
    try:
        response = client.send("POST", CHAT, asked).getresponse()
        if response.status != 200:
            visit.judge(Answer(response.status, response.headers, parsed(response.read().decode())))
            return
        answer = client.read_events(response, events_max, pause_s)
        if answer.error:
            visit.judge(answer)
        else:
            visit.tally.count(visit.kind, "left")
    except (TimeoutError, Stuck) as error:
        visit.stuck(str(error))
    except (OSError, http.client.HTTPException) as error:
        visit.broken(repr(error))
    finally:
        client.close()


def malformed(visit):
    """Each has to be refused as the client's mistake, and nothing else."""
    message = [{"role": "user", "content": "Hello"}]
    cases = [
        (CHAT, b"{", (400,)),
        (CHAT, b"\xff\xfe", (400,)),
        (CHAT, {"model": KEPT}, (400,)),
        (CHAT, {"model": KEPT, "messages": []}, (400,)),
        (CHAT, {"model": KEPT, "messages": message, "temperature": -1}, (400,)),
        (CHAT, {"model": KEPT, "messages": message, "n": 1000}, (400,)),
        (CHAT, {"model": KEPT, "messages": message, "max_tokens": 10**9}, (400,)),
        (CHAT, {"model": KEPT, "messages": message, "surprise": True}, (400,)),
        (CHAT, {"model": KEPT, "messages": message, "regex": "("}, (400,)),
        (CHAT, {"model": KEPT, "messages": [{"role": "nobody", "content": "x"}]}, (400,)),
        (CHAT, {"model": EMBEDDING, "messages": message}, (400,)),
        ("/v1/embeddings", {"model": KEPT, "input": "x"}, (400,)),
        ("/v1/embeddings", {"model": EMBEDDING, "input": []}, (400,)),
        ("/v1/messages", {"model": KEPT, "messages": message}, (400,)),
        ("/v1/responses", {"model": KEPT, "input": "x", "previous_response_id": "resp_none"}, (400, 404)),
        ("/v1/completions", {"model": KEPT, "prompt": "x", "max_tokens": 0}, (400,)),
        ("/v1/detokenize", {"model": KEPT, "tokens": [10**8]}, (400,)),
        ("/v1/nowhere", {}, (404,)),
        ("/admin/models/unload", {"model": KEPT}, (403,)),
    ]
    path, asked, expect = visit.random.choice(cases)
    visit.ask("POST", path, asked, expect=expect)


def half_a_body(visit):
    """Promises more bytes than it sends, and leaves."""
    data = json.dumps(body(visit)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: soak\r\nauthorization: Bearer {visit.key}\r\ncontent-type: application/json\r\n"
    try:
        with socket.create_connection(visit.server.address, 10) as connection:
            connection.sendall(head.encode() + f"content-length: {len(data)}\r\n\r\n".encode() + data[: len(data) // 2])
            time.sleep(visit.random.choice([0, 0.2, 1]))
        visit.tally.count(visit.kind, "left")
    except OSError as error:
        visit.broken(repr(error))


def unknown_model(visit):
    visit.ask("POST", CHAT, body(visit, model="no-such-model"), expect=(404,))


def wrong_key(visit):
    visit.ask("POST", CHAT, body(visit), expect=(401,), key="sk-of-nobody")


ALL = [hang_up_midway, hang_up_at_once, read_slowly, malformed, half_a_body, unknown_model, wrong_key]
