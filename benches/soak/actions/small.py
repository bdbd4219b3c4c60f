"""Requests that generate nothing."""

from home import EMBEDDING, KEPT
from words import text


def embed(visit):
    inputs = [text(visit.random, visit.random.randrange(2, 80)) for _ in range(visit.random.randrange(1, 9))]
    answer = visit.ask("POST", "/v1/embeddings", {"model": EMBEDDING, "input": inputs, "truncate": True})
    if answer and len(answer.body["data"]) != len(inputs):
        visit.wrong("not as many vectors as texts")


def tokens(visit):
    prompt = text(visit.random, visit.random.randrange(1, 200))
    answer = visit.ask("POST", "/v1/tokenize", {"model": KEPT, "prompt": prompt})
    if answer is None:
        return
    back = visit.ask("POST", "/v1/detokenize", {"model": KEPT, "tokens": answer.body["tokens"]})
    if back and back.body["prompt"].strip() != prompt:
        visit.wrong("another text came back")
    asked = {"model": KEPT, "messages": [{"role": "user", "content": prompt}]}
    visit.ask("POST", "/v1/messages/count_tokens", asked)


def look_around(visit):
    visit.ask("GET", visit.random.choice(["/v1/models", "/health", "/openapi.json", "/v1/policies"]))


ALL = [embed, tokens, look_around]
