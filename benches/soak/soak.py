"""One run: a phase of crashes, then one long life of the server with every other fault, then the verdict."""

import pathlib
import random
import shutil
import tempfile
import time

import actions
import books
import server_log
import watch
from database import Database
from faults import Faults, Times
from home import KEPT, ON_DEMAND, TENANTS, Home
from ledger import Ledger
from server import Server
from small_disk import SmallDisk
from tally import Tally
from traffic import Traffic

KV_DISK_MB, SMALL_DISK_MB = 48, 64
# Small enough that pages are given up and go to disk, and that clients meet every limit.
FLAGS = [
    KEPT, "--models-max", "3", "--context", "4096", "--sequences", "8", "--kv", "f16:256,q8:1024,q8/q4",
    "--kv-memory", "96M", "--kv-disk-size", f"{KV_DISK_MB}M", "--kv-share", f"{TENANTS[0]}=16M:80M",
    "--write-timeout", "10s", "--body-timeout", "5s", "--answer-timeout", "120", "--drain-timeout", "10s",
]

# Prompts of 3,300 tokens that together take more than the KV memory.
FILLING_PROMPTS = 10

CALM_S = 30
REST_EVERY_S = 300
# Threads of pools end when nobody has needed them for ten seconds.
QUIET_S = 12


