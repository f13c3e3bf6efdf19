#!/usr/bin/env python3
"""Measures sampling of Qwen3 0.6B's shape in bf16 on a CPU: one text, eight at once, and the time
from the start of a process with files in the page cache to its first token.

    python3 test/external/sample_bench.py [--llama PYTHON] [--model FOLDER] [--rounds 5]

    python3 test/external/sample_bench.py --different TESTS [--llama PYTHON] ...

--different measures eight different prompts of 5 to 200 tokens whose texts end at different times,
by TESTS --bench texts/different_prompts, which has the same ones; TESTS is build/fast/tests.

--llama names a Python that has xllamacpp: then llama.cpp continues the same prompt with the same
weights in bf16 and q8_0, in turns, and ratios are those of one run. The model has random weights
and a vocabulary of random merges; FOLDER keeps it, or has a model to measure instead. Needs ./train
(or $TRAIN), 14 GB of memory and 12 GB in FOLDER or $TMPDIR.
"""
import argparse
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

TRAIN = os.environ.get("TRAIN", "./train")
PROMPT = "Once upon a time there was a miller who lived beside a river"
TOKENS, TEXTS, VOCABULARY = 64, 8, 151936
RULES = {"temperature": 0.8, "top_k": 40, "top_p": 0.95}
GGUF_TYPES = ("bf16", "q8_0")
# As in test/model/task/bench_texts.c.
LENGTHS, ENDS = (5, 200, 20, 150, 40, 100, 10, 70), (128, 16, 96, 64, 112, 32, 80, 48)


def alphabet():
    """The characters of GPT-2's byte-level tokenizers, in the order of their bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = (byte for byte in range(256) if byte not in plain)
    shown = {byte: chr(256 + i) for i, byte in enumerate(other)} | {b: chr(b) for b in plain}
    return [shown[byte] for byte in range(256)]


def write_tokenizer(path):
    """Replaces the vocabulary of a byte tokenizer by one of random merges."""
    draw, tokens = random.Random(1), dict.fromkeys(alphabet())
    names, merges = list(tokens), []
    while len(names) < VOCABULARY:
        pair = draw.choice(names), draw.choice(names)
        whole = "".join(pair)
        if len(whole) <= 12 and whole not in tokens:
            tokens[whole] = None
            names.append(whole)
            merges.append(list(pair))
    tokenizer = json.loads(path.read_text())
    tokenizer["pre_tokenizer"]["use_regex"] = True  # llama.cpp knows GPT-2's pattern
    tokenizer["model"] |= {"vocab": {name: i for i, name in enumerate(names)}, "merges": merges}
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))


def train(*arguments):
    subprocess.run([TRAIN, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def make_model(folder):
    """Exports a model after one step from random weights. llama.cpp's copies are exports of it."""
    config = folder / "made.json"
    config.write_text(json.dumps({
        "run_dir": str(folder), "name": "made", "device": "cpu", "precision": "bf16",
        "model": {"preset": "qwen3-0.6b"}, "optimizer": {"name": "sgd", "warmup_steps": 0},
        "data": {"train": "tales", "val": "", "tokenizer": "bytes", "seq_len": 64},
        "train": {"steps": 1, "micro_batch_size": 1}, "eval": {"every": 0},
        "sample": {"every": 0}}))
    train("--config", config)
    train("--export", folder / "model", "--dtype", "bf16", "--from", folder / "made")
    write_tokenizer(folder / "model" / "tokenizer.json")


def run_train(model, texts, tokens):
    """Returns tokens/s and the seconds of the whole process."""
    began = time.monotonic()
    said = subprocess.run(
        [TRAIN, "--sample", PROMPT, "--from", model, "--set", "precision=bf16", "--device", "cpu",
         "--tokens", str(tokens), "--samples", str(texts)]
        + [f"--{rule.replace('_', '-')}={value}" for rule, value in RULES.items()],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True).stderr
    speed = re.search(r"([\d.]+) tokens/s", said)
    return float(speed[1]) if speed else 0, time.monotonic() - began


def open_llama(path, context):
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path, params.n_gpu_layers = path, 0
    params.n_parallel, params.n_ctx = TEXTS, context * TEXTS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = len(os.sched_getaffinity(0))
    params.warmup = False
    return xllamacpp.Server(params)


