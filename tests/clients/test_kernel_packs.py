"""The example of a kernel pack that AssemblyScript's compiler makes, as docs/kernel-packs.md tells authors."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "packs/examples/assemblyscript"
# Packages of npm are installed beside those of Python.
COMPILER = Path(sys.prefix).parent / "node_modules/.bin/asc"


def ruvllm(*arguments):
    ran = subprocess.run([os.environ["RUVLLM_BIN"], "kernels", *map(str, arguments)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_example_in_assemblyscript_is_sound(tmp_path):
    mine, pack, archive, key_file = (tmp_path / name for name in ("mine", "pack", "mine.tar.zst", "my.key"))
    shutil.copytree(EXAMPLE, mine)
    options = ["-O3", "--runtime", "stub", "--use", "abort=", "--enable", "simd", "-o", "simd128/norm.wasm"]
    subprocess.run([COMPILER, "norm.ts", *options], cwd=mine, check=True)
    key = ruvllm("keygen", key_file).strip()
    ruvllm("build", mine, "--out", pack)
    ruvllm("sign", pack, "--secret-key", key_file, "--archive", archive)
    assert "is sound: 1 kernels" in ruvllm("verify", archive, "--kernel-key", key)
    [norm, _] = json.loads(ruvllm("bench", archive, "--kernel-key", key, "--rounds", "1", "--json"))["kernels"]
    assert norm["operation"] == "rms_norm" and norm["pack_ns"] > 0
