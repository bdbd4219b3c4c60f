"""A live server, given by RUVLLM_TEST_URL and RUVLLM_TEST_MODEL (see tests/clients/run)."""

import os

import openai
import pytest


@pytest.fixture(scope="session")
def url():
    return os.environ["RUVLLM_TEST_URL"]


@pytest.fixture(scope="session")
def model():
    return os.environ["RUVLLM_TEST_MODEL"]


@pytest.fixture(scope="session")
def client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
