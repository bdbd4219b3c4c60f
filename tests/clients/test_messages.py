"""Anthropic's Python client and `/v1/messages` of a live server.

RUVLLM_TEST_URL is where the server is (http://127.0.0.1:8080), RUVLLM_TEST_MODEL one of its models. The model may be a weak
one: what is checked is the form of answers, never their wisdom.
"""

import json
import os

import anthropic
import pytest

MODEL = os.environ.get("RUVLLM_TEST_MODEL", "smollm2")
URL = os.environ.get("RUVLLM_TEST_URL", "http://127.0.0.1:8080")

HELLO = [{"role": "user", "content": "Say hello."}]
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["c", "f"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}
PARIS = [{"role": "user", "content": "Weather in Paris?"}]


@pytest.fixture(scope="module")
def client():
    api_key = os.environ.get("RUVLLM_TEST_KEY", "any")
    return anthropic.Anthropic(base_url=URL, api_key=api_key, max_retries=0, timeout=600)


def parameters(**extra):
    # The client's newest version has no parameter for the temperature any more; the server does.
    body = {"temperature": 0, **extra.pop("extra_body", {})}
    return {"model": MODEL, "messages": HELLO, "max_tokens": 24, "extra_body": body, **extra}


def ask(client, **extra):
    return client.messages.create(**parameters(**extra))


def check_usage(usage):
    assert usage.input_tokens > 0 and usage.output_tokens > 0
    assert usage.cache_read_input_tokens >= 0 and usage.cache_creation_input_tokens == 0


def prompt_tokens(usage):
    return usage.input_tokens + usage.cache_read_input_tokens


def check_weather(arguments):
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("c", "f") and len(arguments["city"]) <= 20


def test_a_message_is_answered(client):
    message = ask(client, system="Be brief.", metadata={"user_id": "someone"})
    assert message.id.startswith("msg_") and message.type == "message" and message.role == "assistant"
    assert message.model == MODEL
    (block,) = message.content
    assert block.type == "text" and block.text != ""
    assert message.stop_reason in ("end_turn", "max_tokens") and message.stop_sequence is None
    check_usage(message.usage)


def test_too_few_tokens_end_the_answer(client):
    message = ask(client, messages=[{"role": "user", "content": "Count from one to a hundred."}], max_tokens=4)
    assert message.stop_reason == "max_tokens" and message.usage.output_tokens == 4


def test_blocks_make_the_same_prompt_as_text(client):
    text = ask(client, system="Be brief.")
    block = {"type": "text", "text": "Say hello.", "cache_control": {"type": "ephemeral"}}
    blocks = ask(
        client,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[{"role": "user", "content": [block]}],
    )
    assert blocks.content[0].text == text.content[0].text
    assert prompt_tokens(blocks.usage) == prompt_tokens(text.usage)


