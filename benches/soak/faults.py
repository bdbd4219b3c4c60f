"""What goes wrong while clients ask: one fault at a time, in an order that the seed decides."""

import threading
import time

from home import KEPT, ON_DEMAND


class Times:
    """When faults began and ended, for the plot and for whoever must tell what they excuse."""

    def __init__(self):
        self.lock = threading.Lock()
        # (what, began, ended); the end is open while it lasts.
        self.spans = []

    def begin(self, what):
        with self.lock:
            self.spans.append([what, time.monotonic(), None])
            return len(self.spans) - 1

    def end(self, number):
        with self.lock:
            self.spans[number][2] = time.monotonic()

    def mark(self, what):
        self.end(self.begin(what))

    def was(self, what, since, grace_s=0.0):
        """Whether a fault whose name begins so lasted at any time since then, or ended at most so long before."""
        with self.lock:
            return any(
                name.startswith(what) and (ended is None or ended + grace_s >= since) for name, _, ended in self.spans
            )

    def counts(self):
        with self.lock:
            names = [name for name, _, _ in self.spans]
        return {name: names.count(name) for name in sorted(set(names))}


class Faults:
    """All faults that are possible here. Each takes some seconds and leaves nothing behind."""

    def __init__(self, chosen, server, times, tally, database=None, disk=None):
        self.random, self.server, self.times, self.tally = chosen, server, times, tally
        self.database, self.disk = database, disk
        self.added = 0
        self.all = [self.unload, self.reload, self.load, self.key, self.crowd]
        if disk:
            self.all += [self.full_disk, self.full_disk]
        if database:
            self.all += [self.frozen_database, self.restarted_database]

    def one(self):
        """Has the next fault happen and waits until it is over."""
        fault = self.random.choice(self.all)
        # Drawn here, so that what a fault does with it has no influence on the ones after it.
        duration_s = self.random.uniform(3, 12)
        fault(duration_s)

    def administrate(self, what, model, expect):
        """Asks as the operator; a status that is not expected is noted."""
        self.times.mark(f"{what} {model}")
        try:
            answer = self.server.operator().ask("POST", f"/admin/models/{what}", {"model": model})
        except Exception as error:
            return self.tally.complain("broken", f"admin {what}", repr(error))
        self.tally.count(f"admin {what}", answer.status)
        if answer.status not in expect:
            is_busy = answer.status == 503 and answer.error.get("code") == "models_in_use"
            if is_busy:
                return self.tally.expect("503 models_in_use")
            what_kind = "5xx" if answer.status >= 500 else "status"
            self.tally.complain(what_kind, f"admin {what}", f"{answer.status} {answer.error.get('message')}")

    def unload(self, _):
        """404: it is not loaded at present."""
        self.administrate("unload", self.random.choice(ON_DEMAND), (200, 404))

    def reload(self, _):
        self.administrate("reload", KEPT, (200,))

    def load(self, _):
        self.administrate("load", self.random.choice(ON_DEMAND), (200,))

    def key(self, _):
        """A key that is added works at once, and no longer when it is removed."""
        self.added += 1
        name = f"guest-{self.added}"
        self.times.mark("keys changed")
        key = self.server.home.add_key(name, "guests")
        self.look(key, 200, "a new key")
        self.server.home.remove_key(name)
        self.look(key, 401, "a removed key")

    def look(self, key, expected, what):
        """A running server notices a changed file within a second or so."""
        deadline = time.monotonic() + 5
        while (status := self.server.client(key).ask("GET", "/v1/models").status) != expected:
            if time.monotonic() > deadline:
                return self.tally.complain("status", what, f"{status} after 5 s, not {expected}")
            time.sleep(0.1)
        self.tally.count(what, status)

    def crowd(self, _):
        """Many clients at once, who all leave before they are answered."""
        self.times.mark("crowd")
        asked = {"model": KEPT, "messages": [{"role": "user", "content": "Hello"}], "max_completion_tokens": 50}
        clients = [self.server.client(key) for key in self.server.home.keys.values() for _ in range(20)]
        for client in clients:
            try:
                client.send("POST", "/v1/chat/completions", asked)
                self.tally.count("crowd", "left")
            except OSError as error:
                self.tally.complain("broken", "crowd", repr(error))
        time.sleep(0.5)
        for client in clients:
            client.close()

    def full_disk(self, duration_s):
        span = self.times.begin("disk full")
        until = time.monotonic() + duration_s
        try:
            while time.monotonic() < until:
                self.disk.fill()
                time.sleep(0.5)
        finally:
            self.disk.free()
            self.times.end(span)

    def frozen_database(self, duration_s):
        span = self.times.begin("database frozen")
        try:
            self.database.freeze()
            time.sleep(duration_s)
        finally:
            self.database.thaw()
            self.times.end(span)

    def restarted_database(self, duration_s):
        span = self.times.begin("database stopped")
        try:
            self.database.end()
            time.sleep(duration_s)
        finally:
            self.database.begin()
            self.times.end(span)