class Soak:
    def __init__(self, seed, clients, binary, folder, uses_database, say):
        self.seed, self.clients, self.say = seed, clients, say
        self.uses_database = uses_database
        # Where others may look, since the database does not run as root.
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="ruvllm-soak-", dir="/tmp"))
        self.scratch.chmod(0o755)
        self.folder = pathlib.Path(folder) if folder else self.scratch / "results"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.home = Home(self.scratch / "home", binary)
        self.tally, self.times = Tally(), Times()
        self.ledgers, self.rests, self.left_out = [], [], []
        self.first_rest = self.last_rest = None
        self.unbalanced, self.unsound = [], []
        self.starts_s, self.stops_s = [], []
        self.log_kinds = {}
        self.took_s = 0.0
        # Why the run could not go on to its end.
        self.failure = None
        self.database = self.disk = self.server = self.watch = None

    def prepare(self):
        self.say(f"seed {self.seed}; preparing in {self.scratch}")
        self.home.prepare()
        self.disk, why = SmallDisk.mount(self.scratch / "kv", SMALL_DISK_MB)
        if why:
            self.left_out.append(f"a full disk ({why})")
        self.kv_flags = ["--kv-disk", str(self.scratch / "kv")]
        self.server = Server(self.home, self.folder, [*FLAGS, *self.kv_flags])
        self.watch = watch.Watch(self.server, self.times)
        self.began = self.tally.began = time.monotonic()

    def start(self):
        self.starts_s.append(self.server.start())

    def stop(self):
        self.stops_s.append(self.server.stop())

    def traffic(self, name, weights):
        self.ledgers.append(Ledger())
        return Traffic(name, self.seed, self.clients, self.server, self.watch, self.tally, self.ledgers[-1], weights)

    # The phase of crashes.

    def crashes(self, goes_on, with_stops):
        """Kills the server again and again while clients ask, for as long as `goes_on(kills)` says so."""
        chosen = random.Random(f"{self.seed}/crashes")
        self.start()
        traffic = self.traffic("crash", actions.REMEMBERED)
        kills = 0
        while goes_on(kills):
            traffic.resume()
            time.sleep(chosen.uniform(2, 6))
            is_stop = with_stops and chosen.random() < 0.3
            killed_at = self.end_life(is_stop)
            kills += 1
            if not traffic.pause():
                self.tally.complain("stuck", "crashes", "clients that did not end after the server did")
            self.start()
            self.check(killed_at, everything=False)
            self.say(f"  life {self.server.life} after {'SIGTERM' if is_stop else 'kill -9'}: {self.state()}")
        traffic.end()
        self.check(None, everything=True)
        self.stop()

    def end_life(self, is_stop):
        """Ends it in the middle of everything; when, if it was killed."""
        if is_stop:
            span = self.times.begin("SIGTERM")
            self.stop()
            self.times.end(span)
            return None
        self.times.mark("kill -9")
        killed_at = time.monotonic()
        self.server.kill()
        return killed_at

    def check(self, killed_at, everything):
        """Whether everything acknowledged is there, and the chain of the witness log is whole."""
        self.ledgers[-1].check(self.server, killed_at, everything)
        verified = self.server.operator().ask("GET", "/v1/witness/verify")
        if verified.status != 200 or not verified.body["sound"]:
            self.unsound.append(f"life {self.server.life}: {verified.status} {verified.body}")

    # The long life.

    def long_life(self, duration_s):
        chosen = random.Random(f"{self.seed}/faults")
        memory = self.memory_flags()
        self.server.flags = [*FLAGS, *self.kv_flags, *memory]
        self.start()
        began = time.monotonic()
        traffic = self.traffic("long", actions.MIXED)
        faults = Faults(chosen, self.server, self.times, self.tally, self.database, self.disk)
        rest_at = began + min(REST_EVERY_S, duration_s / 2)
        traffic.resume()
        while time.monotonic() < began + duration_s - CALM_S and self.server.is_up.is_set():
            time.sleep(chosen.uniform(2, 12))
            if time.monotonic() >= rest_at:
                self.rest(traffic)
                rest_at = time.monotonic() + REST_EVERY_S
                traffic.resume()
            else:
                faults.one()
            self.say(f"  minute {(time.monotonic() - self.began) / 60:.1f}: {self.state()}")
        self.rest(traffic)
        traffic.end()
        if self.server.is_up.is_set():
            self.check(None, everything=True)
            self.stop()
        self.start()
        self.check(None, everything=True)
        self.stop()

    def memory_flags(self):
        if not self.uses_database:
            self.left_out.append("a database that stalls (--memory file)")
            return []
        self.database, why = Database.start(self.home.users_home, self.scratch / "database")
        if why:
            self.left_out.append(f"a database that stalls ({why})")
            return []
        return ["--memory-postgres", self.database.url]

    def rest(self, traffic):
        """Lets everything come to rest, looks into the books and measures. Only the model that was named stays loaded."""
        span = self.times.begin("rest")
        if not traffic.pause():
            self.tally.complain("stuck", "rest", "clients that did not come to rest")
        self.balance()
        for model in ON_DEMAND:
            self.server.operator().ask("POST", "/admin/models/unload", {"model": model})
        self.fill_cache()
        time.sleep(QUIET_S)
        self.balance()
        taken = watch.sample(self.server)
        self.times.end(span)
        if taken is not None:
            taken.open_files = watch.open_files(self.server.pid)
            taken.kv_bytes = sum(self.last_values.get("ruvllm_kv_bytes", {}).values())
            self.rests.append(taken)
            self.first_rest = self.first_rest or taken
            self.last_rest = taken

    def fill_cache(self):
        """A model that was just reloaded has an empty cache, another a full one: memory is compared with full ones."""
        for number in range(FILLING_PROMPTS):
            prompt = f"Number {number}. " + "It was the best of times, it was the worst of times. " * 250
            ask = {"model": KEPT, "prompt": prompt, "max_tokens": 1}
            self.server.client(self.home.keys[TENANTS[number % 2 + 1]]).ask("POST", "/v1/completions", ask)

    def balance(self):
        minute = (time.monotonic() - self.began) / 60
        wrong, self.last_values = books.settled(self.server, KV_DISK_MB << 20)
        self.unbalanced += [f"minute {minute:.1f}: {problem}" for problem in wrong]

    # The end.

    def state(self):
        unexpected = ", ".join(f"{count} {what}" for what, count in self.tally.unexpected.items() if count)
        lost = sum(len(ledger.lost) for ledger in self.ledgers)
        bad = f"; {unexpected}" if unexpected else ""
        bad += f"; {lost} lost" if lost else ""
        return f"{self.tally.requests()} requests{bad}"

    def close(self):
        """Ends whatever was started, also after a failure."""
        if self.watch:
            self.watch.end()
        if self.server and self.server.process and self.server.process.poll() is None:
            self.server.kill()
        if self.database:
            self.database.thaw()
            try:
                self.database.end()
            except RuntimeError:
                pass
        if self.disk:
            self.disk.unmount()
        if self.server:
            self.log_kinds = server_log.count(self.server.logs)
        for part in ["home", "database", "kv"]:
            shutil.rmtree(self.scratch / part, ignore_errors=True)
        self.took_s = time.monotonic() - self.tally.began
