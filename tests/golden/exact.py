"""Writes exact.json: the logits of llama_cpp.json's prompts in plain float arithmetic.

Weights are dequantized and nothing is rounded, so this is what every quantized implementation approximates. Needs numpy
and the `gguf` package:

    python exact.py <SmolLM2-135M-Instruct.Q4_1.gguf>
"""

import json
import pathlib
import sys

import gguf
import numpy as np

HERE = pathlib.Path(__file__).parent
LAYERS, HEADS, KV_HEADS, HEAD_DIM = 30, 9, 3, 64
ROPE_BASE, EPSILON = 100_000.0, 1e-5


def norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * weight


def rotate(x):
    """Rotary positions on neighbouring pairs of [tokens, heads, head_dim]."""
    angles = np.arange(len(x))[:, None] * ROPE_BASE ** (-np.arange(HEAD_DIM // 2) * 2 / HEAD_DIM)
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    out = np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * cosine - x[..., 1::2] * sine
    out[..., 1::2] = x[..., 0::2] * sine + x[..., 1::2] * cosine
    return out


def attend(query, key, value):
    scores = query @ key.T / np.sqrt(HEAD_DIM)
    scores[np.triu_indices(len(scores), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value


def last_logits(weights, tokens):
    x = weights["token_embd.weight"][tokens]
    for layer in range(LAYERS):
        part = lambda name: weights[f"blk.{layer}.{name}.weight"]
        h = norm(x, part("attn_norm"))
        query = rotate((h @ part("attn_q").T).reshape(-1, HEADS, HEAD_DIM))
        key = rotate((h @ part("attn_k").T).reshape(-1, KV_HEADS, HEAD_DIM))
        value = (h @ part("attn_v").T).reshape(-1, KV_HEADS, HEAD_DIM)
        group = HEADS // KV_HEADS
        heads = [attend(query[:, i], key[:, i // group], value[:, i // group]) for i in range(HEADS)]
        x = x + np.concatenate(heads, -1) @ part("attn_output").T
        h = norm(x, part("ffn_norm"))
        gate = h @ part("ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ part("ffn_up").T)) @ part("ffn_down").T
    return norm(x[-1], weights["output_norm.weight"]) @ weights["token_embd.weight"].T


def main():
    reader = gguf.GGUFReader(sys.argv[1])
    weights = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
    exact = {}
    for prompt in json.loads((HERE / "llama_cpp.json").read_text())["prompts"]:
        logits = last_logits(weights, prompt["tokens"])
        exact[prompt["name"]] = [round(float(logits[token]), 4) for token, _ in prompt["top"]]
    (HERE / "exact.json").write_text(json.dumps(exact, separators=(",", ":")) + "\n")


main()
