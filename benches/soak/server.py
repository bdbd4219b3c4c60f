"""The server under test: its lives, and how each of them ends."""

import signal
import socket
import subprocess
import threading
import time

from wire import Client

START_MAX_S = 120
STOP_MAX_S = 90


class Server:
    """One at a time; a new life has a new process and the same address."""

    def __init__(self, home, folder, flags):
        self.home, self.folder, self.flags = home, folder, flags
        self.address = ("127.0.0.1", free_port())
        self.process = None
        self.life = 0
        self.started_at = None
        # Whoever asks while it is not set may find nobody there.
        self.is_up = threading.Event()
        self.logs = []
        # How lives ended that should not have: (life, exit code).
        self.bad_ends = []

    @property
    def pid(self):
        return self.process.pid

    def client(self, key, keep=False):
        return Client(self.address, key, keep)

    def operator(self):
        return self.client(self.home.operator())

    def start(self):
        """Starts a life and waits until it is ready; how long that took."""
        self.life += 1
        log = self.folder / f"server-{self.life}.log"
        self.logs.append(log)
        command = [self.home.binary, "serve", "--port", str(self.address[1]), *self.flags, "--log-format", "json"]
        began = time.monotonic()
        with open(log, "wb") as errors:
            self.process = subprocess.Popen(
                command, env=self.home.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
            )
        while not self.is_ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode} while it started: see {log}")
            if time.monotonic() - began > START_MAX_S:
                raise RuntimeError(f"the server was not ready after {START_MAX_S} s: see {log}")
            time.sleep(0.05)
        self.started_at = time.monotonic()
        self.is_up.set()
        return self.started_at - began

    def is_ready(self):
        try:
            return self.client(None).ask("GET", "/ready").status == 200
        except OSError:
            return False

    def has_ended(self):
        """Whether it ended by itself, which it never should."""
        if self.is_up.is_set() and self.process.poll() is not None:
            self.bad_ends.append((self.life, self.process.returncode))
            self.is_up.clear()
            return True
        return False

    def kill(self):
        """kill -9: it gets no chance to write anything."""
        self.is_up.clear()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        """SIGTERM: running answers may finish, and everything is written. How long that took."""
        self.is_up.clear()
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_MAX_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if code != 0:
            self.bad_ends.append((self.life, code))
        return time.monotonic() - began


def free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]
