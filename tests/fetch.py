"""Fetches what tests need into a folder, out of the packages of other projects. Nothing of a package is built or run here.

    python3 fetch.py <what> <folder>
"""

import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

# What there is: the package, its version, the folder in it, and how many folders below that are wanted too. Source packages,
# but for those that come as they were built: programs, and schemas that only lie there.
BUILT = {
    "postgres", "schemas-cloudformation", "schemas-jupyterlab", "schemas-inspire", "schemas-cyclonedx", "schemas-notebook",
    "schemas-openapi", "schemas-vega-lite",
}
KNOWN = {
    # llama.cpp's tokenizer vectors and chat templates, in its Python bindings.
    "tokenizer-vectors": ("llama-cpp-python", "0.3.36", "/vendor/llama.cpp/models/", 1),
    # llama.cpp's example grammars (GBNF).
    "grammars": ("llama-cpp-python", "0.3.36", "/vendor/llama.cpp/grammars/", 0),
    # The JSON Schema Test Suite, in Python's jsonschema.
    "json-schema-suite": ("jsonschema", "4.25.1", "/json/tests/draft2020-12/", 0),
    # JSON schemas that people published: SchemaStore's, those of check-jsonschema, Ansible's and Kubernetes'.
    "schemas-schemastore": ("schemastore", "0.2.3", "/vendor/schemastore/src/schemas/json/", 0),
    "schemas-check-jsonschema": ("check-jsonschema", "0.39.0", "/check_jsonschema/builtin_schemas/vendor/", 0),
    "schemas-ansible": ("ansible-lint", "26.10.1", "/ansiblelint/schemas/", 0),
    "schemas-kubernetes": ("kubernetes-validate", "1.37.0", "/kubernetes-json-schema/v1.37.0-local/", 0),
    # And those of AWS CloudFormation, JupyterLab's settings, INSPIRE HEP, CycloneDX, Jupyter notebooks, OpenAPI, Vega-Lite.
    "schemas-cloudformation": ("cfn-lint", "1.58.0", "cfnlint/data/schemas/resources/", 0),
    "schemas-jupyterlab": ("jupyterlab", "4.6.6", "jupyterlab/schemas/", 2),
    "schemas-inspire": ("inspire-schemas", "61.6.38", "inspire_schemas/records/", 1),
    "schemas-cyclonedx": ("cyclonedx-python-lib", "11.12.0", "cyclonedx/schema/_res/", 0),
    "schemas-notebook": ("nbformat", "5.11.1", "nbformat/v4/", 0),
    "schemas-openapi": ("openapi-spec-validator", "0.9.0", "openapi_spec_validator/resources/schemas/", 1),
    "schemas-vega-lite": ("altair", "6.3.0", "altair/vegalite/v6/schema/", 0),
    # Texts of four kinds, each of one project, that `ruvllm bench learning` learns from: how-tos (Django), a manual (Meson),
    # code (Ansible), and release notes (Django).
    "texts-documentation": ("Django", "5.2.8", "/docs/topics/", 3),
    "texts-manual": ("meson", "1.9.1", "/docs/markdown/", 0),
    "texts-code": ("ansible-core", "2.19.4", "/lib/ansible/modules/", 0),
    "texts-announcements": ("Django", "5.2.8", "/docs/releases/", 0),
    # PostgreSQL with pgvector: all of the package, since its programs look for their libraries beside them.
    "postgres": ("pgserver", "0.1.4", "", 9),
}


def members(archive):
    """Plain files of a source package or a wheel: name, contents, whether it is a program."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for member in wheel.infolist():
                if not member.is_dir():
                    with wheel.open(member) as source:
                        yield member.filename, source, member.external_attr >> 16 & 0o100
    else:
        with tarfile.open(archive) as package:
            for member in package:
                if member.isfile():
                    with package.extractfile(member) as source:
                        yield member.name, source, False


def main():
    package, version, wanted, depth = KNOWN[sys.argv[1]]
    target = pathlib.Path(sys.argv[2])
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        scratch = pathlib.Path(scratch)
        kind = "--only-binary" if sys.argv[1] in BUILT else "--no-binary"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", kind, package]
        subprocess.run([*pip, "--dest", scratch, f"{package}=={version}"], check=True, timeout=600)
        data = scratch / "data"
        for member, source, is_program in members(next(scratch.iterdir())):
            name = member.partition(wanted)[2] if wanted else member
            # No deeper than wanted, whatever the archive says.
            if name and ".." not in name and name.count("/") <= depth:
                path = data / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(path, "wb") as copy:
                    shutil.copyfileobj(source, copy)
                path.chmod(0o755 if is_program else 0o644)
        # In one step, so that an interrupted run leaves nothing half-done.
        try:
            data.rename(target)
        except OSError:
            # Another test was faster, and has fetched the same.
            if not target.is_dir():
                raise


main()
