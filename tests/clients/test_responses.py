"""OpenAI's Python client and `/v1/responses` of a live server.

RUVLLM_TEST_URL is where the server is (http://127.0.0.1:8080), RUVLLM_TEST_MODEL one of its models. The model may be a weak
one: what is checked is the form of answers, never their wisdom.
"""

import json
import os

import openai
import pytest

MODEL = os.environ.get("RUVLLM_TEST_MODEL", "smollm2")
URL = os.environ.get("RUVLLM_TEST_URL", "http://127.0.0.1:8080")

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["c", "f"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
    "strict": True,
}
COLOUR = {
    "type": "json_schema",
    "name": "colour",
    "strict": True,
    "schema": {
        "type": "object",
        "properties": {"name": {"enum": ["red", "green"]}, "depth": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["name", "depth"],
        "additionalProperties": False,
    },
}
LOGPROBS = "message.output_text.logprobs"


@pytest.fixture(scope="module")
def client():
    api_key = os.environ.get("RUVLLM_TEST_KEY", "any")
    return openai.OpenAI(base_url=f"{URL}/v1", api_key=api_key, max_retries=0, timeout=600)


def ask(client, **extra):
    parameters = {"model": MODEL, "input": "Say hello.", "temperature": 0, "max_output_tokens": 24}
    return client.responses.create(**{**parameters, **extra})


def refused(client, **extra):
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, **extra)
    return raised.value


def check_usage(usage):
    assert usage.input_tokens > 0 and usage.output_tokens > 0
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert 0 <= usage.input_tokens_details.cached_tokens < usage.input_tokens
    assert usage.output_tokens_details.reasoning_tokens == 0


def check_weather(arguments):
    arguments = json.loads(arguments)
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("c", "f") and len(arguments["city"]) <= 20


def test_a_text_is_answered_with_one_message(client):
    response = ask(client, metadata={"purpose": "test"}, user="someone")
    assert response.id.startswith("resp_") and response.object == "response"
    assert response.model == MODEL and response.metadata == {"purpose": "test"} and response.user == "someone"
    assert response.error is None and response.previous_response_id is None
    assert response.temperature == 0 and response.max_output_tokens == 24
    assert response.tools == [] and response.tool_choice == "auto" and response.text.format.type == "text"
    (message,) = response.output
    assert message.type == "message" and message.role == "assistant" and message.id.startswith("msg_")
    (part,) = message.content
    assert part.type == "output_text" and part.annotations == []
    assert part.text == response.output_text != ""
    check_usage(response.usage)


def test_too_few_tokens_make_an_incomplete_response(client):
    response = ask(client, input="Count from one to a hundred.", max_output_tokens=4)
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"
    assert response.usage.output_tokens == 4


def test_items_and_instructions_make_the_same_prompt_as_their_short_forms(client):
    short = ask(client, instructions="Be brief.", input="Say hello.")
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Say hello."}]},
    ]
    long = ask(client, input=items)
    assert long.output_text == short.output_text
    assert long.usage.input_tokens == short.usage.input_tokens
    assert short.instructions == "Be brief." and long.instructions is None


