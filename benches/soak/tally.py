"""Counts what became of requests, and tells what was to be expected from what was not."""

import collections
import threading
import time

# Kept in full, so that a failed run can be looked into; more are only counted.
DETAILS_MAX = 200

# What may be refused at any time, if it says when to come back.
BUSY = {(429, "queue_full"), (429, "rate_limit_exceeded"), (503, "models_in_use")}


class Tally:
    def __init__(self):
        self.lock = threading.Lock()
        self.began = time.monotonic()
        # kind -> outcome -> count; outcomes are statuses, and words for what has none.
        self.counts = collections.defaultdict(collections.Counter)
        # Of expected refusals and broken connections: why -> count.
        self.expected = collections.Counter()
        self.unexpected = {"5xx": 0, "status": 0, "broken": 0, "stuck": 0, "wrong": 0}
        self.details = []
        self.slowest_s = collections.defaultdict(float)

    def count(self, kind, outcome, took_s=0.0):
        with self.lock:
            self.counts[kind][str(outcome)] += 1
            self.slowest_s[kind] = max(self.slowest_s[kind], took_s)

    def expect(self, why):
        with self.lock:
            self.expected[why] += 1

    def complain(self, what, kind, detail):
        """Something that must not happen."""
        with self.lock:
            self.unexpected[what] += 1
            if len(self.details) < DETAILS_MAX:
                at_s = round(time.monotonic() - self.began, 1)
                self.details.append({"at_s": at_s, "what": what, "kind": kind, "detail": detail})

    def requests(self):
        with self.lock:
            return sum(sum(outcomes.values()) for outcomes in self.counts.values())


def excuse(answer, is_memory_away, is_restarting):
    """Why a refused request was to be expected; `None` if it was not."""
    error = answer.error
    status, code = status_of(answer), error.get("code")
    if (status, code) in BUSY and (answer.retry_after or answer.status == 200):
        return f"{status} {code}"
    if status == 503 and is_restarting:
        return "503 while it starts or stops"
    if status == 503 and is_memory_away:
        return "503 while the database is away"
    return None


def status_of(answer):
    """The status of an answer; of a stream that failed midway, what its error would have had."""
    error = answer.error
    if answer.status == 200 and error:
        words = {"overloaded_error": 503, "timeout_error": 504, "server_error": 500, "api_error": 500}
        if error.get("code") in ("unavailable", "engine_failed"):
            return 503
        return words.get(error.get("type"), 500)
    return answer.status
