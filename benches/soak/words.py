"""Texts for prompts, all of them from a seed."""

from random import Random

WORDS = (
    "river stone winter garden letter engine window market harbour silver question mountain paper lantern bridge story "
    "forest copper number island morning teacher kitchen travel weather answer history planet music doctor village storm"
).split()

# Beginnings that many requests share, so that cached prefixes are found, shared and given up.
PREFIXES = 6


def text(random, words):
    """So many words, in sentences."""
    chosen = [random.choice(WORDS) for _ in range(words)]
    for at in range(0, len(chosen), 12):
        chosen[at] = chosen[at].capitalize()
    return " ".join(word + ("." if at % 12 == 11 else "") for at, word in enumerate(chosen))


def shared_prefix(seed, number, words):
    """Beginning `number`: the same for everybody in a run."""
    return text(Random(f"{seed}/prefix/{number}"), words)
