"""What the server has to remember: turns of sessions and policies. The ledger notes what it has acknowledged."""

from home import KEPT
from words import text

TURNS_MAX = 8


def session_turn(visit):
    """Goes on with the session of this client, or begins one. Each turn says something that no other does."""
    session = visit.own.get("session")
    if session is None or session["turns"] >= session["turns_max"]:
        count = visit.own["sessions"] = visit.own.get("sessions", 0) + 1
        name = f"{visit.traffic.name}-{visit.number}-{count}"
        session = {"name": name, "turns": 0, "turns_max": visit.random.randrange(2, TURNS_MAX)}
        visit.own["session"] = session
    session["turns"] += 1
    marker = f"[{session['name']}/{session['turns']}]"
    asked = {
        "model": KEPT, "session": session["name"], "max_completion_tokens": visit.random.randrange(2, 24),
        "messages": [{"role": "user", "content": f"{marker} {text(visit.random, visit.random.randrange(4, 40))}"}],
        "stream": visit.random.random() < 0.5,
    }
    answer = visit.ask("POST", "/v1/chat/completions", asked, codes=("context_length_exceeded",))
    if answer is None:
        # Whether it was stored is open; go on elsewhere.
        visit.own.pop("session")
        return
    if asked["stream"]:
        said = "".join(piece(event) for event in answer.events)
    else:
        said = answer.body["choices"][0]["message"]["content"]
    visit.ledger.answered(visit.tenant, session["name"], session["turns"], marker, said)


def piece(event):
    """The text of one event of a chat."""
    choices = event.get("choices") if isinstance(event, dict) else None
    return choices[0]["delta"].get("content") or "" if choices else ""


def set_policy(visit):
    """Few names, so that they are overwritten again and again; each client has its own."""
    name = f"soak/{visit.number}-{visit.random.randrange(3)}"
    value = {"number": visit.random.randrange(1 << 30)}
    visit.ledger.sends_policy(visit.tenant, name, value)
    answer = visit.ask("PUT", f"/v1/policies/{name}", {"parameters": value})
    if answer is not None:
        visit.ledger.policy_stored(visit.tenant, name, value)


def list_sessions(visit):
    """The list is of what is stored, without what still waits: it tells what can no longer be lost."""
    answer = visit.ask("GET", "/v1/sessions?limit=20")
    for session in answer.body["data"] if answer else []:
        visit.ledger.seen(visit.tenant, session["name"], session["turns"])


def search_witness(visit):
    path = visit.random.choice(["/v1/witness?limit=20", "/v1/witness/stats?since=1h", "/v1/witness?latency=%3E1000"])
    visit.ask("GET", path)


ALL = [session_turn, set_policy, list_sessions, search_witness]
