"""Writes llama_cpp.json: what llama.cpp computes for our default model, as a reference for our own forward pass.

Needs llama-cpp-python (0.3.36 was used), numpy, and llama.cpp's `llama-perplexity`:

    LLAMA_CPP_LIB_PATH=<llama.cpp>/bin python generate.py <model.gguf> <llama.cpp>/bin/llama-perplexity

Computed without flash attention, with an f16 KV cache, on two threads. A prompt is one batch (so one pass over all of
its tokens); the greedy continuation is decoded token by token.
"""

import hashlib
import pathlib
import re
import subprocess
import sys

import llama_cpp
import numpy as np

from prompts import PROMPTS, save

HERE = pathlib.Path(__file__).parent
ESSAYS = HERE.parent / "data" / "essays.txt"
CONTEXT = 1024
STEPS = 64
TOP = 20


class Model:
    def __init__(self, path):
        llama_cpp.llama_backend_init()
        parameters = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        assert self.model, f"cannot load {path}"
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocab)
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = CONTEXT
        parameters.n_threads = parameters.n_threads_batch = 2
        parameters.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.type_k = parameters.type_v = llama_cpp.GGML_TYPE_F16
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)
        assert self.context

    def tokenize(self, text):
        data = text.encode()
        room = len(data) + 16
        tokens = (llama_cpp.llama_token * room)()
        count = llama_cpp.llama_tokenize(self.vocab, data, len(data), tokens, room, True, True)
        assert 0 < count <= room
        return list(tokens[:count])

    def forget(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def logits_after(self, tokens):
        """Feeds tokens after those fed so far; gives the logits after the last."""
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        batch = llama_cpp.llama_batch_get_one(array, len(tokens))
        assert llama_cpp.llama_decode(self.context, batch) == 0
        start = llama_cpp.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(start, shape=(self.size,)).copy()


def golden(model, name, text):
    tokens = model.tokenize(text)
    assert len(tokens) + STEPS <= CONTEXT, name
    model.forget()
    logits = model.logits_after(tokens)
    order = np.argsort(-logits, kind="stable")[:TOP]
    top = [[int(i), round(float(logits[i]), 4)] for i in order]
    greedy, margins = [], []
    for _ in range(STEPS):
        first, second = np.argsort(-logits, kind="stable")[:2]
        greedy.append(int(first))
        margins.append(round(float(logits[first] - logits[second]), 4))
        logits = model.logits_after([int(first)])
    return {"name": name, "text": text, "tokens": tokens, "top": top, "greedy": greedy, "margins": margins}


def perplexity(program, model_path, context):
    command = [program, "-m", model_path, "-f", str(ESSAYS), "-c", str(context), "-t", "2"]
    command += ["-ctk", "f16", "-ctv", "f16", "-fa", "off"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    output = run.stdout + run.stderr
    value, uncertainty = re.search(r"Final estimate: PPL = ([\d.]+) \+/- ([\d.]+)", output).groups()
    chunks = re.search(r"over (\d+) chunks", output).group(1)
    return {
        "file": "tests/data/essays.txt",
        "context": context,
        "chunks": int(chunks),
        "value": float(value),
        "uncertainty": float(uncertainty),
    }


def main():
    model_path, program = sys.argv[1:]
    model = Model(model_path)
    version = subprocess.run([program, "--version"], capture_output=True, text=True)
    result = {
        "model": pathlib.Path(model_path).name,
        "model_sha256": hashlib.sha256(pathlib.Path(model_path).read_bytes()).hexdigest(),
        "llama_cpp": (version.stdout + version.stderr).splitlines()[0].removeprefix("version: "),
        "settings": "flash attention off, f16 KV, 2 threads, CPU",
        "perplexity": [perplexity(program, model_path, context) for context in (512, 256)],
        "prompts": [golden(model, name, text) for name, text in PROMPTS],
    }
    save(result)
    for prompt in result["prompts"]:
        print(prompt["name"], len(prompt["tokens"]), min(prompt["margins"]))
    print(result["perplexity"])


if __name__ == "__main__":
    main()
