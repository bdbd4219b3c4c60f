"""LangChain's and LlamaIndex's integrations of Ollama."""

import os

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from llama_index.core.llms import ChatMessage
from llama_index.llms.ollama import Ollama
from pydantic import BaseModel, Field

MODEL = os.environ["RUVLLM_TEST_MODEL"]
URL = os.environ["RUVLLM_TEST_OLLAMA_URL"]


class Colours(BaseModel):
    """Names of colours."""

    first: str = Field(max_length=12)
    second: str = Field(max_length=12)


def chat(**options):
    return ChatOllama(model=MODEL, base_url=URL, temperature=0, num_predict=64, **options)


def test_langchain_chat():
    model = chat(validate_model_on_init=True)
    answer = model.invoke("Name two colours.")
    assert answer.content and answer.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.content for chunk in model.stream("Name two colours.")) == answer.content


def test_langchain_structured_output():
    assert isinstance(chat().with_structured_output(Colours, method="json_schema").invoke("Name two colours."), Colours)


def test_langchain_tool_results():
    call = {"name": "Colours", "args": {"first": "red", "second": "blue"}, "id": "call-1"}
    history = [HumanMessage("Name two colours."), AIMessage("", tool_calls=[call]), ToolMessage("Fine.", tool_call_id="call-1")]
    assert chat().bind_tools([Colours]).invoke(history).response_metadata["done"]


def test_langchain_text_and_embeddings():
    assert OllamaLLM(model=MODEL, base_url=URL, num_predict=8).invoke("One, two,")
    vectors = OllamaEmbeddings(model="minilm", base_url=URL).embed_documents(["a", "b"])
    assert [len(vector) for vector in vectors] == [384, 384]


def llama_index():
    return Ollama(model=MODEL, base_url=URL, request_timeout=300, context_window=2048, additional_kwargs={"num_predict": 24, "temperature": 0})


def test_llama_index_chat():
    model = llama_index()
    messages = [ChatMessage(role="user", content="Name two colours.")]
    answer = model.chat(messages)
    assert answer.message.content
    assert list(model.stream_chat(messages))[-1].message.content == answer.message.content
    assert model.complete("Name two colours.").text


def test_llama_index_structured_output():
    model = Ollama(model=MODEL, base_url=URL, request_timeout=300, context_window=2048, additional_kwargs={"num_predict": 200, "temperature": 0})
    answer = model.as_structured_llm(Colours).chat([ChatMessage(role="user", content="Name two colours.")])
    assert isinstance(answer.raw, Colours)
