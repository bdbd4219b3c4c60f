"""A home folder of its own for the servers of a run: models, keys, and the operator's token."""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess

# The model that is named when the server starts and stays loaded.
KEPT = "smollm2"
# The same file under another name, and the same weights in 8 bits: loaded when they are asked for, unloaded by faults.
TWIN = "soak-twin"
EIGHT_BITS = "soak-q8"
EMBEDDING = "minilm"
ON_DEMAND = [TWIN, EIGHT_BITS, EMBEDDING]

TENANTS = ["acme", "birch", "cedar"]


class Home:
    def __init__(self, folder, binary):
        self.folder, self.binary = pathlib.Path(folder), binary
        self.users_home = pathlib.Path(os.environ.get("RUVLLM_HOME", pathlib.Path.home() / ".ruvllm"))
        self.keys = {}

    def environment(self):
        """Models that were pulled are only read: nothing is written to the user's own home."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RUVLLM_")}
        environment["RUVLLM_HOME"] = str(self.folder)
        environment["RUVLLM_MODELS"] = str(self.users_home)
        return environment

    def command(self, *arguments):
        """What a command of ours prints."""
        command = [self.binary, *arguments]
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
        return done.stdout

    def prepare(self):
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for model in [KEPT, EMBEDDING]:
            if not (self.users_home / "models" / model / "manifest.json").exists():
                raise SystemExit(f"the model {model} is not here yet: `ruvllm pull {model}` fetches it")
        source = self.users_home / "models" / KEPT
        manifest = json.loads((source / "manifest.json").read_text())
        self.store(TWIN, source / manifest["file"])
        self.store(EIGHT_BITS, self.quantized())
        for tenant in TENANTS:
            self.keys[tenant] = self.add_key(tenant, tenant)

    def quantized(self):
        """Made once, beside what tests keep, since it takes half a minute."""
        path = self.users_home / "test-data" / f"{EIGHT_BITS}.gguf"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self.command("quantize", KEPT, str(path), "--to", "q8_0")
        return path

    def store(self, name, file):
        """Puts a file into the store under a name. It is linked, not copied, and hashed by the store itself."""
        folder = self.folder / "models" / name
        folder.mkdir(mode=0o700, parents=True)
        try:
            os.link(file, folder / "model.gguf")
        except OSError:
            shutil.copy2(file, folder / "model.gguf")
        with open(file, "rb") as opened:
            sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
        status = (folder / "model.gguf").stat()
        manifest = {
            "name": name, "file": "model.gguf", "bytes": status.st_size, "sha256": sha256,
            "mtime_unix_ns": status.st_mtime_ns, "source": "benches/soak", "licence": "Apache-2.0",
            "pulled_at_unix_s": int(status.st_mtime),
        }
        (folder / "manifest.json").write_text(json.dumps(manifest))

    def add_key(self, name, tenant):
        return self.command("keys", "add", name, "--tenant", tenant).strip()

    def remove_key(self, name):
        self.command("keys", "rm", name)

    def operator(self):
        """The token of whoever operates the server, which makes it when it first starts."""
        return (self.folder / "local_token").read_text().strip()
