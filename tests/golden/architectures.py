"""Makes architectures/NAME: a tiny random model of each architecture, and the logits that transformers computes for it;
and candle/NAME for those that the candle backend runs.

    pip install torch transformers safetensors numpy
    python tests/golden/architectures.py LLAMA_CPP_FOLDER [NAME…]

LLAMA_CPP_FOLDER is a source tree of llama.cpp (e.g. `vendor/llama.cpp` in the source package of llama-cpp-python): its
converter writes the GGUF file, all but the vocabulary, so keys, names and permutations are those of real files.
torch 2.15.0, transformers 5.23.0 and llama-cpp-python 0.3.36 were used.
"""

import copy
import json
import logging
import shutil
import sys
import tempfile
import zlib
from pathlib import Path

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file

FOLDER = Path(__file__).parent / "architectures"
CANDLE_FOLDER = Path(__file__).parent / "candle"
VOCABULARY = 256
LENGTHS = (5, 40, 180)
WINDOW = 24
# An expert is chosen by a score that is ahead of the next by this much, or rounding could choose another.
ROUTER_MARGIN = 0.03

BASE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.5],
    "long_factor": [1.1, 1.5, 2.1, 3.0, 4.5, 6.0],
}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
GEMMA4_ROPE = {
    "sliding_attention": PLAIN,
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
}
# Layers without a norm of queries and keys: wide weights, so that attention has peaks.
PEAKS = {"q_proj.weight": 1.4, "k_proj.weight": 1.4}
NORM_PEAKS = {"q_norm.weight": 1.6, "k_norm.weight": 1.6, "q_layernorm.weight": 1.6, "k_layernorm.weight": 1.6}

