#!/usr/bin/env python3
"""Trains in PyTorch what a run of ./train trained, and compares the two loss curves.

  test/external/torch_curve.py RUN INITIAL DATA   the run's folder, a checkpoint with the weights
                                                  it began from, and its one training shard

Same weights, batches, schedule and AdamW, under autocast of the run's precision, in transformers;
for models without dropout or accumulation. Prints losses side by side, and how far apart they are,
as mean over windows of steps.
"""
import argparse
import json
import math
import statistics

import numpy
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

GOLDEN, MASK = 0x9E3779B97F4A7C15, 2**64 - 1
SEED_DATA = 1 << 20  # of enum seed_use


def mix(x):
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def random_bits(seed, stream, counter):
    key = mix(mix(seed + GOLDEN & MASK) ^ (stream * GOLDEN + 1 & MASK))
    return mix(key + (counter + 1) * GOLDEN & MASK)


def random_permute(seed, stream, index, count):
    """As in data/util/random.c."""
    half = 1
    while half < 32 and 1 << 2 * half < count:
        half += 1
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for step in range(8):
            left, right = right, left ^ (random_bits(seed, stream * 8 + step, right) & mask)
        index = left << half | right
        if index < count:
            return index


def learning_rate(config, step):
    optimizer, last = config["optimizer"], config["train"]["steps"] - 1
    lr, least, warmup = (optimizer[key] for key in ("lr", "min_lr", "warmup_steps"))
    if step < warmup:
        return lr * (step + 1) / warmup
    peak = max(warmup - 1, 0)
    part = min(max((step - peak) / max(last - peak, 1), 0), 1)
    return least + (lr - least) * 0.5 * (1 + math.cos(math.pi * part))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("initial")
    parser.add_argument("data")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    with open(options.run + "/config.json", encoding="utf-8") as file:
        config = json.load(file)
    with open(options.run + "/metrics.jsonl", encoding="utf-8") as file:
        ours = [line["loss"] for line in map(json.loads, file) if "loss" in line]
    length, rows = config["data"]["seq_len"], config["train"]["micro_batch_size"]
    tokens = numpy.fromfile(options.data, numpy.uint16)[512:].astype(numpy.int64)
    count = -(-(len(tokens) - 1) // length)
    more = count * length - (len(tokens) - 1)  # the end is filled up; those targets are ignored
    inputs = torch.from_numpy(numpy.pad(tokens[:-1], (0, more), constant_values=tokens[-1]))
    targets = torch.from_numpy(numpy.pad(tokens[1:], (0, more), constant_values=-100))
    lower = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config["precision"])
    model = AutoModelForCausalLM.from_pretrained(
        options.initial, dtype=torch.float32, attn_implementation="sdpa",
        trust_remote_code=False).to(options.device).train()
    settings = config["optimizer"]
    groups = [{"params": [w for w in model.parameters() if (w.dim() > 1) == matrix],
               "weight_decay": settings["weight_decay"] if matrix else 0.0}
              for matrix in (True, False)]
    optimizer = torch.optim.AdamW(groups, betas=(settings["beta1"], settings["beta2"]),
                                  eps=settings["eps"])
    theirs, seed = [], random_bits(config["seed"], SEED_DATA, 0)
    for step in range(len(ours)):
        samples = range(step * rows, (step + 1) * rows)
        starts = [random_permute(seed, i // count, i % count, count) * length
                  for i in samples]
        batch, wanted = (torch.stack([part[s:s + length] for s in starts]).to(options.device)
                         for part in (inputs, targets))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step)
        with torch.autocast(options.device, dtype=lower, enabled=lower is not None):
            logits = model(batch).logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings["grad_clip"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        theirs.append(loss.item())
    apart = [a / b - 1 for a, b in zip(ours, theirs)]
    window = max(1, len(apart) // 10)
    for first in range(0, len(apart) - window + 1, window):
        part = slice(first, first + window)
        print(f"  steps {first + 1:4}-{first + window:4}: ours {statistics.mean(ours[part]):.5f}, "
              f"PyTorch {statistics.mean(theirs[part]):.5f}, mean difference "
              f"{100 * statistics.mean(apart[part]):+.3f} %, largest of a step "
              f"{100 * max(map(abs, apart[part])):.3f} %")


if __name__ == "__main__":
    main()
