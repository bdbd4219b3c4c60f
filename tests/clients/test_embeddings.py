"""OpenAI's official client and LangChain: embeddings."""

import langchain_openai
import openai
import pytest

MODEL = "minilm"
TEXTS = ["a cat on a mat", "a kitten on a rug", "the tax declaration of 2021"]


def product(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_vectors_have_the_order_of_their_texts(client):
    # Unless told otherwise, the client asks for base64 and turns it into numbers.
    answer = client.embeddings.create(model=MODEL, input=TEXTS)
    assert answer.object == "list" and answer.model == MODEL
    assert [item.index for item in answer.data] == [0, 1, 2]
    vectors = [item.embedding for item in answer.data]
    assert {len(vector) for vector in vectors} == {384}
    assert product(vectors[0], vectors[1]) > product(vectors[0], vectors[2]) + 0.3
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 10


def test_both_formats_are_the_same(client):
    floats = client.embeddings.create(model=MODEL, input=TEXTS[0], encoding_format="float", dimensions=384)
    decoded = client.embeddings.create(model=MODEL, input=TEXTS[0])
    assert floats.data[0].embedding == pytest.approx(decoded.data[0].embedding, abs=1e-7)


def test_what_is_wrong_is_told_with_its_field(client, model):
    for options, param in [
        ({"input": TEXTS, "dimensions": 100}, "dimensions"),
        ({"input": ["fine", "word " * 1000]}, "input[1]"),
        ({"input": ""}, "input"),
        ({"input": "a", "model": model}, "model"),
    ]:
        with pytest.raises(openai.BadRequestError) as error:
            client.embeddings.create(**({"model": MODEL} | options))
        assert error.value.body["param"] == param
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hello"}])
    assert error.value.body["param"] == "model"


def test_langchain_finds_the_nearest(url):
    # Its own tokenizer is the one of OpenAI's models.
    embeddings = langchain_openai.OpenAIEmbeddings(
        model=MODEL, base_url=f"{url}/v1", api_key="any", check_embedding_ctx_length=False
    )
    vectors = embeddings.embed_documents(TEXTS)
    question = embeddings.embed_query("Where does the cat lie?")
    nearest = max(range(3), key=lambda index: product(vectors[index], question))
    assert nearest == 0
