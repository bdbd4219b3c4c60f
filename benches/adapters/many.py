"""Serves thousands of LoRA adapters of the default model, and measures what they cost while they are not used.

    python -m venv venv && venv/bin/pip install numpy
    venv/bin/python benches/adapters/many.py target/release/ruvllm FOLDER --count 10000

Fills FOLDER with random adapters of rank 8, if they are not there: --count small ones (one matrix, 19 KB), and some of full size
(all matrices, 5 MB). Then measures the start of a server, its memory, listings, and the first token with an adapter that is in
memory, on disk but in the system's cache, or on disk only.
"""

import argparse
import json
import os
import pathlib
import statistics
import struct
import subprocess
import time
import urllib.request

import numpy

HIDDEN, KV, FEED_FORWARD, LAYERS, RANK = 576, 192, 1536, 30, 8
MODULES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN, KV),
    "self_attn.v_proj": (HIDDEN, KV),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (HIDDEN, FEED_FORWARD),
    "mlp.up_proj": (HIDDEN, FEED_FORWARD),
    "mlp.down_proj": (FEED_FORWARD, HIDDEN),
}
FULL = 24


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the ruvllm program")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=10_000)
    return parser.parse_args()


def write(folder, seed, modules, layers):
    if (folder / "adapter_config.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    random = numpy.random.default_rng(seed)
    header, parts, at = {}, [], 0
    for layer in range(layers):
        for module in modules:
            cols, rows = MODULES[module]
            for matrix, shape in (("lora_A", (RANK, cols)), ("lora_B", (rows, RANK))):
                data = (random.standard_normal(shape, dtype=numpy.float32) * 0.02).astype(numpy.float16).tobytes()
                name = f"base_model.model.model.layers.{layer}.{module}.{matrix}.weight"
                header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + len(data)]}
                parts.append(data)
                at += len(data)
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
    targets = sorted({module.split(".")[1] for module in modules})
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16, "target_modules": targets}
    # Last, so that an adapter that has it is complete.
    (folder / "adapter_config.json").write_text(json.dumps(config))


class Server:
    def __init__(self, program, arguments):
        began = time.monotonic()
        command = [program, "serve", "smollm2", "--port", "0", "--context", "1024", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if line.startswith("listening on "):
                self.url = line.split()[-1]
                break
            if " of " in line and "adapters in" in line:
                print(line.strip())
        self.start_s = time.monotonic() - began
        home = pathlib.Path(os.environ.get("RUVLLM_HOME", pathlib.Path.home() / ".ruvllm"))
        self.operator = {"authorization": "Bearer " + (home / "local_token").read_text().strip()}

    def get(self, path):
        request = urllib.request.Request(self.url + path, headers=self.operator)
        began = time.monotonic()
        with urllib.request.urlopen(request) as answer:
            body = answer.read()
        return (time.monotonic() - began) * 1e3, body

    def first_token(self, model, prompt):
        body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        headers = {"content-type": "application/json", **self.operator}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(), headers)
        began = time.monotonic()
        with urllib.request.urlopen(request) as answer:
            answer.read()
        return (time.monotonic() - began) * 1e3

    def report(self):
        told = json.loads(self.get("/admin/models")[1])
        return told["models"][0]["adapters"], told["memory"]["resident_bytes"]

    def stop(self):
        self.process.terminate()
        self.process.wait()


def forget(folder):
    """Drops an adapter's files from the system's cache."""
    for file in folder.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def main():
    options = arguments()
    small, full = options.folder / "small", options.folder / "full"
    for number in range(options.count):
        write(small / f"small-{number:05}", number, ["self_attn.q_proj"], 1)
    for number in range(FULL):
        write(full / f"full-{number:02}", 1_000_000 + number, MODULES, LAYERS)
    plain = Server(options.program, [])
    _, before = plain.report()
    prompts = (f"Report number {number}: the keeper" for number in range(10**6))
    without = statistics.median(plain.first_token("smollm2", next(prompts)) for _ in range(20))
    plain.stop()
    server = Server(options.program, ["--adapters-from", str(small), "--adapters-from", str(full)])
    adapters, after = server.report()
    print(f"start: {plain.start_s:.2f} s without, {server.start_s:.2f} s with {adapters['registered']} adapters")
    print(f"memory: {before / 1e6:.1f} MB without, {after / 1e6:.1f} MB with them registered")
    for path in ("/v1/models", "/v1/models/small-00500", "/lora-adapters", "/admin/models", "/metrics"):
        times = [server.get(path) for _ in range(5)]
        print(f"GET {path}: {statistics.median(ms for ms, _ in times):.1f} ms, {len(times[0][1])} bytes")
    names = [f"full-{number:02}" for number in range(FULL)]
    on_disk = []
    for name in names[: FULL // 2]:
        forget(full / name)
        on_disk.append(server.first_token(name, next(prompts)))
    cached = [server.first_token(name, next(prompts)) for name in names[FULL // 2 :]]
    hot = [server.first_token(name, next(prompts)) for name in names[FULL // 2 :]]
    for what, times in (("in memory", hot), ("on disk, in the system's cache", cached), ("on disk", on_disk)):
        middle = statistics.median(times)
        print(f"first token, adapter {what}: {middle:.1f} ms (most {max(times):.1f}); the model alone {without:.1f} ms")
    adapters, after = server.report()
    print(f"at the end: {json.dumps(adapters)}, {after / 1e6:.1f} MB")
    server.stop()


main()
