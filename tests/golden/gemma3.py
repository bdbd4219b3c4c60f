"""Writes gemma3.json: what llama.cpp computes for `gemma3:270m`.

Build reference.c against any llama.cpp, e.g. with its headers and the library of the wheel `xllamacpp`
(2026.9.11063 was used), then

    python gemma3.py ./reference gemma-3-270m-q4_k_m.gguf
"""

import json
import pathlib
import subprocess
import sys

from prompts import PROMPTS

HERE = pathlib.Path(__file__).parent


def main():
    program, model = sys.argv[1:]
    texts = [(HERE.parent / "data" / "essays.txt").read_text(), *(text for _, text in PROMPTS)]
    run = subprocess.run([program, model, "512"], input="\0".join(texts).encode(), capture_output=True, check=True)
    result = json.loads(run.stdout)
    for (name, text), prompt in zip(PROMPTS, result["prompts"], strict=True):
        prompt["name"], prompt["text"] = name, text
    lines = ",\n".join("    " + json.dumps(prompt) for prompt in result["prompts"])
    perplexity = json.dumps(result["perplexity"])
    (HERE / "gemma3.json").write_text(f'{{\n  "perplexity": {perplexity},\n  "prompts": [\n{lines}\n  ]\n}}\n')
    print(perplexity, min(min(prompt["margins"]) for prompt in result["prompts"]))


if __name__ == "__main__":
    main()