def test_a_stop_sequence_ends_the_answer_and_is_named(client):
    whole = ask(client, max_tokens=16).content[0].text
    stop = whole[len(whole) // 2 :][:3]
    message = ask(client, max_tokens=16, stop_sequences=["\u2603 never", stop])
    assert message.stop_reason == "stop_sequence" and message.stop_sequence == stop
    text = "".join(block.text for block in message.content)
    assert text == whole[: whole.index(stop)]


def check_events(events):
    """The order that Anthropic promises: a message, in it blocks one after the other, in them deltas."""
    types = [event.type for event in events]
    assert types[0] == "message_start" and types[-2:] == ["message_delta", "message_stop"]
    open_index, next_index = None, 0
    for event in events[1:-2]:
        if event.type == "content_block_start":
            assert open_index is None and event.index == next_index
            open_index, next_index = event.index, next_index + 1
        elif event.type == "content_block_delta":
            assert event.index == open_index
        else:
            assert event.type == "content_block_stop" and event.index == open_index
            open_index = None
    assert open_index is None


def test_events_come_in_order_and_add_up_to_the_message(client):
    events = list(ask(client, stream=True))
    check_events(events)
    start, delta = events[0], events[-2]
    assert start.message.id.startswith("msg_") and start.message.content == [] and start.message.stop_reason is None
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    assert len(deltas) > 1 and {delta.type for delta in deltas} == {"text_delta"}
    whole = ask(client)
    assert "".join(delta.text for delta in deltas) == whole.content[0].text
    assert delta.delta.stop_reason == whole.stop_reason
    assert delta.usage.output_tokens == whole.usage.output_tokens
    assert prompt_tokens(start.message.usage) == prompt_tokens(delta.usage) == prompt_tokens(whole.usage)


def test_the_clients_own_stream_helper_puts_the_message_together(client):
    with client.messages.stream(**parameters()) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert message.content[0].text == text == ask(client).content[0].text
    check_usage(message.usage)


def test_a_ping_follows_the_first_block(client):
    with client.messages.with_streaming_response.create(**parameters(stream=True)) as response:
        names = [line.removeprefix("event: ") for line in response.iter_lines() if line.startswith("event: ")]
    assert names[:4] == ["message_start", "content_block_start", "ping", "content_block_delta"]
    assert names.count("ping") == 1 and names[-1] == "message_stop"


def test_a_tool_is_called_and_its_result_taken(client):
    choice = {"type": "any", "disable_parallel_tool_use": True}
    message = ask(client, messages=PARIS, tools=[WEATHER], tool_choice=choice, max_tokens=96)
    assert message.stop_reason == "tool_use"
    (call,) = message.content
    assert call.type == "tool_use" and call.id.startswith("toolu_") and call.name == "get_weather"
    check_weather(call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain, 12 degrees"}
    turn = {"role": "user", "content": [result, {"type": "text", "text": "So?"}]}
    history = [*PARIS, {"role": "assistant", "content": message.content}, turn]
    answer = ask(client, messages=history, tools=[WEATHER], tool_choice={"type": "none"})
    assert answer.stop_reason in ("end_turn", "max_tokens")
    assert {block.type for block in answer.content} <= {"text"}
    dumped = [*PARIS, {"role": "assistant", "content": [block.model_dump() for block in message.content]}, turn]
    assert prompt_tokens(ask(client, messages=dumped).usage) == prompt_tokens(answer.usage)


def test_calls_are_streamed(client):
    choice = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    events = list(ask(client, messages=PARIS, tools=[WEATHER], tool_choice=choice, max_tokens=96, stream=True))
    check_events(events)
    starts = [event.content_block for event in events if event.type == "content_block_start"]
    assert [(block.type, block.name, block.input) for block in starts] == [("tool_use", "get_weather", {})]
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    assert {delta.type for delta in deltas} == {"input_json_delta"}
    check_weather(json.loads("".join(delta.partial_json for delta in deltas)))
    assert events[-2].delta.stop_reason == "tool_use"
    with client.messages.stream(**parameters(messages=PARIS, tools=[WEATHER], tool_choice=choice, max_tokens=96)) as stream:
        check_weather(stream.get_final_message().content[0].input)


def test_a_schema_shapes_the_text(client):
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["red", "green"]}, "depth": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["name", "depth"],
        "additionalProperties": False,
    }
    config = {"format": {"type": "json_schema", "schema": schema}}
    message = ask(client, messages=[{"role": "user", "content": "Name a colour."}], output_config=config, max_tokens=64)
    assert message.stop_reason == "end_turn"
    colour = json.loads(message.content[0].text)
    assert set(colour) == {"name", "depth"}
    assert colour["name"] in ("red", "green") and 0 <= colour["depth"] <= 9


def test_several_calls_have_ids_of_their_own(client):
    message = ask(client, messages=PARIS, tools=[WEATHER], tool_choice={"type": "any"}, max_tokens=128)
    assert message.stop_reason in ("tool_use", "max_tokens")
    calls = [block for block in message.content if block.type == "tool_use"]
    assert calls and len({call.id for call in calls}) == len(calls)
    for call in calls:
        check_weather(call.input)