def test_events_come_in_order_and_add_up_to_the_response(client):
    events = list(ask(client, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    types = [event.type for event in events]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    assert types == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * len(deltas),
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        types[-1],
    ]
    created, progress, added, part_added = events[:4]
    done, part_done, item_done, last = events[-4:]
    assert types[-1] == f"response.{last.response.status}"
    assert created.response.status == progress.response.status == "in_progress" and created.response.output == []
    assert created.response.id == progress.response.id == last.response.id
    assert added.item.id == item_done.item.id == last.response.output[0].id
    assert added.item.status == "in_progress" and added.item.content == []
    assert {event.item_id for event in [part_added, *deltas, done, part_done]} == {added.item.id}
    assert {event.output_index for event in events[2:-1]} == {0}
    text = "".join(delta.delta for delta in deltas)
    assert text == done.text == part_done.part.text == item_done.item.content[0].text == last.response.output_text
    check_usage(last.response.usage)
    assert ask(client).output_text == text, "the same without a stream"


def test_the_clients_own_stream_helper_understands_the_events(client):
    with client.responses.stream(model=MODEL, input="Say hello.", temperature=0, max_output_tokens=8) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text != ""


def test_a_required_tool_is_called_with_valid_arguments(client):
    extra = {"input": "Weather in Paris?", "tools": [WEATHER], "tool_choice": "required"}
    response = ask(client, **extra, parallel_tool_calls=False, max_output_tokens=96)
    assert response.status == "completed" and response.parallel_tool_calls is False
    (call,) = response.output
    assert call.type == "function_call" and call.id.startswith("fc_") and call.call_id.startswith("call_")
    assert call.name == "get_weather" and call.status == "completed"
    check_weather(call.arguments)
    assert response.tool_choice == "required"
    assert response.tools[0].name == "get_weather" and response.tools[0].type == "function"


def test_several_calls_are_items_of_their_own_and_only_the_last_can_be_cut_off(client):
    extra = {"input": "Weather in Paris?", "tools": [WEATHER], "tool_choice": "required", "max_output_tokens": 128}
    events = list(ask(client, **extra, stream=True))
    response = events[-1].response
    calls = [item for item in response.output if item.type == "function_call"]
    assert len({call.call_id for call in calls}) == len({call.id for call in calls}) == len(calls) > 0
    for call in calls[:-1]:
        assert call.status == "completed"
        check_weather(call.arguments)
    assert [event.item.id for event in events if event.type == "response.output_item.done"] == [
        item.id for item in response.output
    ]


def test_calls_are_streamed_and_their_output_continues_the_conversation(client):
    events = list(
        ask(
            client,
            input="Weather in Paris?",
            tools=[WEATHER],
            tool_choice={"type": "function", "name": "get_weather"},
            parallel_tool_calls=False,
            max_output_tokens=96,
            stream=True,
        )
    )
    types = [event.type for event in events]
    deltas = [event for event in events if event.type == "response.function_call_arguments.delta"]
    assert types == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        *["response.function_call_arguments.delta"] * len(deltas),
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    added, done, item_done, completed = events[2], *events[-3:]
    assert added.item.type == "function_call" and added.item.arguments == "" and added.item.name == "get_weather"
    assert {event.item_id for event in [*deltas, done]} == {added.item.id, item_done.item.id}
    call = completed.response.output[0]
    assert "".join(delta.delta for delta in deltas) == done.arguments == call.arguments
    assert call.call_id == added.item.call_id
    check_weather(call.arguments)

    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain, 12 degrees"}
    by_id = ask(client, previous_response_id=completed.response.id, input=[output], tools=[WEATHER], tool_choice="none")
    question = {"role": "user", "content": "Weather in Paris?"}
    by_items = ask(client, input=[question, call.to_dict(), output], tools=[WEATHER], tool_choice="none")
    by_reference = ask(client, input=[question, {"type": "item_reference", "id": call.id}, output])
    assert by_id.output_text == by_items.output_text == by_reference.output_text
    assert by_id.usage.input_tokens == by_items.usage.input_tokens == by_reference.usage.input_tokens


def test_a_schema_shapes_the_text(client):
    response = ask(client, input="Name a colour.", text={"format": COLOUR}, max_output_tokens=64)
    assert response.status == "completed"
    colour = json.loads(response.output_text)
    assert set(colour) == {"name", "depth"}
    assert colour["name"] in ("red", "green") and 0 <= colour["depth"] <= 9
    assert response.text.format.name == "colour"
    anything = ask(client, input="JSON, please: {}", text={"format": {"type": "json_object"}}, max_output_tokens=200)
    if anything.status == "completed":
        assert isinstance(json.loads(anything.output_text), dict)


def test_probabilities_are_reported_for_each_token(client):
    response = ask(client, include=[LOGPROBS], top_logprobs=2, max_output_tokens=5)
    logprobs = response.output[0].content[0].logprobs
    assert len(logprobs) == response.usage.output_tokens
    for token in logprobs:
        assert token.logprob <= 0 and len(token.top_logprobs) == 2
        assert token.logprob == max(top.logprob for top in token.top_logprobs), "greedy takes the likeliest"
    events = ask(client, include=[LOGPROBS], top_logprobs=2, max_output_tokens=5, stream=True)
    deltas = [event.logprobs for event in events if event.type == "response.output_text.delta"]
    assert [token.token for delta in deltas for token in delta] == [token.token for token in logprobs]


def test_a_response_can_be_continued_asked_for_and_deleted(client):
    first = ask(client, input="My name is Ada.", instructions="Be polite.")
    second = ask(client, input="What is my name?", previous_response_id=first.id)
    assert second.previous_response_id == first.id and second.instructions is None
    said = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "What is my name?"},
    ]
    assert ask(client, input=said).usage.input_tokens == second.usage.input_tokens, "without the instructions"
    assert client.responses.retrieve(second.id).to_dict() == second.to_dict()
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError) as raised:
        client.responses.retrieve(second.id)
    assert raised.value.code == "response_not_found"
    error = refused(client, previous_response_id=second.id)
    assert (error.param, error.code) == ("previous_response_id", "previous_response_not_found")


