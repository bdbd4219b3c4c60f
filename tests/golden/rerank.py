"""Writes rerank/: tiny random cross-encoders of each architecture, and rerank/scores.json with what transformers computes.

Run once, outside of the tests:
    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch transformers
    /tmp/venv/bin/python tests/golden/rerank.py
transformers 4.53.3 and torch 2.6.0 were used.
"""

import json
import shutil
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = Path(__file__).parent / "rerank"
CONTEXT = 64
TEXT = """the quick brown fox jumps over the lazy dog while a river runs past the harbour and ships carry tea and coal
who wrote this letter and when was it sent to paris in the year of the great fire nobody can say for certain
water boils at one hundred degrees and freezes at zero; ice floats because it is lighter than water
a good bread needs flour, salt, yeast, time and heat; the baker gets up at four in the morning"""

# Short, long, of the same length, beyond the context in either text and in both, in other scripts. Marks of
# the model itself are not among them: transformers takes them for what they stand for, we take them for text.
LONG = "the harbour was quiet and the ships carried tea and coal while the river ran past "
CASES = [
    ("who wrote this letter", "nobody can say for certain who wrote it"),
    ("who wrote this letter", "a good bread needs flour, salt and yeast"),
    ("who wrote this letter", "ice"),
    ("a", "b"),
    ("water", "water boils at one hundred degrees and freezes at zero; ice floats because it is lighter than water"),
    ("Où est la gare ?", "北京 is far; Łódź is not. 🙂"),
    ("what does (this) mean?", "it is not <that> or [that]; it's the end of a text"),
    ("who wrote this letter", LONG * 3),
    (LONG * 3, "nobody can say"),
    (LONG * 2, LONG * 3 + "fish"),
    (LONG * 3, LONG * 2),
    ("who wrote this letter", "   "),
]


def word_pieces():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def train(tokenizer, trainer):
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    return tokenizer


def bert():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = train(word_pieces(), trainers.WordPieceTrainer(vocab_size=160, special_tokens=special))
    ids = {token: tokenizer.token_to_id(token) for token in special}
    pair = "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair=pair, special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    return tokenizer, transformers.BertTokenizerFast, transformers.BertConfig, {"pad_token_id": 0, "type_vocab_size": 2}


def roberta_specials():
    return ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def roberta():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=roberta_specials(), initial_alphabet=alphabet)
    tokenizer = train(tokenizer, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(sep=("</s>", 2), cls=("<s>", 0), add_prefix_space=False)
    return tokenizer, transformers.RobertaTokenizerFast, transformers.RobertaConfig, {"type_vocab_size": 1}


def xlm_roberta():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=160, special_tokens=roberta_specials(), unk_token="<unk>")
    tokenizer = train(tokenizer, trainer)
    template = ("<s> $A </s>", "<s> $A </s> </s> $B </s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template[0], pair=template[1], special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer, transformers.XLMRobertaTokenizerFast, transformers.XLMRobertaConfig, {"type_vocab_size": 1}


def mpnet():
    special = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    tokenizer = train(word_pieces(), trainers.WordPieceTrainer(vocab_size=160, special_tokens=special))
    tokenizer.post_processor = processors.RobertaProcessing(sep=("</s>", 2), cls=("<s>", 0), add_prefix_space=False)
    return tokenizer, transformers.MPNetTokenizerFast, transformers.MPNetConfig, {}


def make(name, parts):
    tokenizer, tokenizer_class, config_class, options = parts()
    folder = ROOT / name
    file = folder / "raw.json"
    folder.mkdir(parents=True)
    tokenizer.save(str(file))
    # The class gives the tokens their roles; those that it assumes are those of the file.
    roles = {} if name != "mpnet" else {"unk_token": "[UNK]", "bos_token": "<s>", "eos_token": "</s>"}
    wrapped = tokenizer_class(tokenizer_file=str(file), model_max_length=CONTEXT, **roles)
    wrapped.save_pretrained(folder)
    for extra in ["raw.json", "vocab.json", "merges.txt", "vocab.txt", "special_tokens_map.json"]:
        (folder / extra).unlink(missing_ok=True)
    config = config_class(
        vocab_size=len(wrapped), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=CONTEXT + 2, num_labels=1, hidden_dropout_prob=0, attention_probs_dropout_prob=0, **options,
    )
    torch.manual_seed(len(name))
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    # Large enough that every layer matters; rounded to half precision, in which they are stored.
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
        parameter.data = parameter.data.half().float()
    scores = [score(model, wrapped, *case) for case in CASES]
    model.half().save_pretrained(folder)
    return scores


@torch.no_grad()
def score(model, tokenizer, query, document):
    inputs = tokenizer(query, document, truncation="longest_first", max_length=CONTEXT, return_tensors="pt")
    logit = model(**inputs).logits[0, 0].item()
    return {"query": query, "document": document, "tokens": inputs["input_ids"].shape[1], "logit": round(logit, 7)}


def main():
    shutil.rmtree(ROOT, ignore_errors=True)
    all_parts = {"bert": bert, "roberta": roberta, "xlm-roberta": xlm_roberta, "mpnet": mpnet}
    scores = {name: make(name, parts) for name, parts in all_parts.items()}
    lines = []
    for name, cases in scores.items():
        entries = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
        lines.append(f'"{name}": [\n{entries}\n]')
    (ROOT / "scores.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


main()
