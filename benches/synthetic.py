"""Writes models with the shapes of real ones and random weights, to measure with where the real ones cannot be had.

    pip install gguf
    python3 benches/synthetic.py qwen35-0.8b TOKENIZER.gguf OUT.gguf [--type q4_k_m]

The vocabulary and tokenizer are those of TOKENIZER.gguf, filled up with unused tokens. What such a model says means nothing; how fast
it says it is what the real one would do, in RuvLLM and in llama.cpp.
"""

import argparse

import numpy
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, GGUFWriter, GGUFValueType

RANDOM = numpy.random.default_rng(7)


def half(value):
    return numpy.frombuffer(numpy.float16(value).tobytes(), dtype=numpy.uint8)


def blocks(kind, count):
    """Random blocks of a type, whose weights are about 0.02 in size."""
    bits = RANDOM.integers(0, 256, size=(count, {Type.Q4_0: 18, Type.Q8_0: 34, Type.Q4_K: 144, Type.Q6_K: 210}[kind]), dtype=numpy.uint8)
    if kind == Type.Q4_0:
        bits[:, :2] = half(0.004)
    elif kind == Type.Q8_0:
        bits[:, :2] = half(0.0003)
    elif kind == Type.Q4_K:
        bits[:, 0:2] = half(0.0001)
        bits[:, 2:4] = half(0.0008)
    elif kind == Type.Q6_K:
        bits[:, 192:208] = RANDOM.integers(1, 64, size=(count, 16), dtype=numpy.uint8)
        bits[:, 208:] = half(0.00003)
    return bits


BLOCK = {Type.Q4_0: 32, Type.Q8_0: 32, Type.Q4_K: 256, Type.Q6_K: 256}
CHUNK = 1 << 16


def tensor(kind, shape):
    """A tensor of `shape`, rows last but one; a few thousand different blocks in random order."""
    if kind == Type.F32:
        return (RANDOM.standard_normal(shape) * 0.02).astype(numpy.float32)
    *outer, cols = shape
    per_row = cols // BLOCK[kind]
    assert cols % BLOCK[kind] == 0, f"{cols} columns are not whole blocks of {kind}"
    count = int(numpy.prod(outer)) * per_row
    pool = blocks(kind, min(count, CHUNK))
    repeated = numpy.resize(pool, (count, pool.shape[1]))
    return repeated.reshape(*outer, per_row * pool.shape[1])


