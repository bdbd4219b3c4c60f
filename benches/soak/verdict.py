"""Whether a run has passed, why not, and its figures."""

from ledger import COUNTS
from watch import slope_per_hour

RSS_GROWTH_MAX = 0.03
# Open files and threads at rest may differ by so many: pools keep some for a while.
SPARE = 8


class Check:
    """One line of the verdict. `passed` is `None` where it could not be told."""

    def __init__(self, name, passed, what):
        self.name, self.passed, self.what = name, passed, what


def checks(run):
    """All of them; the run passes if none has failed."""
    unexpected, ledger = run.tally.unexpected, run.ledgers
    yield Check("run", run.failure is None, run.failure or "went to its end")
    yield Check("requests", run.tally.requests() > 0, f"{run.tally.requests()} were made")
    for name, what in [
        ("5xx", "unexpected 5xx"), ("status", "other unexpected statuses"), ("broken", "connections that broke by themselves"),
        ("stuck", "requests without a byte for 60 s"), ("wrong", "answers that were not what they had to be"),
    ]:
        yield Check(name, unexpected[name] == 0, f"{unexpected[name]} {what}")
    lost = [entry for one in ledger for entry in one.lost]
    total = {name: sum(one.counts[name] for one in ledger) for name in COUNTS}
    kept = f"of {total['turns']} turns, {total['policies']} policies, {total['responses']} responses; {total['checked']} look-ups"
    yield Check("acknowledged", not lost, f"{len(lost)} lost {kept}")
    yield Check("chain", not run.unsound, run.unsound[0] if run.unsound else "the witness log is sound after every restart")
    panics = sum(count for (level, _), count in run.log_kinds.items() if level == "PANIC")
    errors = sum(count for (level, _), count in run.log_kinds.items() if level == "ERROR")
    yield Check("panics", panics == 0, f"{panics} in the log")
    yield Check("errors", errors == 0, f"{errors} lines of the level ERROR in the log")
    ends = run.server.bad_ends
    yield Check("ends", not ends, "every life ended as it was told to" if not ends else f"(life, exit code): {ends}")
    yield Check("books", not run.unbalanced, run.unbalanced[0] if run.unbalanced else f"balanced at {len(run.rests)} rests")
    yield from of_growth(run)


def of_growth(run):
    """Compares rests: nobody asks, and only the models are loaded that were named at the start."""
    if run.first_rest is None or run.last_rest is None or run.first_rest is run.last_rest:
        yield Check("memory", None, "too short to tell: give --for 15m or more")
        return
    first, last = run.first_rest, run.last_rest
    growth = last.rss / first.rss - 1
    points = [(rest.at, rest.rss) for rest in run.rests if rest.life == last.life and rest.at >= first.at]
    slope = slope_per_hour(points)
    told = "" if slope is None else f", {slope / 2**20:+.1f} MiB an hour"
    minutes = (last.at - first.at) / 60
    is_long = minutes >= 5
    what = f"{first.rss / 2**20:.1f} -> {last.rss / 2**20:.1f} MiB in {minutes:.1f} min ({growth:+.1%}{told})"
    if not is_long:
        what += "; too short to judge"
    yield Check("memory", growth <= RSS_GROWTH_MAX if is_long else None, what)
    for name, before, after in [("files", first.files, last.files), ("threads", first.threads, last.threads)]:
        yield Check(name, after <= before + SPARE, f"{before} -> {after}" + (f"; now {last.open_files}" if name == "files" else ""))


def table(run, all_checks):
    lines = [f"seed {run.seed}, {run.took_s / 60:.1f} min, {run.server.life} lives of the server, results in {run.folder}", ""]
    lines += rows([["REQUEST", "COUNT", "SLOWEST", "OUTCOMES"], *(
        [kind, str(sum(outcomes.values())), f"{run.tally.slowest_s[kind]:.1f} s",
         ", ".join(f"{outcome}: {count}" for outcome, count in sorted(outcomes.items()))]
        for kind, outcomes in sorted(run.tally.counts.items())
    )])
    lines += ["", "Expected refusals (not counted against it):"]
    lines += [f"  {count:6} {why}" for why, count in sorted(run.tally.expected.items())] or ["  none"]
    in_time = sum(one.counts["lost_in_time"] for one in run.ledgers)
    lines.append(f"  {in_time:6} turns answered less than the grace before a kill -9 and lost with it")
    lines += ["", "Faults:", "  " + (", ".join(f"{name}: {count}" for name, count in run.times.counts().items()) or "none")]
    lines += [f"  left out: {what}" for what in run.left_out]
    lines += ["", "Warnings and errors in the log:"]
    lines += [f"  {count:6} {level} {what}" for (level, what), count in sorted(run.log_kinds.items())] or ["  none"]
    if run.rests:
        lines += ["", "At rest (minute, MiB resident, of them anonymous, and KV pages, open files, threads):"]
        lines += [f"  {(r.at - run.began) / 60:6.1f} {r.rss / 2**20:8.1f} {r.anonymous / 2**20:8.1f} {r.kv_bytes / 2**20:8.1f} {r.files:5} {r.threads:4}"
                  for r in run.rests]
    for problem in [*run.tally.details[:20], *[entry for one in run.ledgers for entry in one.lost][:20]]:
        lines.append(f"! {problem}")
    lines += [f"! {problem}" for problem in [*run.unbalanced[:20], *run.unsound[:5]]]
    words = {True: "pass", False: "FAIL", None: "-"}
    lines += ["", *rows([["CHECK", "", "WHAT"], *([c.name, words[c.passed], c.what] for c in all_checks)])]
    return "\n".join(lines)


def rows(cells):
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells]


def as_json(run, all_checks):
    return {
        "seed": run.seed, "took_s": round(run.took_s, 1), "lives": run.server.life,
        "passed": all(check.passed is not False for check in all_checks),
        "checks": [{"name": check.name, "passed": check.passed, "what": check.what} for check in all_checks],
        "requests": {kind: dict(outcomes) for kind, outcomes in run.tally.counts.items()},
        "slowest_s": {kind: round(seconds, 2) for kind, seconds in run.tally.slowest_s.items()},
        "expected": dict(run.tally.expected), "unexpected": run.tally.unexpected, "details": run.tally.details,
        "acknowledged": [one.counts for one in run.ledgers], "lost": [entry for one in run.ledgers for entry in one.lost],
        "faults": run.times.counts(), "left_out": run.left_out,
        "log": [{"level": level, "message": what, "count": count} for (level, what), count in sorted(run.log_kinds.items())],
        "unbalanced": run.unbalanced,
        "rests": [of_sample(run, rest) for rest in run.rests],
        "samples": [of_sample(run, taken) for taken in run.watch.samples],
        "starts_s": [round(seconds, 2) for seconds in run.starts_s], "stops_s": [round(seconds, 2) for seconds in run.stops_s],
    }


def of_sample(run, taken):
    return {
        "at_s": round(taken.at - run.began, 1), "life": taken.life, "rss": taken.rss, "anonymous": taken.anonymous,
        "files": taken.files, "threads": taken.threads, "cpu_share": taken.cpu_share,
        "open_files": taken.open_files, "kv_bytes": taken.kv_bytes,
    }
