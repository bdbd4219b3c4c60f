"""Simulates how requests are distributed to many workers, and what of their prompts is found cached there.

    python benches/scale/simulate.py
    python benches/scale/simulate.py --trace conversations.jsonl --block 512 --workers 4,16

Without --trace, people hold conversations: each begins with one of some common instructions, and every turn repeats all before it.
A trace has one JSON object in a line, as published ones have it: `timestamp` (ms), `input_length`, `output_length` (tokens), and
`hash_ids`, a number for each block of the prompt that is the same wherever all tokens up to it are.

A worker computes prompts one after the other and answers up to 16 requests at once. The rates are assumed, near those of one
core with the default model, and its cache gives up what was not used for longest. Policies:

    round_robin  one after the other
    least        the worker with the fewest requests
    session      always the same worker for a conversation (by its first block, where a trace has no conversations)
    remembered   by what the router has sent where, as sglang-router and vllm-router do (cache_aware): it does not hear of evictions
    events       by what workers tell of their caches (KV events)

The last two go to the worker that has most of the prompt, unless that has many more requests than another.
"""

import argparse
import collections
import heapq
import json
import random
import statistics

POLICIES = ("round_robin", "least", "session", "remembered", "events")
SLOTS = 16
# As sglang-router has it: beyond both, the load counts and not the cache.
IMBALANCE, IMBALANCE_RATIO = 8, 1.5
# Fewer say little, and more take minutes.
REQUESTS_MIN, REQUESTS_MAX = 3000, 60_000


class Worker:
    def __init__(self, pages):
        self.cache = collections.OrderedDict()
        self.pages = pages
        self.prompts_free_at = 0.0
        self.ends = []
        self.stored = self.removed = 0

    def running(self, now):
        while self.ends and self.ends[0] <= now:
            heapq.heappop(self.ends)
        return len(self.ends)

    def found(self, blocks):
        count = 0
        for block in blocks:
            if block not in self.cache:
                break
            count += 1
        return count

    def keep(self, blocks):
        """The blocks of a text that has been computed; returns those that had to go."""
        gone = []
        # The end first: what comes before it is worth more.
        for block in reversed(blocks):
            if block not in self.cache:
                self.stored += 1
            self.cache[block] = None
            self.cache.move_to_end(block)
        while len(self.cache) > self.pages:
            gone.append(self.cache.popitem(last=False)[0])
        self.removed += len(gone)
        return gone


class Router:
    def __init__(self, policy, workers):
        self.policy, self.workers = policy, workers
        self.next = 0
        self.holders = collections.defaultdict(set)

    def choose(self, request, now):
        blocks, conversation = request["hash_ids"], request["conversation"]
        if self.policy == "round_robin":
            self.next += 1
            return self.next % len(self.workers)
        if self.policy == "session":
            return hash((conversation, 3)) % len(self.workers)
        running = [worker.running(now) for worker in self.workers]
        least = min(range(len(running)), key=lambda at: (running[at], (at + self.next) % len(running)))
        self.next += 1
        if self.policy == "least":
            return least
        best, holders = None, None
        for block in blocks:
            known = self.holders.get(block, set())
            holders = known if holders is None else holders & known
            if not holders:
                break
            best = holders
        if not best:
            return least
        chosen = min(best, key=lambda at: running[at])
        is_busy = running[chosen] - running[least] > IMBALANCE and running[chosen] > running[least] * IMBALANCE_RATIO
        return least if is_busy else chosen

    def told(self, at, blocks, gone):
        for block in blocks:
            self.holders[block].add(at)
        if self.policy == "events":
            for block in gone:
                self.holders[block].discard(at)


