"""LangChain's standard tests of chat models, with its OpenAI integration. What the default model is too small for is told apart."""

import os

import pytest
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests


class TestRuvllm(ChatModelIntegrationTests):
    @property
    def chat_model_class(self):
        return ChatOpenAI

    @property
    def chat_model_params(self):
        return {
            "model": os.environ["RUVLLM_TEST_MODEL"],
            "base_url": os.environ["RUVLLM_TEST_URL"] + "/v1",
            "api_key": "any",
            "temperature": 0,
            "max_tokens": 512,
            "stream_usage": True, "frequency_penalty": 2.0,
        }

    @property
    def supports_image_inputs(self):
        return False

    @property
    def supports_json_mode(self):
        return True
