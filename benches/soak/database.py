"""A PostgreSQL with pgvector for the server's memory, which can be frozen, stopped and started again.

It is the package that the tests use (`tests/fetch.py postgres`). Where it is not there, or cannot be started, there is none.
"""

import os
import pathlib
import shutil
import signal
import subprocess

PROGRAMS = "test-data/pgserver-0.1.4"


class Database:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.data = self.folder / "data"

    @classmethod
    def start(cls, users_home, folder):
        """A database of its own, or why there is none."""
        if not (users_home / PROGRAMS).is_dir():
            return None, f"{users_home / PROGRAMS} is missing (`python3 tests/fetch.py postgres FOLDER` fetches it)"
        database = cls(folder)
        try:
            database.make(users_home / PROGRAMS)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            return None, str(error)
        return database, None

    def make(self, programs):
        self.folder.mkdir(mode=0o755)
        # It refuses to run as root, and others cannot read root's home.
        shutil.copytree(programs, self.folder / "pg")
        self.data.mkdir()
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", "nobody", self.folder], check=True)
        self.run("initdb", "-D", self.data, "-U", "ruvllm", "--auth=trust", "--no-sync")
        self.begin()
        self.run("createdb", "-h", self.folder, "-U", "ruvllm", "soak")

    def run(self, program, *arguments):
        command = [self.folder / "pg/pgserver/pginstall/bin" / program, *arguments]
        if os.geteuid() == 0:
            command = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--", *command]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        done = subprocess.run(command, cwd=self.folder, timeout=60, **quiet)
        if done.returncode != 0:
            raise RuntimeError(f"{program} ended with {done.returncode}")

    @property
    def url(self):
        return f"postgres://ruvllm@{str(self.folder).replace('/', '%2F')}/soak"

    def begin(self):
        options = f"-k {self.folder} -h '' -c fsync=off"
        self.run("pg_ctl", "-D", self.data, "-w", "-o", options, "-l", self.folder / "log", "start")

    def end(self):
        """Ends it at once, as a crash does: connections break in the middle of whatever they do."""
        self.run("pg_ctl", "-D", self.data, "-w", "-m", "immediate", "stop")

    def freeze(self):
        self.signal(signal.SIGSTOP)

    def thaw(self):
        self.signal(signal.SIGCONT)

    def signal(self, which):
        """The main process and all that it started."""
        try:
            main = int((self.data / "postmaster.pid").read_text().split()[0])
            children = pathlib.Path(f"/proc/{main}/task/{main}/children").read_text().split()
        except (FileNotFoundError, IndexError):
            return
        for process in [main, *map(int, children)]:
            try:
                os.kill(process, which)
            except ProcessLookupError:
                pass
