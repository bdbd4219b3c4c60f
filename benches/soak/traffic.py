"""Clients that ask all the time, each on a thread. What they do at each step is decided by the seed alone."""

import http.client
import random
import threading
import time

from actions import ACTIONS
from tally import excuse, status_of
from watch import INTERVAL_S, STANDSTILL
from wire import Client, Stuck

# How long the database may take to be noticed as back after it is.
MEMORY_BACK_S = 12


class Traffic:
    def __init__(self, name, seed, clients, server, watch, tally, ledger, weights):
        self.name, self.seed, self.server, self.watch, self.times = name, seed, server, watch, watch.times
        self.tally, self.ledger, self.weights = tally, ledger, weights
        self.is_open = threading.Event()
        self.has_ended = False
        self.busy = 0
        self.idle = threading.Condition()
        self.threads = [threading.Thread(target=self.live, args=(number,), daemon=True) for number in range(clients)]
        for thread in self.threads:
            thread.start()

    def cpu_shares(self):
        """How much of all cores the server had in the last minute, so that a machine that is too busy can be told from a server
        that does nothing."""
        return [taken.cpu_share for taken in self.watch.samples[-12:] if taken.cpu_share is not None]

    def resume(self):
        self.is_open.set()

    def pause(self, patience_s=150):
        """Lets nobody begin anything and waits until nobody is at it; whether that was reached."""
        self.is_open.clear()
        with self.idle:
            return self.idle.wait_for(lambda: self.busy == 0, patience_s)

    def end(self):
        self.has_ended = True
        self.is_open.set()
        for thread in self.threads:
            thread.join(150)

    def live(self, number):
        names = [name for name in ACTIONS if self.weights.get(name, 0)]
        weights = [self.weights[name] for name in names]
        own = {}
        step = 0
        while not self.has_ended:
            if not self.is_open.wait(0.2) or not self.server.is_up.wait(0.2):
                continue
            with self.idle:
                if not self.is_open.is_set():
                    continue
                self.busy += 1
            try:
                # Not one sequence for all steps: what a step does must not depend on how earlier ones ended.
                chosen = random.Random(f"{self.seed}/{self.name}/{number}/{step}")
                name = chosen.choices(names, weights)[0]
                ACTIONS[name](Visit(self, chosen, number, own, name))
            except Exception as error:  # Of the test itself; it must not end a client silently.
                self.tally.complain("wrong", "the test itself", repr(error))
            finally:
                step += 1
                with self.idle:
                    self.busy -= 1
                    self.idle.notify_all()


class Visit:
    """One step of a client: what it may use, and how its requests are counted."""

    def __init__(self, traffic, chosen, number, own, kind):
        self.traffic, self.random, self.number, self.own, self.kind = traffic, chosen, number, own, kind
        self.server, self.tally, self.ledger, self.seed = traffic.server, traffic.tally, traffic.ledger, traffic.seed
        self.tenant = sorted(self.server.home.keys)[number % len(self.server.home.keys)]
        self.key = self.server.home.keys[self.tenant]
        self.life = self.server.life
        self.began = time.monotonic()

    def client(self, key=None):
        return Client(self.server.address, key or self.key)

    def is_restarting(self):
        return self.server.life != self.life or not self.server.is_up.is_set()

    def is_memory_away(self):
        return self.traffic.times.was("database", self.began, MEMORY_BACK_S)

    def ask(self, method, path, body=None, expect=(200,), key=None, codes=()):
        """The answer, if it is one that was expected: of these statuses, or an error with one of these codes."""
        try:
            answer = self.client(key).ask(method, path, body)
        except Stuck as error:
            return self.stuck(str(error))
        except (OSError, http.client.HTTPException) as error:
            return self.broken(repr(error))
        return self.judge(answer, expect, codes)

    def judge(self, answer, expect=(200,), codes=()):
        status, error = status_of(answer), answer.error
        self.tally.count(self.kind, status, time.monotonic() - self.began)
        if status in expect and not (error and status == 200):
            return answer
        if error.get("code") in codes:
            return None
        why = excuse(answer, self.is_memory_away(), self.is_restarting())
        if why is not None:
            self.tally.expect(why)
            time.sleep(0.1)
            return None
        what = "5xx" if status >= 500 else "status"
        self.tally.complain(what, self.kind, f"{status} {error.get('code')}: {error.get('message', answer.body)}")
        return None

    def stuck(self, detail):
        self.tally.count(self.kind, "stuck")
        # Whoever notices that the machine stood still wakes up at the same moment.
        time.sleep(INTERVAL_S + 1)
        if self.is_restarting():
            self.tally.expect("no answer while it restarts")
        elif self.traffic.times.was(STANDSTILL, self.began):
            self.tally.expect("no answer while the machine stood still")
        else:
            shares = ", ".join(f"{share:.0%}" for share in self.traffic.cpu_shares())
            self.tally.complain("stuck", self.kind, f"{detail}; the server's share of the machine of late: {shares}")

    def broken(self, detail):
        """The connection broke: to be expected only if the server was ended meanwhile."""
        # Whoever ended it says so at the same moment.
        time.sleep(0.2)
        self.tally.count(self.kind, "broken")
        if self.is_restarting():
            self.tally.expect("connection cut by a restart")
        else:
            self.tally.complain("broken", self.kind, detail)

    def wrong(self, detail):
        """An answer that is not what it has to be."""
        self.tally.complain("wrong", self.kind, detail)
