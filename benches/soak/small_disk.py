"""A small file system for KV pages, which can be full. Only root can mount one."""

import pathlib
import subprocess


class SmallDisk:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.filler = self.folder / "filler"

    @classmethod
    def mount(cls, folder, megabytes):
        """A disk of this size, or why there is none."""
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", folder]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            return None, str(error)
        if done.returncode != 0:
            return None, f"no file system can be mounted here: {done.stderr.strip()}"
        return cls(folder), None

    def fill(self):
        """Takes all room that is left, and whatever becomes free while it does."""
        with open(self.filler, "ab", buffering=0) as filler:
            try:
                while True:
                    filler.write(b"\0" * 65536)
            except OSError:
                pass

    def free(self):
        self.filler.unlink(missing_ok=True)

    def unmount(self):
        subprocess.run(["umount", self.folder], capture_output=True)
