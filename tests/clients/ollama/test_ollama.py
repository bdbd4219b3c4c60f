"""Ollama's official client for Python, as its users call it."""

import json
import os

import ollama
import pytest

MODEL = os.environ["RUVLLM_TEST_MODEL"]
QUICK = {"temperature": 0, "num_predict": 24}
COLOURS = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture(scope="module")
def client():
    return ollama.Client(host=os.environ["RUVLLM_TEST_OLLAMA_URL"])


def test_chat_whole_and_streamed(client):
    answer = client.chat(model=MODEL, messages=COLOURS, options=QUICK)
    assert answer.message.content and answer.done and answer.eval_count > 0
    assert answer.total_duration > answer.eval_duration > 0
    parts = list(client.chat(model=MODEL, messages=COLOURS, options=QUICK, stream=True))
    assert "".join(part.message.content for part in parts) == answer.message.content
    assert [part.done for part in parts].count(True) == 1 and parts[-1].done_reason in ("stop", "length")


def test_a_second_turn_is_a_conversation(client):
    first = client.chat(model=MODEL, messages=COLOURS, options=QUICK)
    messages = [*COLOURS, first.message, {"role": "user", "content": "And three more."}]
    second = client.chat(model=MODEL, messages=messages, options=QUICK)
    assert second.prompt_eval_count > first.prompt_eval_count + first.eval_count


def test_generate_with_context(client):
    first = client.generate(model=MODEL, prompt="Name three colours.", options=QUICK)
    assert first.response and len(first.context) == first.prompt_eval_count + first.eval_count
    second = client.generate(model=MODEL, prompt="And three more.", context=first.context, options=QUICK)
    assert second.prompt_eval_count > len(first.context)
    text = "".join(part.response for part in client.generate(model=MODEL, prompt="Hello", stream=True, options=QUICK))
    assert text


def get_weather(city: str) -> str:
    """Get the weather of a city.

    Args:
      city: The name of the city
    """
    return f"It rains in {city}."


def test_tools_round_trip(client):
    """The answer is a call or has the format. Even a model this small does not find that it should say null."""
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    options = {"temperature": 0, "num_predict": 80}
    called = client.chat(model=MODEL, messages=messages, tools=[get_weather], format={"type": "null"}, options=options).message
    call = called.tool_calls[0].function
    assert call.name == "get_weather" and isinstance(call.arguments["city"], str)
    parts = client.chat(model=MODEL, messages=messages, tools=[get_weather], format={"type": "null"}, options=options, stream=True)
    assert [part.message.tool_calls for part in parts if part.message.tool_calls] == [called.tool_calls]
    messages += [called, {"role": "tool", "tool_name": call.name, "content": get_weather(**call.arguments)}]
    assert client.chat(model=MODEL, messages=messages, tools=[get_weather], options=QUICK).message.content


def test_structured_output(client):
    schema = {"type": "object", "properties": {"colours": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 3, "maxItems": 3}}, "required": ["colours"]}
    answer = client.chat(model=MODEL, messages=COLOURS, format=schema, options={"temperature": 0, "num_predict": 200})
    assert len(json.loads(answer.message.content)["colours"]) == 3
    answer = client.generate(model=MODEL, prompt="Describe a cat as JSON.", format="json", options={"temperature": 0, "num_predict": 200, "repeat_penalty": 1.2})
    assert answer.done_reason == "length" or isinstance(json.loads(answer.response), dict)


def test_thinking_is_asked_of_a_model_that_cannot(client):
    assert client.chat(model=MODEL, messages=COLOURS, think=True, options=QUICK).message.content


def test_embeddings(client):
    answer = client.embed(model="minilm", input=["a cat", "a dog", "the stock market"])
    first, second, third = answer.embeddings
    product = lambda a, b: sum(x * y for x, y in zip(a, b))
    assert product(first, second) > product(first, third)
    assert client.embeddings(model="minilm", prompt="a cat").embedding == pytest.approx(first, abs=1e-5)


def test_models_are_listed_and_shown(client):
    listed = {model.model: model for model in client.list().models}
    assert listed[f"{MODEL}:latest"].size > 10_000_000
    assert listed[f"{MODEL}:latest"].details.parameter_size.endswith("M")
    shown = client.show(MODEL)
    assert "tools" in shown.capabilities and shown.modelinfo["general.architecture"] == "llama"
    client.chat(model=MODEL, messages=[])
    assert [model.model for model in client.ps().models if model.model.startswith(MODEL)]


def test_models_are_made_copied_and_removed(client):
    client.create(model="pirate", from_=MODEL, system="You are a pirate.", parameters={"num_predict": 4, "temperature": 0})
    assert client.chat(model="pirate", messages=COLOURS).eval_count == 4
    assert client.copy("pirate", "buccaneer").status == "success"
    assert client.show("buccaneer").details.parent_model == MODEL
    assert client.delete("buccaneer").status == "success"
    with pytest.raises(ollama.ResponseError) as error:
        client.show("buccaneer")
    assert error.value.status_code == 404 and "not found" in error.value.error
    statuses = [step.status for step in client.create(model="pirate", from_=MODEL, stream=True)]
    assert statuses[-1] == "success"
    client.delete("pirate")


def test_pull_reports_its_progress(client):
    assert client.pull(MODEL).status == "success"
    assert [step.status for step in client.pull(MODEL, stream=True)][-1] == "success"
    with pytest.raises(ollama.ResponseError):
        client.pull("no-such-model")


def test_errors_are_told(client):
    with pytest.raises(ollama.ResponseError) as error:
        client.chat(model="none", messages=COLOURS)
    assert error.value.status_code == 404
    with pytest.raises(ollama.ResponseError) as error:
        client.chat(model=MODEL, messages=COLOURS, options={"num_ctx": -1})
    assert error.value.status_code == 400 and "num_ctx" in error.value.error
    with pytest.raises(ollama.ResponseError) as error:
        client.chat(model=MODEL, messages=[{"role": "user", "content": "word " * 20000}])
    assert "maximum context length" in error.value.error
