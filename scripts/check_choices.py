#!/usr/bin/env python3
"""Compares ./train --choices with lm-evaluation-harness, row by row, in fp32.

    python3 scripts/check_choices.py [FOLDER]    FOLDER: for models and rows, build/check_choices

It needs lm_eval, torch and transformers. Small models of random weights are exported and opened by
lm_eval's HFLM; the rows are made here, and nothing is downloaded. Prints one line a model; the exit
status is 1 if a log-likelihood differs by more than 1e-4.
"""
import json
import os
import random
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks.hellaswag.utils import preprocess
from tokenizers import (Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

LIMIT = 1e-4
LLAMA = ["model.norm=rmsnorm", "model.positions=rope", "model.mlp=swiglu", "model.bias=none",
         "model.n_kv_head=2"]
MODELS = {
    "gpt2-bytes": [],
    "llama-bytes": LLAMA,
    "qwen-bytes": LLAMA + ["model.qk_norm=true"],
    "mistral-bytes": LLAMA + ["model.window=20"],
    "gpt2-bpe": ["BPE"],
    "llama-bpe": LLAMA + ["BPE"],
    "llama-bpe-bos": LLAMA + ["BPE"],
    "llama-bpe-spaces": LLAMA + ["BPE"],
}
WORDS = "the cook found a blue door, and Mia said \"No!\" in Zürich: 日本 was far. Why? it's 3.5".split()


def text(random_, count):
    return " ".join(random_.choice(WORDS) for _ in range(count))


def rows():
    """Rows of our own form and of HellaSwag, with the contexts and continuations of lm_eval."""
    random_ = random.Random(5)
    for number in range(60):
        context = text(random_, random_.randrange(1, 12)) if number % 10 else ""
        if context and number % 7 == 3:
            context += " "
        choices = [text(random_, random_.randrange(1, 6)) for _ in range(random_.randrange(2, 6))]
        if len(set(choices)) < len(choices):
            continue
        joint = "" if not context or context[-1] == " " else " "
        yield ({"context": context, "choices": choices, "answer": 0},
               [(context, joint + choice) for choice in choices])
    for number in range(20):
        ctx_a, ctx_b = text(random_, 6), text(random_, 2)
        endings = [text(random_, 4) + " [step] a  b" + str(i) for i in range(4)]
        row = {"activity_label": "Baking", "ctx_a": ctx_a, "ctx_b": ctx_b, "endings": endings,
               "label": "2"}
        query = preprocess("Baking: " + ctx_a + " " + ctx_b.capitalize())
        yield row, [(query, " " + preprocess(ending)) for ending in endings]


def run(*arguments):
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode:
        sys.exit(" ".join(arguments) + ":\n" + done.stdout + done.stderr)


def make_tokenizer(folder, spaces):
    """A tokenizer whose template puts <s> before a text. With `spaces` it is one of characters
    whose tokens span words, so that some of them span a context and its continuation."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=spaces))
    trainer = {"vocab_size": 700, "special_tokens": ["<unk>", "<s>", "</s>"]}
    if spaces:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
             decoders.Strip(" ", 1, 0)])
        trainer["special_tokens"] += [f"<0x{byte:02X}>" for byte in range(256)]
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([text(random.Random(i), 40) for i in range(200)],
                                  trainers.BpeTrainer(show_progress=False, **trainer))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)])
    whole = json.loads(tokenizer.to_str())
    whole["added_tokens"] = whole["added_tokens"][:3]
    os.makedirs(folder)
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(whole, file)
    return tokenizer.get_vocab_size()


def make_model(folder, name, settings):
    """Trains a few steps, so that all weights are random, and exports the model."""
    flags = ["name=" + name, "run_dir=" + folder, "train.steps=3", "data.seq_len=256",
             "model.n_positions=256", "train.micro_batch_size=2", "precision=fp32", "eval.every=0",
             "sample.every=0", "optimizer.lr=0.05"]
    if "BPE" in settings:
        shards = os.path.join(folder, "bpe")
        with open(shards + ".txt", "w", encoding="utf-8") as file:
            file.write(text(random.Random(1), 4000))
        tokenizer, size, kind = "test/golden/tokenizer/small", 1200, "gpt2"
        if not name.endswith("bpe"):
            tokenizer, kind = os.path.join(folder, name + "-tokenizer"), "files"
            size = make_tokenizer(tokenizer, name.endswith("spaces"))
        run("./prepare", "--tokenizer", tokenizer, "--force", "--out", shards, shards + ".txt")
        flags += [f"data.train={shards}_train_*.bin", "data.val=", f"data.tokenizer={kind}",
                  f"data.tokenizer_dir={tokenizer}", f"model.vocab_size={size}"]
    flags += [setting for setting in settings if setting != "BPE"]
    run("./train", "--config", "quickstart.json",
        *[part for flag in flags for part in ("--set", flag)])
    run("./train", "--export", os.path.join(folder, name + "-hf"), "--from",
        os.path.join(folder, name))


def has_tokens(model, pairs):
    """True if each continuation has a token of its own; lm_eval asserts it."""
    return all(not context or model._encode_pair(context, continuation)[1]
               for context, continuation in pairs)


def compare(folder, name, all_rows):
    # With its cache, one-token continuations get the logits of other contexts of the same tokens.
    model = HFLM(pretrained=os.path.join(folder, name + "-hf"), dtype="float32", device="cpu",
                 batch_size=8, logits_cache=False,
                 prefix_token_id=None if "bpe" in name else ord("\n"))
    all_rows = [(row, pairs) for row, pairs in all_rows if has_tokens(model, pairs)]
    with open(os.path.join(folder, "rows.jsonl"), "w", encoding="utf-8") as file:
        for row, _ in all_rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    run("./train", "--choices", os.path.join(folder, "rows.jsonl"), "--from",
        os.path.join(folder, name), "--precision", "fp32", "--out", os.path.join(folder, name))
    with open(os.path.join(folder, name, "choices.json"), encoding="utf-8") as file:
        report = json.load(file)
    requests = [Instance("loglikelihood", {}, pair, 0) for _, pairs in all_rows for pair in pairs]
    theirs = [score for score, _ in model.loglikelihood(requests, disable_tqdm=True)]
    ours = [score for row in report["answers"] for score in row["fp32"]]
    if len(ours) != len(theirs):
        sys.exit(f"{name}: {len(ours)} log-likelihoods, lm_eval has {len(theirs)}")
    worst = max(abs(a - b) for a, b in zip(ours, theirs))
    good = worst <= LIMIT
    print(f"{name:16} {len(all_rows)} rows, {len(ours)} choices: largest difference {worst:.1e}"
          f" {'ok' if good else 'FAILED'}")
    return good


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "build/check_choices"
    subprocess.run(["rm", "-rf", folder], check=True)
    os.makedirs(folder)
    all_rows = list(rows())
    good = True
    for name, settings in MODELS.items():
        make_model(folder, name, settings)
        good = compare(folder, name, all_rows) and good
    sys.exit(not good)


if __name__ == "__main__":
    main()