def at_once(function, values):
    threads = [threading.Thread(target=function, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def llama_different(path):
    """Run by the other Python: prints tokens/s of different prompts, those of prompts included."""
    server, tokens = open_llama(path, 384), []

    def generate(i):
        prompt = [i * 1000 + t * 37 for t in range(LENGTHS[i])]
        answer = server.handle_completions(
            {"prompt": prompt, "max_tokens": ENDS[i], "ignore_eos": True, "seed": i,
             "temperature": 0.8, "top_p": 1, "top_k": 0, "min_p": 0, "cache_prompt": False})
        tokens.append(answer["usage"]["completion_tokens"])

    began = time.monotonic()
    at_once(generate, range(TEXTS))
    print(json.dumps([sum(tokens) / (time.monotonic() - began), sum(tokens)]))


def llama(path):
    """Run by the other Python: prints tokens/s of one text and of several, and the seconds to the
    first token."""
    began = time.monotonic()
    server = open_llama(path, 256)

    def generate(seed, tokens, speeds):
        answer = server.handle_completions(
            {"prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "seed": seed, **RULES})
        speeds.append(answer["timings"]["predicted_per_second"])

    speeds = []
    generate(1, 1, speeds)
    first = time.monotonic() - began
    result = []
    for texts in (1, TEXTS):
        speeds = []
        at_once(lambda seed: generate(seed, TOKENS, speeds), range(texts))  # noqa: B023
        result.append(sum(speeds))
    print(json.dumps([*result, first]))


def run_llama(python, path, *options):
    answer = subprocess.run([python, __file__, "--inside", path, *options], check=True, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return json.loads(answer.splitlines()[-1])


def measure_different(folder, model, options):
    path, speeds = folder / "model-bf16.gguf", {"mantissa": [], "llama.cpp": []}
    if options.llama and not path.exists():
        train("--export", path, "--type", "bf16", "--from", model)
    for _ in range(options.rounds):
        said = subprocess.run([options.different, "--bench", "texts/different_prompts", "--rounds",
                               "1"], check=True, stdout=subprocess.PIPE, text=True).stdout
        speeds["mantissa"].append(float(said.split()[0]))
        if options.llama:
            speeds["llama.cpp"].append(run_llama(options.llama, path, "--different", "x")[0])
    for name, values in speeds.items():
        print(f"{name:12}" + "".join(f"{value:8.1f}" for value in values) + " tokens/s")
    if options.llama:
        pairs = zip(speeds["mantissa"], speeds["llama.cpp"])
        print(f"median ratio {statistics.median(ours / other for ours, other in pairs):.2f}")


def measure(folder, model, options):
    files = {}
    for kind in GGUF_TYPES if options.llama else ():
        files[f"llama.cpp {kind}"] = folder / f"model-{kind}.gguf"
        if not files[f"llama.cpp {kind}"].exists():
            train("--export", files[f"llama.cpp {kind}"], "--type", kind, "--from", model)
    rounds = {name: [] for name in ("mantissa bf16", *files)}
    for _ in range(options.rounds):
        one, eight = run_train(model, 1, TOKENS)[0], run_train(model, TEXTS, TOKENS)[0]
        rounds["mantissa bf16"].append([one, eight, run_train(model, 1, 1)[1]])
        for name, path in files.items():
            rounds[name].append(run_llama(options.llama, path))
    return {name: [statistics.median(column) for column in zip(*values)]
            for name, values in rounds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--llama", metavar="PYTHON")
    parser.add_argument("--model", metavar="FOLDER", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--different", metavar="TESTS")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return llama_different(options.inside) if options.different else llama(options.inside)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.model or pathlib.Path(temporary)
        folder.mkdir(exist_ok=True)
        model = folder if (folder / "config.json").exists() else folder / "model"
        if not model.exists():
            make_model(folder)
        if options.different:
            return measure_different(folder, model, options)
        results = measure(folder, model, options)
    gigabytes = sum(file.stat().st_size for file in model.glob("*.safetensors")) / 1e9
    print(f"{'medians of ' + str(options.rounds):16}{'one text':>12}{TEXTS:>10} at once"
          f"{'first token':>14}")
    for name, (one, eight, first) in results.items():
        print(f"{name:16}{one:8.1f} t/s{eight:14.1f} t/s{first:12.2f} s")
    one, eight = results["mantissa bf16"][:2]
    print(f"weights read at {one * gigabytes:.1f} and {eight / TEXTS * gigabytes:.1f} GB/s")
    for name, other in list(results.items())[1:]:
        print(f"of {name}: {one / other[0]:.2f} and {eight / other[1]:.2f} times")


if __name__ == "__main__":
    sys.exit(main())
