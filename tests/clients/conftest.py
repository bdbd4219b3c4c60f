"""A live server, given by RUVLLM_TEST_URL and RUVLLM_TEST_MODEL (see tests/clients/run)."""

import os
import subprocess

import openai
import pytest


@pytest.fixture(scope="session")
def url():
    return os.environ["RUVLLM_TEST_URL"]


@pytest.fixture(scope="session")
def model():
    return os.environ["RUVLLM_TEST_MODEL"]


@pytest.fixture(scope="session")
def operator():
    """The headers of whoever may see what is remembered."""
    token = subprocess.run([os.environ["RUVLLM_BIN"], "keys", "token"], check=True, capture_output=True, text=True)
    return {"authorization": f"Bearer {token.stdout.strip()}"}


@pytest.fixture(scope="session")
def client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
