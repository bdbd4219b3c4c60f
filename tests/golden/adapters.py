"""Makes adapters/NAME: a random LoRA adapter for a tiny model of architectures/, and the logits that PEFT computes with both.

    pip install torch transformers peft safetensors numpy gguf
    python tests/golden/adapters.py [NAME…]

torch 2.15.0, transformers 5.23.0 and peft 0.21.2 were used.
"""

import json
import shutil
import sys
import zlib
from pathlib import Path

import gguf
import numpy
import peft
import torch
from safetensors.torch import load_file

import architectures
from architectures import ARCHITECTURES, VOCABULARY, new_model, rounded, set_weights

FOLDER = Path(__file__).parent / "adapters"
LENGTHS = (5, 40)
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
FEED_FORWARD = ["gate_proj", "up_proj", "down_proj"]
INVOCATION = [7, 11, 13]

# NAME: (base model, settings of LoRA)
ADAPTERS = {
    "llama3-qv": ("llama3", {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}),
    "llama3-all": ("llama3", {"r": 8, "lora_alpha": 8, "target_modules": "all-linear"}),
    "llama3-patterns": (
        "llama3",
        {
            "r": 4,
            "lora_alpha": 6,
            "use_rslora": True,
            "target_modules": ATTENTION + FEED_FORWARD,
            "rank_pattern": {"layers.1.self_attn.q_proj": 2, "down_proj": 3},
            "alpha_pattern": {"o_proj": 3, r"layers\.0\.mlp\.(gate|up)_proj": 10},
        },
    ),
    "llama3-activated": (
        "llama3",
        {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION, "alora_invocation_tokens": INVOCATION},
    ),
    "llama3-last-layer": (
        "llama3",
        {"r": 4, "lora_alpha": 8, "target_modules": ["o_proj", *FEED_FORWARD], "layers_to_transform": [1]},
    ),
    "qwen2-attention": ("qwen2", {"r": 5, "lora_alpha": 5, "target_modules": r".*self_attn\.(q|k|v|o)_proj"}),
    "qwen2-last-layer": (
        "qwen2",
        {"r": 4, "lora_alpha": 8, "target_modules": ["o_proj", *FEED_FORWARD], "layers_to_transform": [1]},
    ),
    "qwen3-all": ("qwen3", {"r": 4, "lora_alpha": 4, "target_modules": "all-linear"}),
    "gemma3-all": ("gemma3", {"r": 4, "lora_alpha": 4, "target_modules": ATTENTION + FEED_FORWARD}),
    "gemma4-all": ("gemma4", {"r": 4, "lora_alpha": 4, "target_modules": ATTENTION + FEED_FORWARD}),
    "phi3-all": ("phi3", {"r": 4, "lora_alpha": 4, "target_modules": "all-linear"}),
    "granite-all": ("granite", {"r": 4, "lora_alpha": 4, "target_modules": ATTENTION + FEED_FORWARD}),
    "smollm3-all": ("smollm3", {"r": 4, "lora_alpha": 4, "target_modules": ATTENTION + FEED_FORWARD}),
    "lfm2-all": (
        "lfm2",
        {
            "r": 4,
            "lora_alpha": 4,
            "target_modules": ["q_proj", "k_proj", "v_proj", "out_proj", "in_proj", "w1", "w2", "w3"],
        },
    ),
}
# Those that are also written as GGUF, as llama.cpp's converter does it.
AS_GGUF = ["llama3-all"]


def set_adapter(model, name):
    random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    for key, tensor in model.named_parameters():
        if "lora_" in key:
            tensor.copy_(rounded(torch.randn(tensor.shape, generator=random) * 0.7 * tensor.shape[1] ** -0.5))


def tokens_of(name, length):
    random = numpy.random.default_rng([zlib.crc32(name.encode()), length])
    tokens = random.integers(VOCABULARY, size=length).tolist()
    if name.endswith("-activated"):
        at = length // 2
        tokens[at : at + len(INVOCATION)] = INVOCATION
    return tokens[:length]


def answers(model, plain, name):
    found = []
    for length in LENGTHS:
        tokens = tokens_of(name, length)
        architectures.rounds_cache = True
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
        without = plain[length]
        architectures.rounds_cache = False
        apart = (logits - without).abs().max().item()
        print(f"{name} {length}: changes logits by up to {apart:.2f}", flush=True)
        assert apart > 0.1, "the adapter does next to nothing"
        rows = sorted({0, length // 2 - 1, length // 2, length - 1})
        found.append({"tokens": tokens, "rows": {str(row): architectures.digits(logits[row]) for row in rows}})
    return {"peft": peft.__version__, "torch": torch.__version__, "prompts": found}


def write_gguf(folder, base):
    """The same adapter as GGUF: rows of queries and keys that are rotated together become neighbours."""
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    settings = json.loads((folder / "adapter_config.json").read_text())
    config = architectures.configuration(base)
    writer = gguf.GGUFWriter(folder / "adapter.gguf", "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(settings["lora_alpha"]))
    for key, tensor in load_file(folder / "adapter_model.safetensors").items():
        _, _, _, _, layer, module, which, _ = key.replace("self_attn.", "self_attn-").replace("mlp.", "mlp-").split(".")
        module = module.replace("-", ".")
        data = tensor.float().numpy()
        heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}
        if which == "lora_B" and module in heads:
            halves = data.reshape(heads[module], 2, data.shape[0] // heads[module] // 2, data.shape[1])
            data = halves.swapaxes(1, 2).reshape(data.shape)
        writer.add_tensor(f"blk.{layer}.{names[module]}.weight.{which.lower()}", numpy.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(name):
    base, settings = ADAPTERS[name]
    model = new_model(base)
    set_weights(model, base, ARCHITECTURES[base][3])
    plain = {}
    for length in LENGTHS:
        architectures.rounds_cache = True
        plain[length] = architectures.one_pass(model, tokens_of(name, length))
        architectures.rounds_cache = False
    config = peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **settings)
    adapted = peft.get_peft_model(model, config).eval()
    set_adapter(adapted, name)
    reference = answers(adapted, plain, name)
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    adapted.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    (folder / "adapter_model.safetensors").chmod(0o644)
    (folder / "base").write_text(base + "\n")
    (folder / "logits.json").write_text(json.dumps(reference) + "\n")
    if name in AS_GGUF:
        write_gguf(folder, base)


if __name__ == "__main__":
    with torch.no_grad():
        for name in sys.argv[1:] or ADAPTERS:
            make(name)
