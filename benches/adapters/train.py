"""Trains a small LoRA adapter with PEFT, on the weights of a GGUF file, so that there is one to serve.

    python -m venv venv && venv/bin/pip install torch transformers peft gguf
    venv/bin/python benches/adapters/train.py "$(ruvllm show smollm2 --json | jq -r .path)" TEXT.txt my-lora
    ruvllm adapters pull my-lora --name smollm2:mine

The last tenth of the text is held out. Prints its loss before and after, in nats per token. `ruvllm perplexity smollm2 HELD_OUT`,
of the file that --held-out writes, with and without `--adapter mine` shows what is left of that on quantized weights.
"""

import argparse
import pathlib

import peft
import torch
import transformers

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="a GGUF file")
    parser.add_argument("text", type=pathlib.Path, help="what to learn")
    parser.add_argument("folder", type=pathlib.Path, help="where the adapter is saved")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=192, help="of each item")
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--held-out", type=pathlib.Path, help="write the held-out text here")
    return parser.parse_args()


def batches(ids, tokens, size=4):
    items = ids[: len(ids) // tokens * tokens].view(-1, tokens)
    return [items[at : at + size] for at in range(0, len(items), size)]


@torch.no_grad()
def loss_of(model, held_out):
    model.eval()
    losses = [(model(input_ids=batch, labels=batch).loss.item(), len(batch)) for batch in held_out]
    return sum(loss * count for loss, count in losses) / sum(count for _, count in losses)


def main():
    options = arguments()
    torch.manual_seed(1)
    source = {"pretrained_model_name_or_path": str(options.model.parent), "gguf_file": options.model.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    base = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    text = options.text.read_text()
    cut = len(text) * 9 // 10
    ids = [tokenizer(part, return_tensors="pt").input_ids[0] for part in (text[:cut], text[cut:])]
    train, held_out = (batches(part, options.tokens) for part in ids)
    before = loss_of(base, held_out)
    config = peft.LoraConfig(r=options.rank, lora_alpha=2 * options.rank, target_modules=LINEAR, task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, config)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=options.rate)
    for _ in range(options.epochs):
        model.train()
        for index in torch.randperm(len(train)).tolist():
            loss = model(input_ids=train[index], labels=train[index]).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    after = loss_of(model, held_out)
    model.save_pretrained(options.folder)
    if options.held_out:
        options.held_out.write_text(text[cut:])
    print(f"held-out loss: {before:.4f} before, {after:.4f} after {options.epochs} epochs of {len(train)} batches")


main()