def conversations(options, workers):
    """People who begin to talk at random times, wait for answers, read and ask on."""
    chance = random.Random(options.seed)
    requests, block = [], options.block
    number, begin = 0, 0.0
    wanted = max(REQUESTS_MIN, min(options.requests * workers, REQUESTS_MAX))
    while len(requests) < wanted:
        begin += chance.expovariate(options.rate * workers / options.turns)
        common = chance.randrange(options.instructions)
        blocks = [hash((options.seed, 0, common, at)) for at in range(options.common // block)]
        at, turns = begin, 1 + int(chance.expovariate(1 / options.turns))
        for turn in range(turns):
            asked, answered = 20 + int(chance.expovariate(1 / 80)), 10 + int(chance.expovariate(1 / 120))
            blocks = blocks + [hash((number, turn, 1, part)) for part in range(max(1, asked // block))]
            length = len(blocks) * block
            requests.append({"timestamp": at * 1000, "input_length": length, "output_length": answered, "hash_ids": blocks, "conversation": number})
            blocks = blocks + [hash((number, turn, 2, part)) for part in range(answered // block)]
            at += 5 + chance.expovariate(1 / 30)
        number += 1
    # When the last have begun, there are fewer and fewer.
    return sorted((request for request in requests if request["timestamp"] < begin * 1000), key=lambda request: request["timestamp"])


def read(options):
    requests = [json.loads(line) for line in open(options.trace)]
    for request in requests:
        request.setdefault("conversation", request["hash_ids"][0] if request["hash_ids"] else 0)
    return requests


def simulate(requests, policy, count, options):
    workers = [Worker(options.pages * 16 // options.block) for _ in range(count)]
    router = Router(policy, workers)
    waits, found, asked = [], 0, 0
    for request in requests:
        now, blocks = request["timestamp"] / 1000, request["hash_ids"]
        at = router.choose(request, now)
        worker = workers[at]
        cached = worker.found(blocks)
        worker.running(now)
        # One of its places has to be free, and the prompts before have to be computed.
        free = worker.ends[0] if len(worker.ends) >= SLOTS else now
        left = max(1, request["input_length"] - cached * options.block)
        first = max(now, free, worker.prompts_free_at) + left / options.prefill
        worker.prompts_free_at = first
        heapq.heappush(worker.ends, first + request["output_length"] / options.decode)
        if len(worker.ends) > SLOTS:
            heapq.heappop(worker.ends)
        router.told(at, blocks, worker.keep(blocks))
        waits.append(first - now)
        found, asked = found + cached * options.block, asked + request["input_length"]
    seconds = (requests[-1]["timestamp"] - requests[0]["timestamp"]) / 1000
    waits.sort()
    return {
        "policy": policy,
        "workers": count,
        "requests_s": round(len(requests) / seconds, 1),
        "cached": round(found / asked, 3),
        "ttft_p50_ms": round(statistics.median(waits) * 1000),
        "ttft_p99_ms": round(waits[int(len(waits) * 0.99)] * 1000),
        "pages_told_s": round(sum(worker.stored + worker.removed for worker in workers) * options.block / 16 / seconds, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", help="requests as JSON lines")
    parser.add_argument("--workers", default="1,2,4,10,100,1000", help="numbers of workers")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--block", type=int, default=16, help="tokens of a block")
    parser.add_argument("--pages", type=int, default=4096, help="pages of 16 tokens that fit into a worker's memory")
    parser.add_argument("--prefill", type=float, default=450, help="prompt tokens a second of a worker")
    parser.add_argument("--decode", type=float, default=20, help="tokens a second of each answer")
    parser.add_argument("--rate", type=float, default=0.8, help="requests a second for each worker")
    parser.add_argument("--requests", type=int, default=400, help="requests for each worker")
    parser.add_argument("--turns", type=float, default=6, help="mean turns of a conversation")
    parser.add_argument("--instructions", type=int, default=8, help="kinds of common instructions")
    parser.add_argument("--common", type=int, default=640, help="tokens of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.json:
        print(f"{'policy':12} {'workers':>7} {'req/s':>7} {'cached':>7} {'ttft p50':>9} {'p99 ms':>8} {'pages told/s':>13}")
    for count in map(int, options.workers.split(",")):
        requests = read(options) if options.trace else conversations(options, count)
        for policy in options.policies.split(","):
            line = simulate(requests, policy, count, options)
            if options.json:
                print(json.dumps(line), flush=True)
            else:
                print(f"{policy:12} {count:7} {line['requests_s']:7} {line['cached']:7.1%} {line['ttft_p50_ms']:9} {line['ttft_p99_ms']:8} {line['pages_told_s']:13}", flush=True)


if __name__ == "__main__":
    main()