class Model:
    def __init__(self, arch, path, tokenizer, vocabulary, mixture):
        self.writer = GGUFWriter(path, arch)
        self.arch, self.mixture, self.vocabulary = arch, mixture, vocabulary
        self.copy_tokenizer(tokenizer)

    def copy_tokenizer(self, path):
        reader = GGUFReader(path)
        for key, field in reader.fields.items():
            if not key.startswith("tokenizer."):
                continue
            value = field.contents()
            if key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.scores"):
                filler = {"tokens": lambda i: f"<unused{i}>", "token_type": lambda i: 5, "scores": lambda i: -1e4}[key.rsplit(".", 1)[1]]
                value = value[: self.vocabulary] + [filler(i) for i in range(len(value), self.vocabulary)]
            sub = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            self.writer.add_key_value(key, value, field.types[0], sub)

    def number(self, key, value):
        add = self.writer.add_float32 if isinstance(value, float) else self.writer.add_uint32
        add(f"{self.arch}.{key}", value)

    def numbers(self, **values):
        for key, value in values.items():
            self.number(key.replace("__", "."), value)

    def weight(self, name, *shape, more=False, kind=None):
        """`shape` as numpy has it: columns last. `more` are those that mixtures give more bits."""
        if kind is None:
            kind = {"q4_0": Type.Q4_0, "q8_0": Type.Q8_0, "q4_k_m": Type.Q6_K if more else Type.Q4_K}[self.mixture]
        self.writer.add_tensor(name, tensor(kind, shape), raw_dtype=kind)

    def norm(self, name, size):
        self.writer.add_tensor(name, numpy.ones(size, dtype=numpy.float32))

    def output(self, hidden):
        kind = Type.Q8_0 if self.mixture == "q8_0" else Type.Q6_K
        self.weight("token_embd.weight", self.vocabulary, hidden, kind=kind)
        self.norm("output_norm.weight", hidden)

    def finish(self):
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def more_bits(layer, layers):
    """The layers whose values and down projections llama.cpp's Q4_K_M stores in 6 bits."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def attention(model, layer, layers, hidden, heads, kv_heads, dim, qk_norm=True, gated=False):
    name = f"blk.{layer}."
    model.weight(name + "attn_q.weight", heads * dim * (2 if gated else 1), hidden)
    model.weight(name + "attn_k.weight", kv_heads * dim, hidden)
    model.weight(name + "attn_v.weight", kv_heads * dim, hidden, more=more_bits(layer, layers))
    model.weight(name + "attn_output.weight", hidden, heads * dim)
    if qk_norm:
        model.norm(name + "attn_q_norm.weight", dim)
        model.norm(name + "attn_k_norm.weight", dim)


def feed_forward(model, layer, layers, hidden, width):
    name = f"blk.{layer}."
    model.weight(name + "ffn_gate.weight", width, hidden)
    model.weight(name + "ffn_up.weight", width, hidden)
    model.weight(name + "ffn_down.weight", hidden, width, more=more_bits(layer, layers))


def qwen35(path, tokenizer, mixture, hidden=1024, layers=24, width=3584, heads=8, kv_heads=2, dim=256, key_heads=16, value_heads=16, state=128, vocabulary=248320):
    model = Model("qwen35", path, tokenizer, vocabulary, mixture)
    model.numbers(
        block_count=layers, context_length=32768, embedding_length=hidden, feed_forward_length=width, attention__head_count=heads,
        attention__head_count_kv=kv_heads, attention__key_length=dim, attention__value_length=dim, rope__dimension_count=dim // 4,
        rope__freq_base=1e7, attention__layer_norm_rms_epsilon=1e-6, full_attention_interval=4, ssm__conv_kernel=4, ssm__state_size=state,
        ssm__group_count=key_heads, ssm__time_step_rank=value_heads, ssm__inner_size=value_heads * state,
    )
    model.writer.add_array("qwen35.rope.dimension_sections", [dim // 8 * 3 // 8, dim // 8 * 3 // 8, dim // 8 // 4, 0])
    model.output(hidden)
    for layer in range(layers):
        name = f"blk.{layer}."
        model.norm(name + "attn_norm.weight", hidden)
        model.norm(name + "post_attention_norm.weight", hidden)
        feed_forward(model, layer, layers, hidden, width)
        if layer % 4 == 3:
            attention(model, layer, layers, hidden, heads, kv_heads, dim, gated=True)
            continue
        inner = value_heads * state
        channels = 2 * key_heads * state + inner
        model.weight(name + "attn_qkv.weight", channels, hidden)
        model.weight(name + "attn_gate.weight", inner, hidden)
        model.weight(name + "ssm_alpha.weight", value_heads, hidden, kind=Type.Q8_0)
        model.weight(name + "ssm_beta.weight", value_heads, hidden, kind=Type.Q8_0)
        model.weight(name + "ssm_out.weight", hidden, inner)
        model.weight(name + "ssm_conv1d.weight", channels, 4, kind=Type.F32)
        model.writer.add_tensor(name + "ssm_a", -numpy.ones(value_heads, dtype=numpy.float32))
        model.writer.add_tensor(name + "ssm_dt.bias", numpy.ones(value_heads, dtype=numpy.float32))
        model.norm(name + "ssm_norm.weight", state)
    model.finish()


def qwen3moe(path, tokenizer, mixture, hidden=1024, layers=24, experts=64, active=8, width=512, heads=16, kv_heads=4, dim=128, vocabulary=151936):
    model = Model("qwen3moe", path, tokenizer, vocabulary, mixture)
    model.numbers(
        block_count=layers, context_length=32768, embedding_length=hidden, feed_forward_length=width * active, attention__head_count=heads,
        attention__head_count_kv=kv_heads, attention__key_length=dim, attention__value_length=dim, rope__freq_base=1e6,
        attention__layer_norm_rms_epsilon=1e-6, expert_count=experts, expert_used_count=active, expert_feed_forward_length=width,
    )
    model.output(hidden)
    for layer in range(layers):
        name = f"blk.{layer}."
        model.norm(name + "attn_norm.weight", hidden)
        model.norm(name + "ffn_norm.weight", hidden)
        attention(model, layer, layers, hidden, heads, kv_heads, dim)
        model.weight(name + "ffn_gate_inp.weight", experts, hidden, kind=Type.F32)
        model.weight(name + "ffn_gate_exps.weight", experts, width, hidden)
        model.weight(name + "ffn_up_exps.weight", experts, width, hidden)
        model.weight(name + "ffn_down_exps.weight", experts, hidden, width, more=more_bits(layer, layers))
    model.finish()


def llama(path, tokenizer, mixture, hidden=4096, layers=32, width=14336, heads=32, kv_heads=8, vocabulary=32768):
    model = Model("llama", path, tokenizer, vocabulary, mixture)
    model.numbers(
        block_count=layers, context_length=32768, embedding_length=hidden, feed_forward_length=width, attention__head_count=heads,
        attention__head_count_kv=kv_heads, rope__dimension_count=hidden // heads, rope__freq_base=1e6, attention__layer_norm_rms_epsilon=1e-5,
    )
    model.output(hidden)
    model.weight("output.weight", vocabulary, hidden, kind=Type.Q6_K)
    for layer in range(layers):
        model.norm(f"blk.{layer}.attn_norm.weight", hidden)
        model.norm(f"blk.{layer}.ffn_norm.weight", hidden)
        attention(model, layer, layers, hidden, heads, kv_heads, hidden // heads, qk_norm=False)
        feed_forward(model, layer, layers, hidden, width)
    model.finish()


SHAPES = {"qwen35-0.8b": qwen35, "qwen3moe-3b": qwen3moe, "llama-7b": llama}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("tokenizer", help="a GGUF file whose tokenizer the model gets")
    parser.add_argument("out")
    parser.add_argument("--type", choices=["q4_0", "q8_0", "q4_k_m"], default="q4_k_m")
    arguments = parser.parse_args()
    SHAPES[arguments.shape](arguments.out, arguments.tokenizer, arguments.type)
