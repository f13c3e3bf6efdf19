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


def make_model(folder, name, settings):
    """Trains a few steps, so that all weights are random, and exports the model."""
    flags = ["name=" + name, "run_dir=" + folder, "train.steps=3", "data.seq_len=256",
             "model.n_positions=256", "train.micro_batch_size=2", "precision=fp32", "eval.every=0",
             "sample.every=0", "optimizer.lr=0.05"]
    if "BPE" in settings:
        shards = os.path.join(folder, "bpe")
        with open(shards + ".txt", "w", encoding="utf-8") as file:
            file.write(text(random.Random(1), 4000))
        run("./prepare", "--tokenizer", "test/golden/tokenizer/small", "--force", "--out", shards,
            shards + ".txt")
        flags += ["data.train=" + shards + "_train_*.bin", "data.val=", "data.tokenizer=gpt2",
                  "data.tokenizer_dir=test/golden/tokenizer/small", "model.vocab_size=1200"]
    flags += [setting for setting in settings if setting != "BPE"]
    run("./train", "--config", "quickstart.json",
        *[part for flag in flags for part in ("--set", flag)])
    run("./train", "--export", os.path.join(folder, name + "-hf"), "--from",
        os.path.join(folder, name))


def compare(folder, name, all_rows):
    run("./train", "--choices", os.path.join(folder, "rows.jsonl"), "--from",
        os.path.join(folder, name), "--precision", "fp32", "--out", os.path.join(folder, name))
    with open(os.path.join(folder, name, "choices.json"), encoding="utf-8") as file:
        report = json.load(file)
    model = HFLM(pretrained=os.path.join(folder, name + "-hf"), dtype="float32", device="cpu",
                 batch_size=8, prefix_token_id=None if "bpe" in name else ord("\n"))
    requests = [Instance("loglikelihood", {}, pair, 0) for _, pairs in all_rows for pair in pairs]
    theirs = [score for score, _ in model.loglikelihood(requests, disable_tqdm=True)]
    ours = [score for row in report["answers"] for score in row["fp32"]]
    if len(ours) != len(theirs):
        sys.exit(f"{name}: {len(ours)} log-likelihoods, lm_eval has {len(theirs)}")
    worst = max(abs(a - b) for a, b in zip(ours, theirs))
    good = worst <= LIMIT
    print(f"{name:14} {len(all_rows)} rows, {len(ours)} choices: largest difference {worst:.1e}"
          f" {'ok' if good else 'FAILED'}")
    return good


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "build/check_choices"
    subprocess.run(["rm", "-rf", folder], check=True)
    os.makedirs(folder)
    all_rows = list(rows())
    with open(os.path.join(folder, "rows.jsonl"), "w", encoding="utf-8") as file:
        for row, _ in all_rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    good = True
    for name, settings in MODELS.items():
        make_model(folder, name, settings)
        good = compare(folder, name, all_rows) and good
    sys.exit(not good)


if __name__ == "__main__":
    main()
