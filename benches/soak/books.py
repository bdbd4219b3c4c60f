"""The server's own books, which must balance when nobody asks anything."""

import re
import time

# How long requests that were left may take to end, and entries to be written.
SETTLE_MAX_S = 30

LINE = re.compile(r"^([a-zA-Z_:]+)(?:\{(.*)\})? (\S+)$")


def read(server):
    """All values of /metrics: name -> labels -> value."""
    values = {}
    text = server.operator().ask("GET", "/metrics").body
    for line in text.splitlines():
        if match := LINE.match(line):
            values.setdefault(match[1], {})[match[2] or ""] = float(match[3])
    return values


def problems(values, disk_bytes_max):
    """What is not as it has to be at rest."""
    found = []

    def must_be(name, expected):
        for labels, value in values.get(name, {}).items():
            if value != expected:
                found.append(f"{name}{{{labels}}} is {value:g}, not {expected:g}")

    must_be("vllm:num_requests_running", 0)
    must_be("vllm:num_requests_waiting", 0)
    must_be("ruvllm_witness_waiting", 0)
    # The one that asks for this.
    must_be("ruvllm_http_requests_running", 1)
    must_be("ruvllm_connections", 1)
    cached = values.get("ruvllm_kv_cached_pages", {})
    for model, pages in values.get("ruvllm_kv_pages", {}).items():
        # Every page that holds something is one of the cache: no request holds any. Of a model that was unloaded, none does.
        if pages not in (0, cached.get(model, 0)):
            found.append(f"{pages:g} pages of {{{model}}} hold something and {cached.get(model, 0):g} are cached")
    budgets = values.get("ruvllm_kv_budget_bytes", {})
    for model, used in values.get("ruvllm_kv_bytes", {}).items():
        if used > budgets.get(model, 0):
            found.append(f"{used:g} bytes of KV memory of {{{model}}}, more than its budget of {budgets.get(model, 0):g}")
    for model, used in values.get("ruvllm_kv_disk_bytes", {}).items():
        if used > disk_bytes_max:
            found.append(f"{used:g} bytes of KV pages on disk of {{{model}}}, more than {disk_bytes_max}")
    for name in ["ruvllm_witness_overflowed_total", "ruvllm_witness_lost_total"]:
        must_be(name, 0)
    return found


def settled(server, disk_bytes_max):
    """Waits until the books balance, for as long as they may take; what is wrong with them then, and the last values."""
    deadline = time.monotonic() + SETTLE_MAX_S
    while True:
        values = read(server)
        wrong = problems(values, disk_bytes_max)
        if not wrong or time.monotonic() > deadline:
            return wrong, values
        time.sleep(0.5)