# NAME: (configuration, model, what differs from BASE, gain of weights by the end of their names,
#        changes of the configuration, each of which has to change the logits, more rows to keep)
ARCHITECTURES = {
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {
            # The sixth is global.
            "num_hidden_layers": 7,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "intermediate_size": 32,
            "query_pre_attn_scalar": 16,
            "sliding_window": WINDOW,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            },
        },
        {},
        [
            {"sliding_window": WINDOW - 1},
            {"sliding_window": WINDOW + 1},
            {"query_pre_attn_scalar": 32},
            {"rope_parameters.full_attention": {"rope_type": "default", "rope_theta": 1000000.0}},
            {"rope_parameters.sliding_attention": {"rope_type": "default", "rope_theta": 1000000.0}},
            {"layer_types": ["sliding_attention"] * 7},
        ],
        [],
    ),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
            "rope_parameters": PLAIN,
        },
        PEAKS,
        [
            {"sliding_window": WINDOW - 1},
            {"sliding_window": WINDOW + 1},
            {"attn_logit_softcapping": None},
            {"final_logit_softcapping": None},
            {"layer_types": ["full_attention", "sliding_attention"]},
        ],
        [],
    ),
    "phi3": (
        "Phi3Config",
        "Phi3ForCausalLM",
        {
            "rope_parameters": PLAIN | {"partial_rotary_factor": 0.75},
            "original_max_position_embeddings": 512,
        },
        {"qkv_proj.weight": 1.5},
        [{"rope_parameters.rope_theta": 1000.0}],
        [],
    ),
    "phi3-longrope": (
        "Phi3Config",
        "Phi3ForCausalLM",
        {
            "rope_parameters": LONGROPE | {"partial_rotary_factor": 0.75},
            "original_max_position_embeddings": 64,
        },
        {"qkv_proj.weight": 1.5},
        [
            {"rope_parameters.long_factor": LONGROPE["short_factor"]},
            {"rope_parameters.attention_factor": 1.0},
        ],
        [],
    ),
    "smollm3": (
        "SmolLM3Config",
        "SmolLM3ForCausalLM",
        {
            "num_hidden_layers": 4,
            "intermediate_size": 32,
            "rope_parameters": PLAIN,
        },
        PEAKS,
        [{"no_rope_layers": [1, 1, 1, 1]}, {"no_rope_layers": [0, 1, 1, 1]}],
        [],
    ),
    "granite": (
        "GraniteConfig",
        "GraniteForCausalLM",
        {
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.5,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.125,
            "tie_word_embeddings": True,
            "rope_parameters": PLAIN,
        },
        {
            "q_proj.weight": 2.0,
            "k_proj.weight": 2.0,
            "o_proj.weight": 4.0,
            "down_proj.weight": 5.0,
            "embed_tokens.weight": 2.5,
        },
        [
            {"embedding_multiplier": 1.0},
            {"logits_scaling": 1.0},
            {"residual_multiplier": 1.0},
            {"attention_multiplier": 0.25},
        ],
        [],
    ),
    "llama3": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {
            "head_dim": 32,
            "intermediate_size": 32,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        PEAKS,
        [{"rope_parameters": PLAIN}, {"rope_parameters.factor": 4.0}, {"rope_parameters.high_freq_factor": 2.0}],
        [],
    ),
    "llama-linear": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {"attention_bias": True, "rope_parameters": PLAIN | {"rope_type": "linear", "factor": 4.0}},
        PEAKS,
        [{"rope_parameters": PLAIN}],
        [],
    ),
    "llama-yarn": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {"head_dim": 32, "intermediate_size": 32, "rope_parameters": YARN},
        PEAKS,
        [
            {"rope_parameters": PLAIN},
            {"rope_parameters.attention_factor": 1.0},
            {"rope_parameters.beta_fast": 32.0},
            {"rope_parameters.original_max_position_embeddings": 128},
        ],
        [],
    ),
    "mistral-window": (
        "MistralConfig",
        "MistralForCausalLM",
        {"head_dim": 32, "intermediate_size": 32, "sliding_window": WINDOW, "rope_parameters": PLAIN},
        PEAKS,
        [{"sliding_window": WINDOW - 1}, {"sliding_window": WINDOW + 1}, {"sliding_window": None}],
        [],
    ),
    "ministral3": (
        "Ministral3Config",
        "Ministral3ForCausalLM",
        {
            "head_dim": 32,
            "intermediate_size": 32,
            "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4},
        },
        PEAKS,
        [
            {"rope_parameters.llama_4_scaling_beta": 0.0},
            {"rope_parameters.attention_factor": 1.2},
            {"rope_parameters.factor": 1.0},
        ],
        [63, 64, 127, 128],
    ),
    "qwen3": (
        "Qwen3Config",
        "Qwen3ForCausalLM",
        {"head_dim": 32, "intermediate_size": 32, "tie_word_embeddings": True, "rope_parameters": PLAIN},
        NORM_PEAKS,
        [{"rope_parameters.rope_theta": 1000.0}],
        [],
    ),
    "qwen2": (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        {"rope_parameters": PLAIN},
        PEAKS,
        [{"rope_parameters.rope_theta": 1000.0}],
        [],
    ),
    "qwen3moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {
            "head_dim": 32,
            "tie_word_embeddings": True,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "rope_parameters": PLAIN,
        },
        NORM_PEAKS | {"mlp.gate.weight": 2.0},
        [{"norm_topk_prob": False}, {"num_experts_per_tok": 1}],
        [],
    ),
    "gpt-oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        {
            "head_dim": 32,
            "intermediate_size": 32,
            "num_local_experts": 8,
            "num_experts_per_tok": 4,
            "sliding_window": WINDOW,
            "rope_parameters": YARN | {"rope_theta": 150000.0, "truncate": False},
        },
        PEAKS | {"router.weight": 2.0, "sinks": 3.0, "experts.gate_up_proj": 3.0, "router.bias": 2.0},
        [
            {"sliding_window": WINDOW - 1},
            {"sliding_window": WINDOW + 1},
            {"layer_types": ["full_attention", "sliding_attention"]},
            {"rope_parameters.truncate": True},
            {"swiglu_limit": 100.0},
            {"swiglu_alpha": 1.0},
        ],
        [],
    ),
    "lfm2": (
        "Lfm2Config",
        "Lfm2ForCausalLM",
        {
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "block_auto_adjust_ff_dim": False,
            "rope_parameters": PLAIN,
        },
        NORM_PEAKS | {"conv.in_proj.weight": 1.5, "self_attn.out_proj.weight": 3.0},
        [{"rope_parameters.rope_theta": 1000.0}],
        [2, 3],
    ),
    "lfm2moe": (
        "Lfm2MoeConfig",
        "Lfm2MoeForCausalLM",
        {
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "num_dense_layers": 1,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "rope_parameters": PLAIN,
        },
        NORM_PEAKS
        | {"conv.in_proj.weight": 1.5, "self_attn.out_proj.weight": 3.0, "gate.weight": 2.0, "expert_bias": 0.5},
        [{"norm_topk_prob": False}, {"use_expert_bias": False}],
        [2, 3],
    ),
    "qwen35": (
        "Qwen3_5TextConfig",
        "Qwen3_5ForCausalLM",
        {
            "num_hidden_layers": 4,
            "head_dim": 32,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "intermediate_size": 32,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "tie_word_embeddings": True,
            "rope_parameters": PLAIN
            | {"partial_rotary_factor": 0.5, "mrope_section": [3, 3, 2], "mrope_interleaved": True},
        },
        NORM_PEAKS,
        [{"rope_parameters.rope_theta": 1000.0}, {"rope_parameters.partial_rotary_factor": 1.0}],
        [2, 3, 63, 64],
    ),
    "qwen35moe": (
        "Qwen3_5MoeTextConfig",
        "Qwen3_5MoeForCausalLM",
        {
            "num_hidden_layers": 4,
            "head_dim": 32,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
            "tie_word_embeddings": True,
            "rope_parameters": PLAIN
            | {"partial_rotary_factor": 0.5, "mrope_section": [3, 3, 2], "mrope_interleaved": True},
        },
        NORM_PEAKS | {"mlp.gate.weight": 2.0},
        [{"num_experts_per_tok": 1}],
        [2, 3, 63, 64],
    ),
    # As E2B and E4B: embeddings per layer, layers that use keys and values of earlier ones.
    "gemma4": (
        "Gemma4TextConfig",
        "Gemma4ForCausalLM",
        {
            "num_hidden_layers": 5,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "global_head_dim": 32,
            "intermediate_size": 32,
            "sliding_window": WINDOW,
            "layer_types": [*["sliding_attention"] * 2, "full_attention", "sliding_attention", "full_attention"],
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 32,
            "vocab_size_per_layer_input": VOCABULARY,
            "final_logit_softcapping": 3.0,
            "rope_parameters": GEMMA4_ROPE,
        },
        {"q_norm.weight": 0.7, "k_norm.weight": 0.7},
        [
            {"sliding_window": WINDOW - 1},
            {"sliding_window": WINDOW + 1},
            {"final_logit_softcapping": None},
            {"rope_parameters.full_attention.partial_rotary_factor": 0.5},
        ],
        [],
    ),
    # As 26B-A4B: experts beside a dense feed-forward, keys that are the values too.
    "gemma4-moe": (
        "Gemma4TextConfig",
        "Gemma4ForCausalLM",
        {
            "num_hidden_layers": 2,
            "head_dim": 16,
            "global_head_dim": 32,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "intermediate_size": 32,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": VOCABULARY,
            "enable_moe_block": True,
            "num_experts": 8,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
            "final_logit_softcapping": 3.0,
            "rope_parameters": GEMMA4_ROPE,
        },
        {"q_norm.weight": 0.7, "k_norm.weight": 0.7, "router.proj.weight": 16.0},
        [
            {"sliding_window": WINDOW - 1},
            {"sliding_window": WINDOW + 1},
            {"top_k_experts": 1},
            {"rope_parameters.full_attention.partial_rotary_factor": 0.5},
        ],
        [],
    ),
}

