"""Text of every endpoint that generates it."""

from home import EIGHT_BITS, KEPT, TWIN
from ledger import output_text
from words import PREFIXES, shared_prefix, text

TOO_LONG = ("context_length_exceeded",)


def model(visit):
    """Mostly the one that stays; the others have to be loaded when they are needed."""
    return visit.random.choices([KEPT, TWIN, EIGHT_BITS], [7, 2, 1])[0]


def sampling(visit):
    return {"temperature": visit.random.choice([0, 0.3, 0.9]), "seed": visit.random.randrange(1 << 30)}


def question(visit, words=None):
    words = words or visit.random.randrange(5, 60)
    return [{"role": "user", "content": text(visit.random, words)}]


def body(visit, **fields):
    return {
        "model": model(visit), "messages": question(visit), "max_completion_tokens": visit.random.randrange(2, 40),
        **sampling(visit), **fields,
    }


def chat(visit):
    answer = visit.ask("POST", "/v1/chat/completions", body(visit))
    if answer and answer.body["choices"][0]["message"]["content"] is None:
        visit.wrong("an answer without content")


def chat_stream(visit):
    asked = body(visit, stream=True, stream_options={"include_usage": True})
    answer = visit.ask("POST", "/v1/chat/completions", asked)
    if answer and not any(isinstance(event, dict) and event.get("usage") for event in answer.events):
        visit.wrong("a stream without its usage")


def chat_choices(visit):
    n = visit.random.randrange(2, 6)
    answer = visit.ask("POST", "/v1/chat/completions", body(visit, n=n))
    if answer and len(answer.body["choices"]) != n:
        visit.wrong(f"{len(answer.body['choices'])} choices instead of {n}")


def chat_logprobs(visit):
    asked = body(visit, logprobs=True, top_logprobs=visit.random.randrange(0, 6))
    answer = visit.ask("POST", "/v1/chat/completions", asked)
    if answer and not answer.body["choices"][0]["logprobs"]["content"]:
        visit.wrong("no log probabilities")


def completion(visit):
    prompts = [text(visit.random, visit.random.randrange(3, 40)) for _ in range(visit.random.randrange(1, 4))]
    asked = {
        "model": model(visit), "prompt": prompts, "max_tokens": visit.random.randrange(1, 24),
        "stream": visit.random.random() < 0.5, **sampling(visit),
    }
    answer = visit.ask("POST", "/v1/completions", asked)
    if answer and not asked["stream"] and len(answer.body["choices"]) != len(prompts):
        visit.wrong("not as many choices as prompts")


def response(visit):
    """Begins a chain of stored responses, or continues the one of this client."""
    asked = {"model": KEPT, "input": text(visit.random, 15), "max_output_tokens": visit.random.randrange(2, 24)}
    life, previous = visit.own.get("response", (None, None))
    if life == visit.life and visit.random.random() < 0.7:
        asked["previous_response_id"] = previous
    answer = visit.ask("POST", "/v1/responses", asked, codes=TOO_LONG)
    if answer is None:
        visit.own.pop("response", None)
        return
    visit.own["response"] = (visit.life, answer.body["id"])
    visit.ledger.response_stored(visit.life, visit.tenant, answer.body["id"], output_text(answer.body))


def message(visit):
    asked = {
        "model": model(visit), "system": text(visit.random, 10), "messages": question(visit),
        "max_tokens": visit.random.randrange(2, 32), "stream": visit.random.random() < 0.5,
    }
    visit.ask("POST", "/v1/messages", asked)


def long_prompt(visit):
    """2,000 to 4,000 tokens, so that cached pages have to go."""
    messages = question(visit, visit.random.randrange(1300, 2600))
    visit.ask("POST", "/v1/chat/completions", body(visit, model=KEPT, messages=messages), codes=TOO_LONG)


def shared_prefix_chat(visit):
    system = shared_prefix(visit.seed, visit.random.randrange(PREFIXES), 300)
    messages = [{"role": "system", "content": system}, *question(visit, 10)]
    visit.ask("POST", "/v1/chat/completions", body(visit, messages=messages, stream=visit.random.random() < 0.5))


shared_prefix_chat.__name__ = "shared_prefix"


def truncated(visit):
    """More than the context holds: the oldest messages are left out. What a tenant may have of the KV memory can still be less."""
    items = []
    for _ in range(8):
        items.append({"role": "user", "content": text(visit.random, 500)})
        items.append({"role": "assistant", "content": "Go on."})
    items.append({"role": "user", "content": text(visit.random, 20)})
    asked = {"model": KEPT, "input": items, "truncation": "auto", "max_output_tokens": 8, "store": False}
    visit.ask("POST", "/v1/responses", asked, codes=TOO_LONG)


ALL = [
    chat, chat_stream, chat_choices, chat_logprobs, completion, response, message, long_prompt, shared_prefix_chat, truncated,
]
