"""What the server has acknowledged, and whether it still has it.

What is promised (README, "It remembers"): a policy is stored when its request is answered. A turn of a session is stored
within about a second of its answer; a crash may take what was still waiting, an orderly end must not. Whatever the server
has listed as stored survives both. Responses are kept for as long as the process lives, the newest 1,024 of them.
"""

import threading
import time
from urllib.parse import quote

# Of turns answered this long before a crash, none may be lost: a second until they are written, and time to write on a busy
# machine.
GRACE_S = 3.0
# Fewer than the server keeps, so that none of ours has made room for others.
RESPONSES_MAX = 400

COUNTS = ("turns", "policies", "responses", "checked", "lost_in_time")


class Turn:
    def __init__(self, number, marker, answer):
        self.number, self.marker, self.answer = number, marker, answer
        self.answered_at = time.monotonic()
        # Whether the server has said that it is stored.
        self.is_seen = False


class Ledger:
    def __init__(self):
        self.lock = threading.Lock()
        self.turns = {}
        self.policies = {}
        # Values that were sent and not acknowledged: they hold or they do not.
        self.doubtful = {}
        self.responses = []
        self.touched = set()
        self.counts = dict.fromkeys(COUNTS, 0)
        self.lost = []

    # What is acknowledged.

    def answered(self, tenant, session, number, marker, answer):
        """The answer to turn `number` of a session has come, whole."""
        with self.lock:
            self.turns.setdefault((tenant, session), []).append(Turn(number, marker, answer))
            self.touched.add((tenant, session))
            self.counts["turns"] += 1

    def seen(self, tenant, session, turns):
        """The server has listed a session with so many turns: those are in its store."""
        with self.lock:
            for turn in self.turns.get((tenant, session), []):
                turn.is_seen |= turn.number <= turns

    def sends_policy(self, tenant, name, value):
        with self.lock:
            self.doubtful.setdefault((tenant, name), []).append(value)

    def policy_stored(self, tenant, name, value):
        with self.lock:
            self.policies[tenant, name] = value
            self.doubtful[tenant, name] = []
            self.counts["policies"] += 1

    def response_stored(self, life, tenant, id, text):
        with self.lock:
            self.responses.append((life, tenant, id, text))
            del self.responses[:-RESPONSES_MAX]
            self.counts["responses"] += 1

    # What is still there. Nobody may ask anything meanwhile.

    def check(self, server, killed_at=None, everything=True):
        """Compares with the server. After a crash, turns may be missing that were answered shortly before."""
        with self.lock:
            sessions = sorted(self.turns if everything else self.touched)
            policies = sorted(self.policies)
            self.touched.clear()
        for tenant, name in sessions:
            self.check_session(server, tenant, name, killed_at)
        for tenant, name in policies:
            self.check_policy(server, tenant, name)
        self.check_responses(server)

    def check_session(self, server, tenant, name, killed_at):
        answer = server.client(server.home.keys[tenant]).ask("GET", f"/v1/sessions/{quote(name)}")
        if answer.status not in (200, 404):
            self.note_lost("session", name, f"cannot be read: {answer.status} {answer.error.get('message')}")
            return
        messages = answer.body["messages"] if answer.status == 200 else []
        after = 0
        for turn in list(self.turns[tenant, name]):
            self.counts["checked"] += 1
            places = [at for at, message in enumerate(messages) if is_asked(message, turn.marker)]
            if not places:
                is_excused = killed_at is not None and not turn.is_seen and turn.answered_at > killed_at - GRACE_S
                if is_excused:
                    self.counts["lost_in_time"] += 1
                else:
                    ago = "" if killed_at is None else f", answered {killed_at - turn.answered_at:.1f} s before the crash"
                    seen = ", and was listed as stored" if turn.is_seen else ""
                    self.note_lost("turn", name, f"turn {turn.number} is missing{ago}{seen}")
                self.turns[tenant, name].remove(turn)
                continue
            at = places[0]
            said = messages[at + 1].get("content") if at + 1 < len(messages) else None
            if len(places) > 1:
                self.note_lost("turn", name, f"turn {turn.number} is there {len(places)} times")
            elif at < after:
                self.note_lost("turn", name, f"turn {turn.number} is out of order")
            elif said != turn.answer:
                self.note_lost("turn", name, f"turn {turn.number} has another answer: {said!r}, not {turn.answer!r}")
            after = at

    def check_policy(self, server, tenant, name):
        self.counts["checked"] += 1
        path = f"/v1/policies/{quote(name)}"
        answer = server.client(server.home.keys[tenant]).ask("GET", path)
        value = answer.body.get("parameters") if answer.status == 200 else None
        allowed = [self.policies[tenant, name], *self.doubtful.get((tenant, name), [])]
        if value not in allowed:
            self.note_lost("policy", name, f"{answer.status} {value}, not {allowed[0]}")

    def check_responses(self, server):
        for life, tenant, id, text in self.responses:
            if life != server.life:
                continue
            self.counts["checked"] += 1
            answer = server.client(server.home.keys[tenant]).ask("GET", f"/v1/responses/{id}")
            if answer.status != 200 or output_text(answer.body) != text:
                self.note_lost("response", id, f"{answer.status}")

    def note_lost(self, kind, name, what):
        self.lost.append({"kind": kind, "name": name, "what": what})


def is_asked(message, marker):
    """Whether this is the question with that mark; an answer may repeat it."""
    return message.get("role") == "user" and marker in (message.get("content") or "")


def output_text(response):
    """What a response of /v1/responses says."""
    texts = [part.get("text", "") for item in response.get("output", []) for part in item.get("content") or []]
    return "".join(texts)