# The same for the candle backend, which keeps keys and values as floats.
CANDLE = {
    "llama": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {"intermediate_size": 32, "rope_parameters": PLAIN},
        PEAKS,
        [{"rope_parameters.rope_theta": 1000.0}],
        [],
    ),
    "phi2": (
        "PhiConfig",
        "PhiForCausalLM",
        {"num_key_value_heads": 4, "rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}},
        PEAKS,
        [{"rope_parameters.rope_theta": 1000.0}, {"rope_parameters.partial_rotary_factor": 1.0}],
        [],
    ),
    "glm4": (
        "Glm4Config",
        "Glm4ForCausalLM",
        {
            "head_dim": 32,
            "intermediate_size": 32,
            "attention_bias": True,
            "rope_parameters": PLAIN | {"partial_rotary_factor": 0.5},
        },
        PEAKS,
        [{"rope_parameters.rope_theta": 1000.0}, {"rope_parameters.partial_rotary_factor": 1.0}],
        [],
    ),
}
ARCHITECTURES |= CANDLE


def rounded(tensor):
    """To what bf16 can hold."""
    return tensor.to(torch.bfloat16).float()


def set_weights(model, name, gains):
    """Random weights that give activations of about 1, and nothing that could be left out unnoticed."""
    random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    # Gemma's and Qwen3.5's norms multiply by 1 + weight.
    around_0 = name.split("-")[0] in ("gemma2", "gemma3", "qwen35", "qwen35moe")
    tied = model.config.tie_word_embeddings
    for key, tensor in model.state_dict().items():
        if key == "lm_head.weight" and tied:
            continue
        gain = next((gain for end, gain in gains.items() if key.endswith(end)), 1.0)
        uniform = torch.rand(tensor.shape, generator=random)
        normal = torch.randn(tensor.shape, generator=random)
        if "norm" in key.rsplit(".", 2)[-2] and key.endswith("weight"):
            value = (uniform + 0.5) * gain
            if around_0 and not key.endswith("linear_attn.norm.weight"):
                # A multiple of 2^-7, so that adding 1 is exact.
                value = (value * 128).round() / 128 - 1
        elif key.endswith("embed_tokens.weight"):
            # Logits are sums over the hidden width.
            value = normal * gain * tensor.shape[1] ** -0.5
        elif key.endswith("A_log"):
            # From almost no decay to a strong one.
            value = uniform * 4.5 - 4
        elif key.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
            value = uniform + 0.5
        elif tensor.dim() == 1 or key.endswith("_bias"):
            value = normal * 0.3 * gain
        elif "conv" in key and tensor.dim() == 3 and tensor.shape[1] == 1:
            value = normal * gain * tensor.shape[2] ** -0.5
        else:
            # Experts of gpt-oss are stored transposed.
            inputs = tensor.shape[-2] if name == "gpt-oss" and "experts" in key else tensor.shape[-1]
            value = normal * gain * inputs**-0.5
        tensor.copy_(rounded(value))