def test_a_call_that_is_cut_off_is_left_out(client):
    text = {"type": "string", "minLength": 1000}
    schema = {"type": "object", "properties": {"text": text}, "required": ["text"]}
    extra = {"tools": [{"name": "say", "input_schema": schema}], "tool_choice": {"type": "any"}, "max_tokens": 40}
    message = ask(client, **extra)
    assert message.stop_reason == "max_tokens" and message.content == []
    events = list(ask(client, stream=True, **extra))
    check_events(events)
    assert events[1].content_block.name == "say" and events[-2].delta.stop_reason == "max_tokens"


def test_tokens_are_counted_as_an_answer_counts_them(client):
    for extra in [{}, {"system": "Be brief."}, {"tools": [WEATHER]}]:
        count = client.messages.count_tokens(model=MODEL, messages=PARIS, **extra)
        usage = ask(client, messages=PARIS, max_tokens=1, **extra).usage
        assert count.input_tokens == prompt_tokens(usage)


def test_what_was_computed_before_is_told(client):
    story = [{"role": "user", "content": "Tell me about foxes. " * 40}]
    first = ask(client, messages=story, max_tokens=1).usage
    second = ask(client, messages=story, max_tokens=1).usage
    assert prompt_tokens(first) == prompt_tokens(second)
    assert second.cache_read_input_tokens > 0


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
        ({"messages": [*HELLO, {"role": "assistant", "content": "Hel"}]}, "messages[1].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_none"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        ({"extra_body": {"thinking": {"type": "sometimes"}}}, "thinking.type"),
        ({"extra_body": {"mcp_servers": [{"type": "url", "url": "x", "name": "y"}]}}, "mcp_servers"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "banana"}}}}, "output_config.format"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"extra_body": {"temperature": -1}}, "temperature"),
        ({"extra_body": {"temperture": 1}}, "temperture"),
        ({"messages": [{"role": "user", "content": "fox " * 40_000}]}, "messages"),
    ],
)
def test_what_is_wrong_or_unsupported_is_named(client, extra, field):
    with pytest.raises(anthropic.BadRequestError) as raised:
        ask(client, **extra)
    body = raised.value.body
    assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
    assert body["error"]["message"].startswith(f"{field}: "), body
    assert body["request_id"]


@pytest.mark.parametrize(
    ("extra", "names"),
    [
        ({"extra_body": {"thinking": {"type": "enabled", "budget_tokens": 1024}}}, "thinking"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]:web_search_20250305"),
        ({"extra_body": {"context_management": {"edits": []}, "speed": "fast"}}, "context_management, speed"),
        ({"extra_headers": {"anthropic-beta": "some-feature-2026-01-01"}, "max_tokens": 5}, None),
    ],
)
def test_what_only_tunes_is_accepted_and_named(client, extra, names):
    parameters = {"model": MODEL, "messages": HELLO, "max_tokens": 5}
    answer = client.messages.with_raw_response.create(**{**parameters, **extra})
    assert sorted((answer.headers.get("x-ruvllm-ignored") or "").split(", ")) == sorted((names or "").split(", "))


def test_more_tokens_than_the_context_has_are_as_many_as_it_has(client):
    answer = ask(client, max_tokens=64_000, stop_sequences=[" "])
    assert answer.stop_reason in ("stop_sequence", "end_turn")


def test_an_overflow_is_told_in_words_that_agents_look_for(client):
    with pytest.raises(anthropic.BadRequestError) as raised:
        ask(client, messages=[{"role": "user", "content": "fox " * 40_000}])
    message = raised.value.body["error"]["message"]
    assert "prompt is too long" in message and "maximum context length is" in message


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(anthropic.NotFoundError) as raised:
        ask(client, model="no-such-model")
    assert raised.value.body["error"]["type"] == "not_found_error"
