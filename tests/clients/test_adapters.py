"""OpenAI's official client with LoRA adapters: listed as models, answered by name, loaded and unloaded as with vLLM."""

import json
import os
import pathlib
import struct

import httpx
import openai
import pytest

LAYERS, HIDDEN, RANK = 30, 576, 4


def write_adapter(folder, value):
    """An adapter for SmolLM2-135M that changes all queries, as PEFT saves it."""
    folder.mkdir(parents=True, exist_ok=True)
    header, data = {}, bytearray()
    for layer in range(LAYERS):
        for matrix, shape in [("lora_A", [RANK, HIDDEN]), ("lora_B", [HIDDEN, RANK])]:
            count = shape[0] * shape[1]
            numbers = [value * ((i * 7 + layer * 13) % 11 - 5) for i in range(count)]
            begin = len(data)
            data += struct.pack(f"<{count}f", *numbers)
            name = f"base_model.model.model.layers.{layer}.self_attn.q_proj.{matrix}.weight"
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def adapter(url, operator):
    folder = write_adapter(pathlib.Path(os.environ["RUVLLM_TEST_ADAPTERS"]) / "colours", 0.02)
    body = {"lora_name": "colours", "lora_path": str(folder)}
    loaded = httpx.post(f"{url}/v1/load_lora_adapter", json=body, headers=operator, timeout=60)
    assert loaded.status_code == 200, loaded.text
    assert loaded.text == "Success: LoRA adapter 'colours' added successfully."
    yield "colours"
    gone = httpx.post(f"{url}/v1/unload_lora_adapter", json={"lora_name": "colours"}, headers=operator, timeout=60)
    assert gone.status_code == 200, gone.text


def ask(client, model, **options):
    messages = [{"role": "user", "content": "Name three colours."}]
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=16, temperature=0, **options)
    return answer.choices[0].message.content


def test_an_adapter_is_listed_beside_its_base(client, model, adapter):
    card = next(card for card in client.models.list() if card.id == adapter)
    assert card.parent == model and card.root == "colours"
    assert client.models.retrieve(f"{model}:{adapter}").parent == model


def test_an_adapter_answers_by_its_names(client, model, adapter):
    base, adapted = ask(client, model), ask(client, adapter)
    assert base != adapted
    assert ask(client, f"{model}:{adapter}") == adapted
    assert ask(client, model, extra_body={"adapter": adapter}) == adapted
    assert ask(client, model, extra_body={"adapter": [{"name": adapter, "weight": 0}]}) == base


def test_an_unknown_adapter_is_not_found(client, model, adapter):
    with pytest.raises(openai.NotFoundError) as told:
        ask(client, f"{model}:nothing")
    assert adapter in told.value.message
    with pytest.raises(openai.NotFoundError):
        ask(client, model, extra_body={"adapter": "nothing"})
