"""Looks at the server's process from outside: memory, open files, threads."""

import collections
import os
import pathlib
import re
import threading
import time

INTERVAL_S = 5
TICKS = os.sysconf("SC_CLK_TCK")
# If this program did not get to run for so long, it was the machine that stood still, not the server.
STANDSTILL_S = 20
STANDSTILL = "machine stood still"


class Sample:
    def __init__(self, life, rss, anonymous, files, threads, cpu_s):
        self.at = time.monotonic()
        self.life, self.rss, self.anonymous, self.files, self.threads = life, rss, anonymous, files, threads
        # Time of all threads since the start, and the share of all cores since the sample before.
        self.cpu_s, self.cpu_share = cpu_s, None
        # Only at rests.
        self.open_files = None
        self.kv_bytes = None

    def follow(self, before):
        if before.life == self.life and self.at > before.at:
            self.cpu_share = (self.cpu_s - before.cpu_s) / (self.at - before.at) / os.cpu_count()


def sample(server):
    """What the process has now; `None` if it is gone."""
    process = pathlib.Path("/proc") / str(server.pid)
    try:
        rollup = (process / "smaps_rollup").read_text()
        status = (process / "status").read_text()
        files = len(os.listdir(process / "fd"))
        times = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return None
    kilobytes = lambda name: int(re.search(rf"^{name}:\s+(\d+)", rollup, re.M).group(1)) * 1024
    threads = int(re.search(r"^Threads:\s+(\d+)", status, re.M).group(1))
    return Sample(server.life, kilobytes("Rss"), kilobytes("Anonymous"), files, threads, sum(map(int, times)) / TICKS)


def open_files(pid):
    """What the open files of a process are: how many sockets to which address, and how many files of which folder."""
    sockets = {}
    for kind in ["tcp", "unix"]:
        at = {"tcp": 9, "unix": 6}[kind]
        for line in pathlib.Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if len(fields) > at:
                sockets[f"socket:[{fields[at]}]"] = f"{kind} socket"
    kinds = collections.Counter()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        kinds[sockets.get(target, os.path.dirname(target) if target.startswith("/") else target.split(":[")[0])] += 1
    return dict(kinds)


class Watch:
    """Takes a sample every few seconds, and notes if a server ends by itself."""

    def __init__(self, server, times):
        self.server, self.times, self.samples = server, times, []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        slept_at = time.monotonic()
        while not self.ended.wait(INTERVAL_S):
            if time.monotonic() - slept_at > INTERVAL_S + STANDSTILL_S:
                self.times.mark(STANDSTILL)
            slept_at = time.monotonic()
            if not self.server.is_up.is_set() or self.server.has_ended():
                continue
            taken = sample(self.server)
            if taken is not None:
                if self.samples:
                    taken.follow(self.samples[-1])
                self.samples.append(taken)

    def end(self):
        self.ended.set()
        self.thread.join()


def slope_per_hour(points):
    """Bytes an hour that a line through (seconds, bytes) rises; `None` for less than three points."""
    if len(points) < 3:
        return None
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread == 0:
        return None
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread * 3600
