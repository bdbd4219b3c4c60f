"""Counts what servers have written to their logs, by kind."""

import collections
import json
import re

# Errors that a fault explains. All others fail the run.
EXPLAINED = ()


def kind_of(line):
    """The level of a line and what it says, without what differs each time; `None` for ordinary ones."""
    try:
        entry = json.loads(line)
    except ValueError:
        is_panic = "panicked at" in line
        return ("PANIC", line.strip()) if is_panic else None
    if not isinstance(entry, dict) or entry.get("level") not in ("WARN", "ERROR"):
        return None
    message = re.sub(r"/\S+", "PATH", str(entry.get("message")))
    message = re.sub(r"[0-9a-f]{8,}|\d+", "N", message)
    if "panicked" in message:
        return "PANIC", f"{message}: {entry.get('what')}"
    return entry["level"], message


def count(logs):
    """(level, message) -> how often."""
    kinds = collections.Counter()
    for log in logs:
        with open(log, encoding="utf-8", errors="replace") as lines:
            kinds.update(kind for line in lines if (kind := kind_of(line)))
    return kinds