def change(settings, changes):
    """A copy with `a.b` replaced in the dictionaries."""
    settings = copy.deepcopy(settings)
    for path, value in changes.items():
        *outer, last = path.split(".")
        place = settings
        for key in outer:
            place = place[key]
        place[last] = value
    return settings


def configuration(name, changes={}):
    kind, model, settings, *_ = ARCHITECTURES[name]
    kind = getattr(transformers, kind)
    base = {key: value for key, value in BASE.items() if hasattr(kind, key)}
    return kind(**change(base | settings, changes), attn_implementation="eager", architectures=[model])


def new_model(name, changes={}):
    torch.manual_seed(0)
    kind = getattr(transformers, ARCHITECTURES[name][1])
    round_cache(sys.modules[kind.__module__])
    return kind(configuration(name, changes)).float().eval()


rounds_cache = False


def round_cache(module):
    """Makes attention round keys and values to half floats where `rounds_cache` says so."""
    attend = getattr(module, "eager_attention_forward", None)
    if attend is None or hasattr(attend, "rounds"):
        return

    def rounding(layer, query, key, value, *arguments, **named):
        if rounds_cache:
            key, value = key.half().float(), value.half().float()
        return attend(layer, query, key, value, *arguments, **named)

    rounding.rounds = True
    module.eager_attention_forward = rounding


def one_pass(model, tokens):
    return model(torch.tensor([tokens]), use_cache=False).logits[0]


def one_by_one(model, tokens):
    rope, short = getattr(model.model, "rotary_emb", None), None
    if getattr(rope, "rope_type", None) == "longrope" and len(tokens) > original_context(model):
        # In one pass all of a long text has the long factors, and so it has here.
        short, rope.original_inv_freq = rope.original_inv_freq, rope.long_inv_freq
    cache, rows = None, []
    for token in tokens:
        output = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        rows.append(output.logits[0, -1])
    if short is not None:
        rope.original_inv_freq = short
    return torch.stack(rows)


def original_context(model):
    return model.config.rope_parameters.get("original_max_position_embeddings")


def margins(model, tokens):
    """How far the last expert that is chosen was ahead of the first that is not: the least of all layers, per token."""
    least = torch.full((len(tokens),), float("inf"))

    def see(module, arguments, output):
        scores = output[0]
        if len(arguments) > 1 and arguments[1] is not None:
            scores = scores.sigmoid() + arguments[1]
        elif type(module).__name__ == "Gemma4TextRouter":
            scores = scores.log()
        best = scores.sort(dim=-1, descending=True).values
        chosen = output[2].shape[-1]
        torch.minimum(least, best[:, chosen - 1] - best[:, chosen], out=least)

    hooks = [m.register_forward_hook(see) for m in model.modules() if type(m).__name__.endswith("Router")]
    if hooks:
        one_pass(model, tokens)
    for hook in hooks:
        hook.remove()
    return least


