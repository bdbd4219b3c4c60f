"""Cohere's official client (v1 and v2), LangChain's shape of a request and Jina's: reranking with a real model (see reranker.py)."""

import os

import cohere
import httpx
import pytest
import requests

MODEL = os.environ.get("RUVLLM_TEST_RERANKER", "reranker")
# A passage that answers, among others that have nothing to do with the query. The model is small: it tells topics apart.
QUERIES = {
    "How many people live in Berlin?": [
        "The recipe needs two eggs and some flour.",
        "Berlin had a population of 3,520,031 registered inhabitants in an area of 891.82 square kilometers.",
        "Paris is the capital of France.",
    ],
    "What is the boiling point of water?": [
        "At sea level water boils at 100 degrees Celsius.",
        "The stock market fell sharply on Monday.",
        "Dogs are loyal animals.",
    ],
    "who wrote Hamlet": [
        "A ham omelette takes ten minutes.",
        "Hamlet is a city in North Carolina.",
        "The tragedy of Hamlet was written by William Shakespeare around 1600.",
    ],
    "how to reset my password": [
        "Our office is open from nine to five.",
        "The cat sleeps on the sofa.",
        "To change your forgotten password, click the reset link on the sign-in page.",
    ],
}
BEST = [1, 0, 2, 2]


@pytest.mark.parametrize(("query", "best"), zip(QUERIES, BEST, strict=True))
def test_cohere_v2_finds_the_passage_that_answers(url, query, best):
    client = cohere.ClientV2(api_key="any", base_url=url)
    answer = client.rerank(model=MODEL, query=query, documents=QUERIES[query], top_n=2, max_tokens_per_doc=200)
    assert len(answer.results) == 2 and answer.results[0].index == best
    assert 1 > answer.results[0].relevance_score > answer.results[1].relevance_score > 0
    assert answer.id and answer.meta.tokens.input_tokens > 30 and answer.meta.billed_units.search_units == 1


def test_cohere_v1_returns_documents(url):
    client = cohere.Client(api_key="any", base_url=url)
    (query, *_), documents = QUERIES, QUERIES["How many people live in Berlin?"]
    fields = [{"text": text, "title": "any"} for text in documents]
    answer = client.rerank(model=MODEL, query=query, documents=fields, rank_fields=["text"], return_documents=True)
    assert [result.document.text for result in answer.results] == [documents[result.index] for result in answer.results]
    assert answer.results[0].index == 1
    without = client.rerank(model=MODEL, query=query, documents=documents, return_documents=False)
    assert [result.index for result in without.results] == [result.index for result in answer.results]
    assert all(result.document is None for result in without.results)


def test_cohere_is_told_what_is_wrong(url, model):
    client = cohere.ClientV2(api_key="any", base_url=url)
    for options, param in [
        ({"documents": []}, "documents"),
        ({"documents": ["a", ""]}, "documents[1]"),
        ({"query": ""}, "query"),
        ({"model": model}, "model"),
        ({"model": "minilm"}, "model"),
    ]:
        with pytest.raises(cohere.BadRequestError) as error:
            client.rerank(**({"model": MODEL, "query": "a", "documents": ["b"]} | options))
        assert error.value.body["error"]["param"] == param


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
def test_jinas_shape(url, path):
    query = "who wrote Hamlet"
    body = {"model": MODEL, "query": query, "documents": QUERIES[query], "top_n": 2}
    response = requests.post(url + path, json=body, headers={"authorization": "Bearer any"}, timeout=60)
    response.raise_for_status()
    answer = response.json()
    assert answer["model"] == MODEL and answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] > 30
    best = answer["results"][0]
    assert best["index"] == 2 and best["document"] == {"text": QUERIES[query][2]}
    assert "x-ruvllm-ignored" not in response.headers


def test_what_has_no_effect_is_named(url):
    body = {"model": MODEL, "query": "a", "documents": ["b"], "rank_fields": ["text"], "overlap_tokens": 80}
    response = requests.post(f"{url}/v1/rerank", json=body, timeout=60)
    assert response.ok
    assert set(response.headers["x-ruvllm-ignored"].split(", ")) == {"overlap_tokens", "rank_fields"}


def test_a_client_that_hangs_up_does_no_harm(url):
    body = {"model": MODEL, "query": "a", "documents": ["word " * 400] * 1000}
    with pytest.raises(httpx.TimeoutException):
        httpx.post(f"{url}/v1/rerank", json=body, timeout=0.5)
    short = {"model": MODEL, "query": "a", "documents": ["b"]}
    assert requests.post(f"{url}/v1/rerank", json=short, timeout=60).ok