def test_a_streamed_response_is_stored_and_store_false_is_obeyed(client):
    completed = list(ask(client, stream=True))[-1].response
    assert client.responses.retrieve(completed.id).output_text == completed.output_text
    unstored = ask(client, store=False)
    assert unstored.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unstored.id)


def test_a_conversation_that_is_too_long_is_refused_or_cut(client):
    long = [{"role": "user", "content": "The quick brown fox jumps over the lazy dog. " * 10_000}]
    short = {"role": "user", "content": "Say hello."}
    error = refused(client, input=[*long, short])
    assert (error.param, error.code) == ("input", "context_length_exceeded")
    cut = ask(client, input=[*long, short], truncation="auto")
    assert cut.truncation == "auto" and cut.usage.input_tokens == ask(client).usage.input_tokens


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"reasoning": {"effort": "enormous"}}, "reasoning.effort"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{**WEATHER, "parameters": {"type": "string"}}]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "include": [LOGPROBS]}, "include"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "txt": "x"}]}]}, "input[0].content[0].text"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "incantation", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_none"}]}, "input[0].id"),
        ({"input": [{"type": "function_call_output", "call_id": "call_none", "output": "x"}]}, "input[0].call_id"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "banana"}}}}, "text.format"),
        ({"extra_body": {"temprature": 1}}, "temprature"),
    ],
)
def test_what_is_wrong_or_unsupported_is_named(client, extra, param):
    error = refused(client, **extra)
    assert error.param == param, error
    assert error.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("extra", "names"),
    [
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]:web_search"),
        ({"include": ["file_search_call.results"]}, "include[0]:file_search_call.results"),
        ({"include": ["reasoning.encrypted_content"]}, None),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"extra_body": {"client_metadata": {"a": "b"}}}, "client_metadata"),
        (
            {"input": [{"role": "user", "content": "Hi"}, {"type": "reasoning", "id": "rs_1", "summary": []}]},
            "input[1]:reasoning",
        ),
    ],
)
def test_what_only_tunes_is_accepted_and_named(client, extra, names):
    parameters = {"model": MODEL, "input": "Say hello.", "max_output_tokens": 5}
    answer = client.responses.with_raw_response.create(**{**parameters, **extra})
    assert answer.headers.get("x-ruvllm-ignored") == names


def test_tools_of_other_kinds_are_called_in_their_own_form(client):
    custom = {"type": "custom", "name": "note", "description": "Writes a note", "format": {"type": "text"}}
    response = ask(client, tools=[custom], tool_choice={"type": "custom", "name": "note"}, max_output_tokens=200)
    call = response.output[0]
    assert call.type == "custom_tool_call" and call.name == "note" and isinstance(call.input, str)
    history = [{"role": "user", "content": "Note it."}, call.model_dump(), {
        "type": "custom_tool_call_output", "call_id": call.call_id, "output": "noted"}]
    assert ask(client, input=history, tools=[custom]).output
    shell = ask(client, tools=[{"type": "local_shell"}], tool_choice="required", max_output_tokens=200).output[0]
    assert shell.type == "local_shell_call" and shell.action.type == "exec"
    assert shell.action.command or shell.status == "incomplete", "a small model may not come to an end"


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as raised:
        ask(client, model="no-such-model")
    assert raised.value.code == "model_not_found" and raised.value.param == "model"