def prompt(model, name, length):
    random = numpy.random.default_rng([zlib.crc32(name.encode()), length])
    tokens = random.integers(VOCABULARY, size=length).tolist()
    while len(close := (margins(model, tokens) < ROUTER_MARGIN).nonzero()):
        tokens[close[0]] = int(random.integers(VOCABULARY))
    return tokens


def rows_of(name, length):
    rows = {0, length // 2, length - 1, *(row for row in ARCHITECTURES[name][5] if row < length)}
    # Ends of pages of 16 tokens, and of the window.
    rows |= {row for row in (15, 16, WINDOW - 1, WINDOW, 2 * WINDOW, 64) if row < length - 1 and length > 5}
    return sorted(rows)


def convert(llama_cpp, source, target, name):
    """Runs llama.cpp's converter, without a vocabulary."""
    sys.path.insert(0, str(llama_cpp))
    sys.path.insert(0, str(llama_cpp / "gguf-py"))
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    logging.getLogger("hf-to-gguf").setLevel(logging.ERROR)
    kind = get_model_class(get_model_architecture(ModelBase.load_hparams(source, False), ModelType.TEXT))
    if kind.supports_mtp_export:
        kind.no_mtp = True
    # Gemma counts the tokens of this file.
    words = {f"t{i}": i for i in range(VOCABULARY)}
    (source / "tokenizer.json").write_text(json.dumps({"model": {"vocab": words}, "added_tokens": []}))
    converter = kind(source, gguf.LlamaFileType.MOSTLY_BF16, target, model_name=name)
    writer = getattr(converter, "impl", converter)

    def set_vocab():
        writer.gguf_writer.add_tokenizer_model("none")
        writer.gguf_writer.add_vocab_size(VOCABULARY)

    writer.set_vocab = set_vocab
    converter.write()
    (source / "tokenizer.json").unlink()


FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def to_mxfp4(rows):
    """Codes of 4 bits, of which two are in a byte, the first in its low half, and an exponent for each 32 of a row."""
    blocks = rows.reshape(*rows.shape[:-1], -1, 32)
    exponents = blocks.abs().amax(dim=-1).log2().floor() - 2
    scaled = blocks / exponents.exp2().unsqueeze(-1)
    codes = (scaled.abs().unsqueeze(-1) - FP4).abs().argmin(dim=-1) + 8 * (scaled < 0)
    packed = codes[..., ::2] + 16 * codes[..., 1::2]
    values = FP4[codes % 8] * torch.where(codes < 8, 1.0, -1.0) * exponents.exp2().unsqueeze(-1)
    return packed.to(torch.uint8), (exponents + 127).to(torch.uint8), values.reshape(rows.shape)


def mxfp4_experts(model):
    """Rounds the experts of gpt-oss to MXFP4. Returns them as its checkpoints hold them."""
    tensors = {}
    for key, tensor in model.state_dict().items():
        if key.endswith(("experts.gate_up_proj", "experts.down_proj")):
            packed, exponents, values = to_mxfp4(tensor.transpose(1, 2))
            tensor.copy_(values.transpose(1, 2))
            tensors |= {key + "_blocks": packed.contiguous(), key + "_scales": exponents.contiguous()}
    return tensors


def save_mxfp4(folder, tensors):
    """`folder/mxfp4`: the checkpoint of `folder`, as gpt-oss is distributed."""
    target = folder / "mxfp4"
    target.mkdir()
    whole = load_file(folder / "model.safetensors")
    kept = {key: value for key, value in whole.items() if key + "_blocks" not in tensors}
    save_file(kept | tensors, target / "model.safetensors", metadata={"format": "pt"})
    (target / "model.safetensors").chmod(0o644)
    settings = json.loads((folder / "config.json").read_text())
    settings["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    }
    (target / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    return target


def answers_of(model, name):
    global rounds_cache
    answers = []
    for length in LENGTHS:
        tokens = prompt(model, name, length)
        apart = (one_pass(model, tokens) - one_by_one(model, tokens)).abs().max().item()
        assert apart < 1e-4, "one pass and one by one differ"
        # As a KV cache holds them; all else is computed in 32 bits.
        rounds_cache = name not in CANDLE
        logits = one_pass(model, tokens)
        rounds_cache = False
        print(f"{name} {length}: standard deviation {logits.std():.3f}, one by one {apart:.1e}", flush=True)
        answer = {"tokens": tokens, "rows": {str(row): digits(logits[row]) for row in rows_of(name, length)}}
        if model.config.rope_parameters.get("rope_type") == "longrope":
            answer["factors"] = "long" if length > original_context(model) else "short"
        answers.append(answer)
    return {"transformers": transformers.__version__, "torch": torch.__version__, "prompts": answers}


def make(name, llama_cpp):
    _, kind, _, gains, mutations, _ = ARCHITECTURES[name]
    root = CANDLE_FOLDER if name in CANDLE else FOLDER
    root.mkdir(exist_ok=True)
    model = new_model(name)
    set_weights(model, name, gains)
    experts = mxfp4_experts(model) if name == "gpt-oss" else None
    with tempfile.TemporaryDirectory(dir=root, prefix=".") as temporary:
        folder = Path(temporary) / name
        # Written as bf16 and read again as f32: what the files hold is what is computed with.
        copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
        (folder / "model.safetensors").chmod(0o644)
        (folder / "generation_config.json").unlink(missing_ok=True)
        weights = model.state_dict()
        model = getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        model.eval()
        for key, value in model.state_dict().items():
            assert torch.equal(value, weights[key]), key

        reference = answers_of(model, name)
        (folder / "logits.json").write_text(json.dumps(reference) + "\n")
        check(model, name, reference["prompts"][-1]["tokens"], mutations)
        source = save_mxfp4(folder, experts) if experts else folder
        convert(llama_cpp, source, folder / "model.gguf", name)
        if name == "mistral-window":
            add_window(folder)
        if experts:
            widen(folder)
        if name in CANDLE:
            # Its tests are of GGUF files.
            (folder / "model.safetensors").unlink()
            (folder / "config.json").unlink()
        shutil.rmtree(root / name, ignore_errors=True)
        folder.rename(root / name)


def rewrite(source, target, change=lambda tensor: (tensor.data, tensor.tensor_type), more=lambda writer: None):
    """Copies a GGUF file with other tensors or more keys."""
    import gguf

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            writer.add_key_value(field.name, field.contents(), field.types[0])
    more(writer)
    for tensor in reader.tensors:
        data, kind = change(tensor)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_window(folder):
    """llama.cpp's converter leaves Mistral's window out; it is added where others have it."""
    (folder / "model.gguf").rename(folder / "full.gguf")
    rewrite(folder / "full.gguf", folder / "model.gguf", more=lambda writer: writer.add_sliding_window(WINDOW))
    (folder / "full.gguf").unlink()


def widen(folder):
    """`quantized.gguf` is as real files are; in `model.gguf` the experts are floats of the same values, so that no
    implementation has to round what it multiplies them with."""
    import gguf

    def widened(tensor):
        if tensor.tensor_type != gguf.GGMLQuantizationType.MXFP4:
            return tensor.data, tensor.tensor_type
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type), gguf.GGMLQuantizationType.F32

    (folder / "model.gguf").rename(folder / "quantized.gguf")
    rewrite(folder / "quantized.gguf", folder / "model.gguf", widened)


def digits(row):
    return [round(value, 6) for value in row.tolist()]


def check(model, name, tokens, mutations):
    """That the logits would show a mistake."""
    logits, rows = one_pass(model, tokens), rows_of(name, len(tokens))
    assert 0.4 < logits.std() < 2.5, "logits are too small or too large"
    other = [(tokens[0] + 1) % VOCABULARY, *tokens[1:]]
    moved = (one_pass(model, other) - logits).abs().max(dim=-1).values
    print(f"{name}: another first token moves rows 4, 30 and the last by {moved[[4, 30, -1]].tolist()}", flush=True)
    assert moved[4] > 0.1 and moved[30] > 0.1
    for mutation in mutations:
        mutant = new_model(name, mutation)
        assert not mutant.load_state_dict(model.state_dict(), strict=False).missing_keys
        moved = (one_pass(mutant, tokens) - logits).abs()[rows].max().item()
        print(f"{name}: {mutation} moves a logit by {moved:.3f}", flush=True)
        assert moved > 0.05, "too little to be seen"


def main():
    torch.set_num_threads(1)
    llama_cpp, *names = sys.argv[1:]
    with torch.no_grad():
        for name in names or ARCHITECTURES:
            make(name, Path(llama_cpp))


if __name__ == "__main__":
    main()
