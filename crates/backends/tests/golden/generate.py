"""Writes <name>.json: texts with the vectors that sentence-transformers (on PyTorch) computes for them.

Run once, outside of the tests:
    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install sentence-transformers
    /tmp/venv/bin/python generate.py minilm ~/.ruvllm/models/minilm
The folder is the one of the store; sentence-transformers 6.2.0, transformers 5.22.2 and torch 2.15.0 were used.
"""

import json
import sys
from pathlib import Path

from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer

TEXTS = [
    "A cat sits on the mat.",
    "A kitten is resting on a rug.",
    "The stock market fell sharply on Monday.",
    "Shares dropped steeply at the start of the week.",
    "a",
    "HELLO, World!! Numbers: 3.14159, 2^10 = 1024; e-mail: someone@example.org",
    "Über die Brücke gehen; Café, naïve, Ærøskøbing, Łódź.",
    "北京是中国的首都。東京は日本の首都です。서울은 한국의 수도이다.",
    "Emoji 🙂🚀 and symbols ∑∞≠ are mostly unknown to this vocabulary \U0010fffd.",
    "fn main() {\n\tprintln!(\"{}\", (1..=10).map(|x| x * x).sum::<i32>());\n}",
    "  leading, trailing and   inner   spaces \t\n ",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis " + "x" * 120,
    "The quick brown fox jumps over the lazy dog. " * 9,
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness. " * 20,
]


def main(name, folder):
    settings = json.loads((Path(folder) / "sentence_bert_config.json").read_text())
    transformer = Transformer(str(folder), max_seq_length=settings["max_seq_length"])
    pooling = Pooling(transformer.get_word_embedding_dimension(), pooling_mode="mean")
    model = SentenceTransformer(modules=[transformer, pooling, Normalize()], device="cpu")
    # One at a time: no padding, so that ours is compared with what padding must not change.
    entries = []
    for text in TEXTS:
        vector = model.encode([text], normalize_embeddings=True)[0]
        tokens = model.tokenize([text])["input_ids"].shape[1]
        entries.append({"text": text, "tokens": int(tokens), "vector": [round(float(value), 6) for value in vector]})
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    Path(__file__).with_name(f"{name}.json").write_text(f"[\n{lines}\n]\n")


main(*sys.argv[1:])
