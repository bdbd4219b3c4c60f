"""Trains a small LoRA adapter with PEFT, on the weights of a GGUF file, so that there is one to serve.

    python -m venv venv && venv/bin/pip install torch transformers peft gguf
    venv/bin/python benches/adapters/train.py "$(ruvllm show smollm2 --json | jq -r .path)" TEXT.txt my-lora
    ruvllm adapters pull my-lora --name smollm2:mine

The last tenth of the text is held out. Prints its loss before and after, in nats per token: of the second half of each chunk of
--context tokens, as `ruvllm perplexity --context N HELD_OUT` scores it, of the file that --held-out writes, with and without
`--adapter mine`. Its figures are exp(loss). With --figures, the losses are written as JSON.

tests/golden/trained was made with: --rank 2 --modules q_proj,v_proj --epochs 4 --rate 2e-3 --tokens 128 --context 128, of
tests/data/essays.txt.
"""

import argparse
import json
import pathlib

import gguf
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

LINEAR = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="a GGUF file")
    parser.add_argument("text", type=pathlib.Path, help="what to learn")
    parser.add_argument("folder", type=pathlib.Path, help="where the adapter is saved")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--modules", default=LINEAR, help="names of the matrices to change, with commas between them")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=192, help="of each item")
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--context", type=int, default=512, help="tokens of the chunks that are scored")
    parser.add_argument("--held-out", type=pathlib.Path, help="write the held-out text here")
    parser.add_argument("--figures", type=pathlib.Path, help="write the losses here, as JSON")
    return parser.parse_args()


def batches(ids, tokens, size=4):
    items = ids[: len(ids) // tokens * tokens].view(-1, tokens)
    return [items[at : at + size] for at in range(0, len(items), size)]


def bos_of(path):
    """The token that the model wants at the beginning of a text, if it wants one."""
    fields = gguf.GGUFReader(path).fields
    wants = fields.get("tokenizer.ggml.add_bos_token")
    if wants is None or not wants.contents():
        return None
    return fields["tokenizer.ggml.bos_token_id"].contents()


@torch.no_grad()
def loss_of(model, ids, context, bos):
    """The mean surprise of the second halves of all chunks, and how many tokens these have."""
    model.eval()
    first, losses = context // 2, []
    for chunk in ids[: len(ids) // context * context].view(-1, context):
        given = chunk.clone()
        if bos is not None:
            given[0] = bos
        logits = model(input_ids=given[None]).logits[0, first : context - 1]
        losses.append(torch.nn.functional.cross_entropy(logits, chunk[first + 1 :], reduction="none"))
    losses = torch.cat(losses)
    return losses.mean().item(), len(losses)


def train(model, items, options):
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=options.rate)
    for _ in range(options.epochs):
        model.train()
        for index in torch.randperm(len(items)).tolist():
            loss = model(input_ids=items[index], labels=items[index]).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


@torch.no_grad()
def round_to_half(model):
    """What is saved is what is evaluated."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.copy_(parameter.half().float())


def main():
    options = arguments()
    torch.manual_seed(1)
    source = {"pretrained_model_name_or_path": str(options.model.parent), "gguf_file": options.model.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    base = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    text = options.text.read_text()
    cut = len(text) * 9 // 10
    learned, held_out = (tokenizer(part, return_tensors="pt").input_ids[0] for part in (text[:cut], text[cut:]))
    bos = bos_of(options.model)
    before, scored = loss_of(base, held_out, options.context, bos)
    print(f"held-out loss of {scored} tokens: {before:.4f} before", flush=True)
    modules = options.modules.split(",")
    config = peft.LoraConfig(r=options.rank, lora_alpha=2 * options.rank, target_modules=modules, task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, config)
    items = batches(learned, options.tokens)
    train(model, items, options)
    round_to_half(model)
    after, _ = loss_of(model, held_out, options.context, bos)
    # A folder of this machine says nothing to others.
    model.peft_config["default"].base_model_name_or_path = options.model.name
    model.save_pretrained(options.folder)
    weights = options.folder / "adapter_model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(weights).items()}, weights, {"format": "pt"})
    if options.held_out:
        options.held_out.write_text(text[cut:])
    if options.figures:
        versions = {"peft": peft.__version__, "torch": torch.__version__}
        figures = {"loss_before": before, "loss": after, "scored_tokens": scored, "context": options.context, **versions}
        options.figures.write_text(json.dumps(figures, indent=2) + "\n")
    print(f"{after:.4f} after {options.epochs} epochs of {len(items)} batches")


main()
