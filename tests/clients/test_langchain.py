"""LangChain's standard tests of chat models, with its OpenAI integration.

The default model has 135M parameters. What it is too small for is marked below; everything else must pass. The penalty keeps it from going round
in circles. RUVLLM_TEST_WISE=1 expects the rest of a larger model as well.
"""

import os

import pytest
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

IS_WISE = bool(os.environ.get("RUVLLM_TEST_WISE"))
WISDOM = "the default model does not see when to call a tool, or which keys a prompt asks for"


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
            "stream_usage": True,
            "frequency_penalty": 0 if IS_WISE else 2,
        }

    @property
    def supports_json_mode(self):
        return True

    @property
    def has_tool_choice(self):
        return True

    @pytest.mark.xfail(not IS_WISE, reason=WISDOM)
    def test_json_mode(self, model):
        super().test_json_mode(model)

    @pytest.mark.xfail(not IS_WISE, reason=WISDOM)
    def test_agent_loop(self, model):
        super().test_agent_loop(model)

    @pytest.mark.xfail(not IS_WISE, reason=WISDOM)
    def test_unicode_tool_call_integration(self, model, **options):
        super().test_unicode_tool_call_integration(model, **options)
