"""Fetches the JSON Schema Test Suite into a folder, out of the source package of Python's jsonschema.

    python3 fetch_json_schema_suite.py <folder>

They are data for tests: nothing of the package is built or run by us.
"""

import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

PACKAGE, VERSION = "jsonschema", "4.25.1"
WANTED = "/json/tests/draft2020-12/"


def main():
    target = pathlib.Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        scratch = pathlib.Path(scratch)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", PACKAGE]
        subprocess.run([*pip, "--dest", scratch, f"{PACKAGE}=={VERSION}"], check=True, timeout=600)
        suite = scratch / "suite"
        suite.mkdir()
        with tarfile.open(next(scratch.glob("*.tar.gz"))) as archive:
            for member in archive:
                _, found, name = member.name.partition(WANTED)
                # Only plain files directly below the folder, whatever the archive says.
                if member.isfile() and found and "/" not in name and ".." not in name:
                    with archive.extractfile(member) as source, open(suite / name, "wb") as copy:
                        shutil.copyfileobj(source, copy)
        # In one step, so that an interrupted run leaves nothing half-done.
        suite.rename(target)


main()
