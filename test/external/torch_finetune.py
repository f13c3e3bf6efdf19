#!/usr/bin/env python3
"""Measures LoRA on Qwen3 0.6B's shape on a CPU, in turns with PEFT, compiled and eager.

  OMP_NUM_THREADS=2 test/external/torch_finetune.py [--rounds 3] [--method qlora]

Each round runs the steps of build/fast/tests --bench step/finetune, then as many of both forms of
PEFT: the same shape, batch, targets, rank and dropout, bf16 with adapters in fp32, random weights
and tokens, AdamW on the adapters. Prints the median tokens/s, and the median of the rounds' ratios.
PEFT has no base in nf4 on CPUs, so --method qlora is measured beside PEFT's LoRA.
"""
import argparse
import re
import statistics
import subprocess
import time

import torch

import torch_lora


def make_model(options):
    from transformers import Qwen3Config, Qwen3ForCausalLM
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen3ForCausalLM._from_config(Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, num_hidden_layers=options.layers,
        max_position_embeddings=40960, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}), attn_implementation="sdpa")
    torch.set_default_dtype(torch.float32)
    return torch_lora.adapted(model.train(), options.dropout)


def run_ours(options):
    text = subprocess.run(
        [options.tests, "--bench", "step/finetune", "--method", options.method,
         "--batch", str(options.batch), "--seq", str(options.seq), "--layers", str(options.layers),
         "--steps", str(options.steps), "--counted", str(options.counted)],
        check=True, capture_output=True, text=True).stdout
    found = re.search(r"tokens/s (\d+), ratio (\S+)", text)
    return float(found[1]), float(found[2])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tests", default="build/fast/tests", metavar="FILE")
    parser.add_argument("--method", choices=("lora", "qlora"), default="lora")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--counted", type=int, default=100, help="percent of tokens in the loss")
    parser.add_argument("--dropout", type=float, default=0.05, help="PEFT's; ours is 0.05")
    options = parser.parse_args()

    model = make_model(options)
    step = torch_lora.training(model, "cpu")
    forms = {"compiled": torch.compile(model), "eager": model}
    tokens = torch.randint(0, 151936, (options.batch, options.seq))
    labels = tokens.masked_fill(torch.rand(tokens.shape) * 100 >= options.counted, -100)
    for call in forms.values():  # compiles
        step(call, tokens, labels)

    def run_peft(call):
        times = []
        for _ in range(options.steps):
            begin = time.perf_counter()
            step(call, tokens, labels)
            times.append(time.perf_counter() - begin)
        return options.batch * options.seq / statistics.median(times)

    speeds = {name: [] for name in ("ours", *forms)}
    for i in range(options.rounds):
        ours, products = run_ours(options)
        speeds["ours"].append(ours)
        for name, call in forms.items():
            speeds[name].append(run_peft(call))
        print(f"round {i + 1}: {options.method} {ours:.0f} tokens/s (step / matmuls {products:.3f}), "
              + ", ".join(f"PEFT {name} {speeds[name][-1]:.1f}" for name in forms), flush=True)
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads, {options.batch} x "
          f"{options.seq}: ours {statistics.median(speeds['ours']):.0f} tokens/s, " + ", ".join(
              f"PEFT {name} {statistics.median(speeds[name]):.1f} (ours "
              f"{statistics.median(a / b for a, b in zip(speeds['ours'], speeds[name])):.2f} times)"
              for name in forms))


if __name__ == "__main__":
    main()
