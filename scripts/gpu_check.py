#!/usr/bin/env python3
"""Tests and measures on a machine with an NVIDIA GPU, nvcc, gcc and make, the most important first,
and ends in time. Installs nothing. The parts, in their order:

{parts}

Ends with tables and a verdict; FOLDER (build/gpu_check) has them as table.txt, and all logs and
figures; FOLDER.tar.gz has all of it, written anew every ten seconds, so that a machine that is
taken away leaves it. Exit status 1 if a part failed. Missed aims are marked, but are no failure.

Only cJSON and stb_ds.h are required, from the system (libcjson-dev, libstb-dev) or from a folder
copied to the machine:
  scripts/gpu_check.sh --bundle                       on a machine with packages: 0.2 MB
  tar c build/packages | ssh GPU tar x -C FOLDER      to the same path in the checkout there
make uses build/packages if it exists (elsewhere: make PACKAGES=FOLDER).
"""
import argparse
import collections
import concurrent.futures
import contextlib
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import types

sys.dont_write_bytecode = True  # no __pycache__ beside the scripts
from gpu_check_table import files_of, find_aims, lines_of, tables

MAKE = "make -k -j{cpus} {make}"
BENCH = "{folder}/gpu_bench {tiny} --batch {batch} --json {out}/"
TORCH = "python3 test/external/torch_bench.py {torch_tiny} --seconds 1 "
TORCH_LORA = "python3 test/external/torch_lora.py --train "
TRAIN = "{folder}/train --set run_dir={runs} --set eval.every=0 --set sample.every=0 "
STEP = "{folder}/gpu_bench {tiny} --steps-only 1 --seconds 0.1 --json {out}/"
TWELVE = TRAIN + "--device cuda --set name=twelve --set train.steps=12 --set data.train=tales --set data.val= --set " \
         "data.tokenizer=bytes --set checkpoint.every=0 --set optimizer.warmup_steps=0 "
LAB = "env TRAIN={folder}/train COMPARE={folder}/compare scripts/compare_precisions.sh fp16.json " \
      "--precisions fp32,bf16,fp16,fp8,nvfp4 --out {runs}/lab -- --device cuda {lab}"
COMPARED = ("fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4")
# Largest relative difference of the loss and the norm of a step. GPU and CPU round in the same places
# but add in another order, as two levels of CPU instructions do. Those (MANTISSA_CPU=v3 and v4, the
# same three steps) differ by at most 1.1e-7 and 2.3e-7 in fp32, 5.9e-5 and 2.5e-4 in 16 bit, 2.2e-4
# and 9.2e-4 in fp8, 3.2e-4 and 2.3e-3 in mxfp8, 6.0e-4 and 3.4e-3 in nvfp4; about 15 times that is
# allowed, and more in fp32, since a GPU's exponentials and roots are approximations.
LIMITS = {"fp32": (1e-5, 1e-4), "bf16": (1e-3, 4e-3), "fp16": (1e-3, 4e-3), "fp8": (3e-3, 1.4e-2),
          "mxfp8": (5e-3, 3.5e-2), "nvfp4": (9e-3, 5e-2)}
# racecheck leaves out the last two suites, since it does not know wgmma's asynchronous reads.
SANITIZED = ("cast clear loss_sum adamw gradient_norm gelu embedding column_sums quantize layernorm "
             "dropout matmul moments momentum qk_norm causal_convolution delta_rule "
             "attention attention_mma attention_mma_backward").split()


# ---- commands

def words_of(c, template):
    """The words of a command, with {name} replaced; a word that names a list becomes its words."""
    lists = {f"{{{name}}}": value for name, value in vars(c).items() if isinstance(value, list)}
    return [one for word in template.split() for one in lists.get(word) or (
        [] if word in lists else [word.format(**vars(c))])]


def call(words, log=None):
    """True if the command ends with status 0. Its output goes to the file `log`, if one is given."""
    sys.stdout.flush()
    try:
        with open(log, "w", encoding="utf-8") if log else contextlib.nullcontext() as file:
            return subprocess.run(words, stdout=file, stderr=file and subprocess.STDOUT,
                                  check=False).returncode == 0
    except OSError as error:
        print("error:", error)
        return False


def output_of(words, **more):
    """The output of a command, and True if its status is 0; "" if there is no such command."""
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, errors="replace",
                              check=False, **more)
        return done.stdout, done.returncode == 0
    except OSError:
        return "", False


def nvidia_smi(*words):
    index = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return ["nvidia-smi", "-i", index, "--format=csv,noheader,nounits", *words]


def gpu_query(fields, kind="gpu"):
    return output_of(nvidia_smi(f"--query-{kind}={fields}"), stderr=subprocess.DEVNULL)[0].strip()


def remove(*paths):
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


# ---- parts whose commands depend on what the ones before printed

def tests(c):
    """Tests that fail run again, alone and by name. In a rehearsal a few stand for all, which run in
    make test-device, and Criterion may be the runner."""
    options, program, log = "--timeout 60 --share --filter *", f"{c.folder}/device_tests", []
    if c.rehearsal:
        options = "--timeout 240 --filter @(cast/*|clear/*|attention_mma/causal|gpt_golden/bf16*)"
    with subprocess.Popen([program, "--jobs", str(c.jobs), *options.split()], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace") as running:
        for line in running.stdout:
            print(line, end="", flush=True)
            log.append(line)
    found = {"/".join(pair) for pair in re.findall(r"^\[(?:FAIL|CRASH)\] ([^:]+)::([^ :]+)", "".join(log),
                                                   re.M)}
    names = "|".join(sorted(found)[:30])
    if running.returncode == 0 or not names:
        return running.returncode == 0
    print("again, alone:", names)
    return call(["timeout", "40", program, *f"--jobs 1 --timeout 30 --filter @({names})".split()])


def train(c, name, device, settings, keep=False):
    """Three steps, with the matmuls that the library ranks first, since trials that time ends may choose
    others the second time."""
    remove(f"{c.runs}/{name}")
    log = f"{c.numbers}/{name}.txt"
    if not call([*words_of(c, TRAIN + "--config fp32.json --set train.steps=3 --set log.every=10 --set "
                           "optimizer.warmup_steps=2 --set checkpoint.background=false --set autotune=off "
                           "{gpt2}"), "--device", device, "--set", f"name={name}",
                 *(word for setting in settings.split() for word in ("--set", setting))], log):
        print(f"{name}: failed", *lines_of(log)[-5:], sep="\n")
        return False
    finish(c, name, keep)
    return True


def finish(c, name, keep=False):
    """Keeps metrics.jsonl as NAME.jsonl, and trainer.json, which has the SHA-256 of weights and
    moments, as NAME.json."""
    for file in files_of(f"{c.runs}/{name}", "checkpoints/*/trainer.json")[-1:]:
        shutil.copy(file, f"{c.numbers}/{name}.json")
    for file in files_of(f"{c.runs}/{name}", "metrics.jsonl"):
        shutil.copy(file, f"{c.numbers}/{name}.jsonl")
    if not keep:
        remove(f"{c.runs}/{name}")


def say(good, text):
    print("ok  " if good else "NO  ", text, flush=True)
    return good


def same(c, one, other, what):
    """Equal weights and moments, by their SHA-256."""
    sums = [[line for line in lines_of(f"{c.numbers}/{name}.json") if "safetensors" in line]
            for name in (one, other)]
    good = bool(sums[0]) and sums[0] == sums[1]
    return say(good, f"{what}: {'the same' if good else 'other'} bits")


def close(c, one, other, precision, what):
    """The losses and norms of each step agree to the limits of the precision."""
    ours, theirs = (lines_of(f"{c.numbers}/{name}.jsonl") for name in (one, other))
    if not theirs:
        print(f"-    {what}: there was no time for {other}")
        return True

    def apart(name, records):
        x, y = (record.get(name) for record in records)
        return abs(x / y - 1) if x is not None and y and math.isfinite(x / y) else 9
    pairs = [[json.loads(line) for line in pair] for pair in zip(ours, theirs) if '"loss"' in pair[0]]
    found = [[apart("loss", pair), apart("grad_norm", pair)] for pair in pairs]
    good = len(found) == 3 and all(x <= limit for pair in found
                                   for x, limit in zip(pair, LIMITS[precision]))
    return say(good, f"{what:<34}" + "".join(f"  {x:.1e} {y:.1e}" for x, y in found))


def references(c):
    """The CPU's runs, which need no GPU: made before, or beside the tests on half of the cores."""
    threads = c.cpus if c.arch == 0 else (c.cpus + 1) // 2
    return all([train(c, f"cpu-{precision}", "cpu", f"precision={precision} threads={threads}")
                for precision in COMPARED])


def numbers(c):
    """Losses and norms of three steps of GPT-2 124M, 1 x 1024 tokens."""
    def twin(name, settings, what, of="gpu-bf16"):
        return train(c, name, "cuda", settings) and same(c, name, of, what)
    good = [train(c, "gpu-bf16", "cuda", "precision=bf16"),
            twin("again", "precision=bf16", "bf16 twice"),
            twin("one-by-one", "precision=bf16 cuda_graphs=false", "bf16 without graphs")]
    if train(c, "resumed", "cuda", "precision=bf16 checkpoint.every=2", keep=True):
        remove(*files_of(f"{c.runs}/resumed", "checkpoints/*3"))
        os.unlink(f"{c.numbers}/resumed.json")
        call([f"{c.folder}/train", "--resume", f"{c.runs}/resumed"], f"{c.numbers}/resumed.txt")
    finish(c, "resumed")
    good.append(same(c, "resumed", "gpu-bf16", "bf16 resumed after step 2"))
    print("     differences of loss and gradient norm, steps 1 to 3")
    for p in COMPARED:
        good += [p == "bf16" or train(c, f"gpu-{p}", "cuda", f"precision={p}"),
                 close(c, f"gpu-{p}", f"cpu-{p}", p, f"{p}, GPU and CPU")]
    good += [twin(f"{p}-again", f"precision={p}", f"{p} twice", f"gpu-{p}") for p in ("fp8", "nvfp4")]
    if c.arch == 90:
        good.append(train(c, "mma", "cuda", "precision=bf16 cuda_wgmma=false") and
                    close(c, "mma", "gpu-bf16", "bf16", "bf16 without wgmma, and with"))
    return all(good)


def kill(c):
    """A run that is killed while it trains or saves, twice, and resumed: the bits of one that was not."""
    steps, every = (12, 2) if c.rehearsal else (60, 10)
    run = words_of(c, TRAIN + "--device cuda --config bf16.json --set autotune=off {gpt2} --set "
                   f"train.steps={steps} --set checkpoint.every={every} --set")
    remove(f"{c.runs}/straight")
    if not call([*run, "name=straight"], f"{c.numbers}/straight.txt"):
        return False
    finish(c, "straight")
    good = True
    for step in (2 * every, 4 * every):
        remove(f"{c.runs}/killed")
        with open(f"{c.numbers}/killed.txt", "w", encoding="utf-8") as log, subprocess.Popen(
                [*run, "name=killed"], stdout=log, stderr=log) as running:
            while running.poll() is None and not files_of(
                    f"{c.runs}/killed", f"checkpoints/*{step}/trainer.json"):
                time.sleep(0.002)
            running.kill()
        good &= call([f"{c.folder}/train", "--resume", f"{c.runs}/killed"], f"{c.numbers}/killed.txt")
        finish(c, "killed")
        good &= same(c, "killed", "straight", f"bf16 killed after step {step} and resumed")
    return good


def brim(c):
    """The largest batch that --fit allows must train: memory as planned, up to the brim."""
    run = words_of(c, TRAIN + "--device cuda --config bf16.json --set name=brim --set train.steps=3 {gpt2} "
                   f"--set train.micro_batch_size={16 if c.rehearsal else 1024}")
    fit = []
    if c.rehearsal:  # 0.15 MiB less than it takes
        text, _ = output_of([*run, "--dry-run", "--fit", "0.0001"])
        fit = [f"{(float(re.search('it takes ([0-9.]+) MiB', text)[1]) - 0.15) / 1024:g}"]
    found, good = output_of([*run, "--dry-run", "--fit", *fit])
    print(found, end="")
    for setting in re.findall(r"^  --set ([^ \n]+)", found, re.M):
        run += ["--set", setting]
    return good and call(run)


def sanitizer(c):
    """The tools of compute-sanitizer in parallel, each suite by suite until its time is over."""
    def sanitize(tool):
        suites = SANITIZED[:-2] if tool == "racecheck" else SANITIZED
        over, done, faults = time.monotonic() + 60, [], []
        for suite in suites:
            left = max(1, round(over - time.monotonic()))
            text, good = output_of(
                f"timeout -k 5 {left} {c.sanitizer} --tool {tool} --error-exitcode 9 --target-processes all "
                f"{c.folder}/device_tests --no-fork --filter {suite}/*".split(), stderr=subprocess.STDOUT)
            with open(f"{c.out}/{tool}.txt", "a", encoding="utf-8") as log:
                log.write(text)
            if not good and time.monotonic() > over:
                break
            done.append(suite if good else f"{suite} (failed)")
            faults += [] if good else re.findall(r"^(?:=========|\[FAIL).*", text, re.M)
        return say(not any(" " in one for one in done), "\n".join(
            [f"{tool}: {len(done)} of {len(suites)} suites: {' '.join(done)}", *faults[:20]]))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return all(list(pool.map(sanitize, ("memcheck", "synccheck", "initcheck", "racecheck"))))


# ---- the parts by worth

def lora(c):
    """LoRA on an 8B model of random weights, whose frozen layers are in GPU memory or streamed: if copies
    overlap with work, the step takes the longer of the two. PEFT on the same."""
    yield "python3 test/external/torch_lora.py --write {runs}/llama"
    for base in ("bfloat16", "nf4"):
        for streams in ("false", "true"):
            yield f"echo base {base}, offload.weights {streams}"
            yield TWELVE + "--config finetune-lora.json --set precision=bf16 --set model.init_from=" \
                "{runs}/llama --set data.seq_len=4096 --set train.micro_batch_size=1 --set " \
                "train.grad_accum_steps=1 --set adapter.dropout=0 --set adapter.base=" \
                f"{base} --set offload.weights={streams}"
            yield "rm -rf {runs}/twelve"
    yield "-" + TORCH_LORA + "{runs}/llama"
    yield "rm -rf {runs}"


def full(c):
    """Fine-tuning of all weights, here and in transformers. Host memory costs no time while its copies take
    less than the work of a step."""
    host = ["offload.weights=true", "offload.gradients=true", "offload.activations=true"]
    together = "offload.weights=true offload.gradients=true offload.optimizer=true"
    for settings in ("optimizer.moments=int8", *host, together, "optimizer.moments=float32"):
        yield "rm -rf {runs}/twelve"
        yield f"echo {settings}"
        yield TWELVE + "--config bf16.json --set model.preset=gemma-3-1b --set data.seq_len=1024 --set " \
            "train.micro_batch_size=4 {full} --set " + settings.replace(" ", " --set ")
    if not c.rehearsal and c.torch == 1:
        yield "-" + TORCH_LORA + "--full --compile --batch 4 --seq 1024 {runs}/twelve/checkpoints/step-00000012"
    yield "rm -rf {runs}/twelve"


Part = collections.namedtuple("Part", "name seconds program shown what advice run", defaults=[()])
PROGRAMS = ("train", "prepare", "compare", "device_tests", "gpu_bench")
STEPS, UNMEASURED = r"memory|step +12/|^base |=|tokens/s", "its log names what could not be measured"
# Seconds at most (measured on an H200 with 16 cores and rounded up by half), the program that is needed, the
# lines of the log for the table (the last N, or a pattern), what to try after a failure, and the commands:
# a function, or templates, of which - marks those that may fail.
PARTS = {part.name: part for part in (Part(*row) for row in (
    ("build", 150, "", 0, "for this GPU", "its end names the file; CUDA 12.1 or newer and gcc 9 or newer "
     "are needed; run this again if it needed more time", [MAKE + "".join(
         f" {{folder}}/{program}" for program in PROGRAMS)]),
    ("conformance", 40, "", 0, "instructions, compared with the emulator", "an instruction does other than "
     "the emulator: trust no figure", [MAKE + " {folder}/conformance", "{folder}/conformance"]),
    ("tests", 130, "device_tests", 0, "of all operations, and whole trainings compared with PyTorch's steps",
     "the log names operation, shape and error; the CPU is right; attention: train with --set "
     "cuda_wgmma=false", tests),
    ("numbers", 90, "train", 16, "GPT-2 124M: the same bits twice, without graphs and resumed; losses and "
     "norms by precision beside the CPU's", "the first NO; try --set cuda_graphs=false and cuda_wgmma=false",
     numbers),
    ("bench", 75, "gpu_bench", 0, "speed of steps, operations, attention and the hardware's limits",
     UNMEASURED, [BENCH + "gpu_bench.json --seconds {seconds}"]),
    ("torch", 75, "", 0, "PyTorch on the same model, bf16 first, compiled and eager", "see torch.log",
     [TORCH + "--batch {batch} --steps-only --precision " + more for more in (
         "bf16 --json {out}/torch_bench.json", "bf16 --eager",
         "fp16 --precision tf32 --precision fp32 --json {out}/torch_more.json")]),
    ("autotune", 40, "gpu_bench", STEPS, "a step with measured instead of ranked product algorithms",
     UNMEASURED, [STEP + "autotune.json --batch {batch} --precision bf16 --autotune 1"]),
    ("large", 50, "gpu_bench", STEPS, "bf16 and fp8 at GPT-2 XL's 1.5B, with 35 GB", UNMEASURED,
     [STEP + f"large_{precision}.json --batch {{large}} --layers 48 --width 1600 --heads 25 --autotune 1 "
      f"--precision {precision}" for precision in ("bf16", "fp8")]),
    ("lora", 210, "train", STEPS, "LoRA on Llama-3.1-8B's shape, on bf16 and nf4, with layers in GPU memory "
     "and in the host's, and in PEFT, with 70 GB", UNMEASURED, lora),
    ("full", 120, "train", STEPS, "all weights of Gemma 3 1B, with int8 moments, with layers in host memory, "
     "and in transformers, compiled", UNMEASURED, full),
    ("against", 150, "", 0, "the bench of another CHECKOUT (--against), such as the commit before", UNMEASURED,
     [MAKE + " -C {against} {folder}/gpu_bench", "{against}/" + BENCH +
      "against.json --seconds {seconds} --precision bf16"]),
    ("brim", 40, "train", 4, "a run that fills the memory, as planned by --fit", "memory was planned too "
     "tight; cublaslt-*.txt and brim.log have the sizes", brim),
    ("kill", 75, "train", 16, "a run that is killed, and resumed to the same bits", "kill.log and "
     "numbers/killed.txt have what differs", kill),
    ("sanitizer", 75, "device_tests", "^(ok|NO) ", "compute-sanitizer, suite by suite, on small shapes",
     "TOOL.txt names the kernel and the line", sanitizer),
    ("counters", 90, "gpu_bench", 0, "ncu's counters of a step's kernels, in counters.csv", "see counters.log",
     ["{ncu} --clock-control none -s 150 -c 90 --section SpeedOfLight --section Occupancy --csv --page details "
      "--log-file {out}/counters.csv {folder}/gpu_bench --precision bf16 --steps-only 1 --graphs 0 --batch "
      "{batch} --layers 2 --seconds 0.001"]),
    ("attention_torch", 75, "", 0, "attention by PyTorch: cuDNN and flash", "see attention_torch.log",
     [TORCH + "--attention-only --json {out}/torch_attention.json"]),
    ("save", 40, "train", 4, "cost of a checkpoint", "see save.log",
     ["env TRAIN={folder}/train DEVICE=cuda MODEL={model} scripts/bench_checkpoint.sh 1"]),
    ("graphs", 40, "gpu_bench", STEPS, "a small step without graphs", UNMEASURED,
     [STEP + f"graphs_{graphs}.json --graphs {graphs} --batch 4 --seq 256 --precision bf16"
      for graphs in (1, 0)]),
    ("lab", 150, "train", 0, "five precisions compared", "see lab.log",
     ["-" + LAB, "{folder}/train --audit --config fp16.json --device cuda {lab} --out {runs}/lab",
      "cp {runs}/lab/report.json {out}/compare.json", "cp {runs}/lab/audit.json {out}/audit.json"]),
    ("references", 1200, "", 0, "losses of the CPU, for numbers; only by name", "see references.log",
     references)))}


def run_commands(c, name):
    """Runs a part; returns the exit status. All commands run, whatever the others do."""
    run = PARTS[name].run
    result = run(c) if callable(run) else run
    if isinstance(result, bool):
        return int(not result)
    return int(not all([call(words_of(c, one.lstrip("-"))) or one[0] == "-" for one in result]))


def why_not(c, name):
    """The reason why a part cannot run here; "" if it can."""
    program = f"{c.folder}/{PARTS[name].program}"
    no_torch = [(c.torch == -1, "python3 has no PyTorch here"), (c.torch == 0, "not asked for")]
    reasons = {
        "conformance": [(c.rehearsal, "on the emulator it is a part of make test-device"),
                        (c.arch < 80, "it uses instructions of sm_80")],
        "torch": no_torch, "attention_torch": no_torch,
        "sanitizer": [(c.rehearsal, "there is no GPU"),
                      (not os.access(c.sanitizer, os.X_OK), "this toolkit has no compute-sanitizer")],
        "counters": [(c.rehearsal, "there is no GPU"),
                     (not os.access(c.ncu, os.X_OK), "this toolkit has no ncu")],
        "against": [(not os.path.isfile(f"{c.against}/test/gpu_bench.c"), "no other checkout (--against)")],
        "large": [(c.large == 0, "1.5B needs a GPU with 35 GB")],
        "full": [(c.large == 0, "it needs a GPU with 35 GB")],
        "lora": [(c.torch != 1, "PyTorch writes its model"), (c.memory < 70000, "8B needs a GPU with 70 GB")]}
    built = not PARTS[name].program or os.access(program, os.X_OK)
    return next((text for is_so, text in [(not built, f"{program} was not built"), *reasons.get(name, ())]
                 if is_so), "")


# ---- the machine

def missing(text):
    sys.exit(f"gpu_check: {text}")


def find_machine(c, options):
    """The GPU, its tools, and whether what a build needs is here."""
    c.gpu, c.arch = gpu_query("name"), gpu_query("compute_cap").replace(".", "")
    c.memory = int(re.sub(r"\D", "", gpu_query("memory.total")) or 0)  # [N/A] where it is shared
    if c.parts == ["build", "references"]:
        c.gpu, c.arch, c.memory, c.parts = "none: references of the CPU", 0, 0, ["references"]
    elif c.rehearsal:
        c.gpu, c.arch, c.memory = "none: a rehearsal on the emulator", 90, 0
    elif not c.gpu or not c.arch:
        missing("no GPU here: nvidia-smi finds none (nvidia-smi -L says why, if it is installed). --help "
                "lists what would run\nwith one. Without: `make test` runs the same kernels on the "
                "emulator, and `scripts/gpu_check.sh --emulated`\nrehearses this script.")
    c.arch, c.cpus = int(c.arch), os.cpu_count()
    c.nvcc = os.environ.get("NVCC") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    c.sanitizer, c.ncu = (shutil.which(tool) or f"{os.path.dirname(c.nvcc)}/{tool}"
                          for tool in ("compute-sanitizer", "ncu"))
    if not shutil.which("make"):
        missing("no make here: install it, or copy the file /usr/bin/make of another machine to a folder of "
                "the PATH;\nit needs only glibc")
    if c.arch > 0 and not os.access(c.nvcc, os.X_OK):
        missing("no nvcc here: install the CUDA toolkit, or set NVCC=PATH")
    headers = ["-isystem", "build/packages/include"] if os.path.isdir("build/packages") else []
    if not output_of([*shlex.split(os.environ.get("CC") or "cc"), "-E", *headers, "-x", "c", "-"],
                     input="#include <stddef.h>\n#include <cjson/cJSON.h>\n#include <stb/stb_ds.h>\n",
                     stderr=subprocess.DEVNULL)[1]:
        missing("cJSON.h or stb_ds.h is missing here. Install libcjson-dev and libstb-dev, or carry build/packages"
                "\nhere, which `scripts/gpu_check.sh --bundle` makes on a machine that has them.")
    prefix, good = output_of(["python3", "-c", "import sys, torch; print(sys.prefix)"], stderr=subprocess.DEVNULL)
    c.torch = 0 if options.no_torch else 1 if good else -1
    if c.torch == 1:  # the libraries of a virtual environment serve also if it is not activated
        os.environ.setdefault("VIRTUAL_ENV", prefix.strip())


def choose_sizes(c, options):
    """Sizes that fit this machine, and the words of commands."""
    sizes = ((70000, 32), (35000, 16), (20000, 8), (0, 4))
    c.batch = options.batch or next(batch for memory, batch in sizes if c.memory >= memory)
    c.large = 8 if c.memory >= 70000 else 4 if c.memory >= 35000 else int(c.rehearsal)
    c.jobs = min(c.cpus, 12, c.memory // 1500 + 1 if c.memory else 12)  # each takes its own GPU memory
    c.runs = f"{c.out}/runs"  # with checkpoints of 1.5 GB, in memory if there is enough
    if os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 8e9:
        c.runs = f"/dev/shm/gpu_check.{os.getuid()}"
    c.model, c.tiny, c.torch_tiny, c.lab, c.full = '{"preset":"gpt2","vocab_size":50257}', [], [], [], []
    c.gpt2 = "--set model.preset=gpt2 --set data.seq_len=1024 --set train.micro_batch_size=1".split()
    c.folder, c.seconds = "build/gpu" if c.arch else os.path.dirname(os.environ.get("TRAIN") or "./train"), 0.1
    # Without Criterion, so that tests can share a process.
    c.make = f"OUT={c.folder} CRITERION=0 CUDA=1 NVCC={c.nvcc} CUDA_ARCH={c.arch}".split()
    if c.rehearsal:
        c.folder, c.seconds, c.make = "build/emulated" if c.arch else c.folder, 0.02, ["BUILD=emulated"]
        c.tiny, c.torch_tiny = ["--tiny", "1"], ["--tiny"]
        c.gpt2 = "--set model.n_layer=1 --set model.n_head=2 --set model.n_embd=32 --set data.seq_len=16 " \
            "--set train.micro_batch_size=1 --set eval.batches=1".split()
        c.lab = [*c.gpt2, *"--set train.steps=40 --set optimizer.warmup_steps=4".split()]
        c.full = [*c.gpt2, *"--set model.vocab_size=256 --set model.n_inner=32 --set model.head_dim=16".split()]
        c.model = '{"n_layer":1,"n_head":2,"n_embd":32,"n_positions":64}'


def describe(c):
    models = [line.partition(": ")[2] for line in lines_of("/proc/cpuinfo") if line.startswith("model name")]
    c.cpu, c.date = (models or [""])[0], time.strftime("%FT%TZ", time.gmtime())
    c.toolkit = (re.findall(r"V[0-9.]+", output_of([c.nvcc, "--version"])[0]) or [""])[-1]
    c.commit = output_of(["git", "rev-parse", "--short", "HEAD"], stderr=subprocess.DEVNULL)[0].strip()
    c.facts = gpu_query("driver_version,memory.total,ecc.mode.current,clocks.max.sm,clocks.max.memory,"
                        "power.limit")
    print(f"GPU      {c.gpu} (sm_{c.arch})\n         driver, memory MiB, ECC, clocks MHz, power W: "
          f"{c.facts or 'unknown'}\nhost     {c.cpu}, {c.cpus} threads; nvcc {c.toolkit}; commit "
          f"{c.commit or 'unknown'}; {c.date}")
    busy = len(gpu_query("pid", "compute-apps").splitlines())
    if busy:
        print(f"warning: {busy} other programs use the GPU: figures will be off")


def bundle():
    """Copies packages that a GPU machine may lack to build/packages."""
    to = pathlib.Path("build/packages")
    library = pathlib.Path(output_of(["cc", "-print-file-name=libcjson.so.1"])[0].strip())
    files = {f"include/{name}": pathlib.Path("/usr/include", name) for name in ("cjson/cJSON.h", "stb/stb_ds.h")}
    # Two files instead of a link, because not every way of copying keeps links.
    files.update({"lib/libcjson.so": library, "lib/libcjson.so.1": library})
    if not all(file.is_file() for file in files.values()):
        missing("install libcjson-dev and libstb-dev here first")
    for name, file in files.items():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        (to / name).unlink(missing_ok=True)
        shutil.copy(file, to / name)
    print(f"{to}: cJSON (for {os.uname().machine}) and stb_ds.h\n"
          "Carry it to the same place on the other machine; make finds it there.")


# ---- running

def write_json(c):
    """The machine, the parts, the aims, and the files of figures that were written to their end."""
    report = {"gpu": c.gpu, "compute_capability": str(c.arch), "facts": c.facts, "cpu": c.cpu,
              "nvcc": c.toolkit, "commit": c.commit, "date": c.date, "rehearsal": c.rehearsal,
              "seconds": passed(c), "parts": c.records, "aims": c.aims}
    for key, name in (("bench", "gpu_bench"), ("torch", "torch_bench"), ("torch_attention",) * 2,
                      ("large_bf16",) * 2, ("large_fp8",) * 2):
        with contextlib.suppress(ValueError):
            report[key] = json.loads("\n".join(lines_of(f"{c.out}/{name}.json")))
    pathlib.Path(c.out, "gpu_check.json").write_text(json.dumps(report, indent=1), encoding="utf-8")


def passed(c):
    return int(time.monotonic() - c.begin)


def record(c, name, verdict, seconds=0, clocks=""):
    c.records.append({"part": name, "verdict": verdict, "seconds": seconds, "clocks": clocks})
    print(f"[{passed(c):3} s] {name}: {verdict}", flush=True)
    write_json(c)


def start(c, children, words, log):
    """Starts a command as one of the children, which this program ends at its own end at the latest."""
    c.is_starting = True  # a signal waits until the child is in the list
    with open(f"{c.out}/{log}", "wb") as file:
        children.append(subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT,
                                         stdin=subprocess.DEVNULL))
    c.is_starting = False
    if c.status:
        sys.exit(c.status)


def start_part(c, children, name, limit):
    # timeout gives the part a group of its own, and passes signals on to it.
    start(c, children, ["timeout", "-k", "5", str(limit), sys.executable, __file__, "--part", name],
          f"{name}.log")


def stop(children):
    for running in children:
        running.terminate()
    while children:
        children.pop().wait()


def clocks_since(c, line):
    """Median clock of the GPU while it worked, and the reasons for which it was slowed down."""
    rows = [one.split(", ") for one in lines_of(f"{c.out}/clocks.csv")[line:] if one.count(", ") == 3]
    clocks = sorted(int(mhz) for _, mhz, use, _ in rows if mhz.isdigit() and use.isdigit() and int(use) > 50)
    slowed = sorted({reason for *_, reason in rows if reason.startswith("0x") and int(reason, 16) > 1})
    return ", slowed: ".join([f"{clocks[(len(clocks) - 1) // 2]} MHz", *slowed]) if clocks else ""


def run_part(c, name):
    limit, left = PARTS[name].seconds * (8 if c.rehearsal else 1), c.limit - passed(c)
    if left < limit * 2 // 3:
        record(c, name, "skipped: no time left")
        return
    limit, begin, line = min(limit, left), passed(c), len(lines_of(f"{c.out}/clocks.csv"))
    print(f"[{begin:3} s] {name} ...", flush=True)
    start_part(c, c.children, name, limit)
    status = c.children[-1].wait()
    c.children.pop()
    log = lines_of(f"{c.out}/{name}.log")
    verdict = {0: "ok", 124: f"failed: not done after {limit} s", 137: f"failed: not done after {limit} s"}
    tested = "".join(f" ({text})" for text in re.findall(r"Tested: .*", "\n".join(log))[-1:])
    record(c, name, verdict.get(status, f"failed: status {status}") + tested, passed(c) - begin,
           clocks_since(c, line))
    if status:
        found = [one for one in log if re.search(r"^\[(----|FAIL|CRASH)|^NO |error", one)] or log
        print(*(f"        {one[:160]}" for one in [*found[-12:], f"(all of it: {c.out}/{name}.log)"]), sep="\n")


def start_beside(c):
    """Work for the CPU, beside the tests: PyTorch compiles, and references are made if none came along."""
    if c.references:
        for file in files_of(c.references, "numbers/cpu-*.jsonl"):
            shutil.copy(file, c.numbers)
    elif "numbers" in c.parts:
        start_part(c, c.beside, "references", 240)
    if "torch" in c.parts and c.torch == 1 and not c.rehearsal:
        start(c, c.beside, words_of(c, "timeout -k 5 150 python3 test/external/torch_bench.py --warm-up "
                                    "--batch {batch} --precision bf16"), "torch-warm-up.log")


def archive(c):
    """A new file in one step, so that there is always a whole one."""
    new, (folder, name) = f"{c.out}.tar.gz.new", os.path.split(c.out)
    call(["tar", "-czf", new, "-C", folder, *"--exclude=checkpoints --exclude=runs --exclude=*.o".split(), name],
         os.devnull)
    os.replace(new, f"{c.out}.tar.gz")


def check(c):
    """Runs the parts and writes the tables; returns the exit status."""
    for word in ("event", "throttle"):  # clock, use and reasons for a lower clock; older drivers say throttle
        query = f"timestamp,clocks.sm,utilization.gpu,clocks_{word}_reasons.active"
        if not c.rehearsal and "0x" in gpu_query(query):
            start(c, c.children, nvidia_smi(f"--query-gpu={query}", "-lms", "500"), "clocks.csv")
            break
    for name in c.parts:
        reason = why_not(c, name)
        if reason:
            record(c, name, f"skipped: {reason}")
            continue
        if name not in ("build", "conformance", "tests", "numbers"):
            stop(c.beside)  # nothing runs beside the first figures
        run_part(c, name)
        if name == "build":
            start_beside(c)
    failed = int(any(one["verdict"].startswith("failed") for one in c.records))
    if c.parts == ["references"]:
        return failed
    find_aims(c)
    text = "\n".join(tables(c, PARTS)) + "\n"
    pathlib.Path(c.out, "table.txt").write_text(text, encoding="utf-8")
    print("\n" + text, end="")
    write_json(c)
    return failed


def read_options():
    about = __doc__.format(parts="\n".join(f"  {part.name:16} {part.what}" for part in PARTS.values()))
    parser = argparse.ArgumentParser(prog="scripts/gpu_check.sh", description=about,
                                     formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("--minutes", metavar="N", help="the time for all parts (default 10); a part that needs more is skipped")
    add("--parts", metavar="LIST", help="only these parts, separated by commas, after build")
    add("--references", metavar="FOLDER", help="losses of the CPU: --parts references --out FOLDER makes them")
    add("--against", default="", metavar="CHECKOUT", help="git worktree add CHECKOUT COMMIT makes one")
    add("--no-torch", action="store_true", help="no PyTorch")
    add("--batch", type=int, metavar="N", help="sequences of 1024 tokens (default: 32 on 70 GB, less on less)")
    add("--out", default="build/gpu_check", metavar="FOLDER", help="default: build/gpu_check")
    add("--emulated", action="store_true", help="a rehearsal with tiny shapes on the emulated GPU")
    add("--bundle", action="store_true", help="collects packages for machines without them")
    add("--part", choices=PARTS, help=argparse.SUPPRESS)  # how this program starts one of them
    options = parser.parse_args()
    options.parts = ["build", *options.parts.replace(",", " ").split()] if options.parts else \
        [name for name in PARTS if name != "references"]
    for name in options.parts:
        if name not in PARTS:
            parser.exit(2, f"gpu_check: there is no part {name}; --help lists them\n")
    options.minutes = options.minutes or (
        "25" if options.emulated or options.parts == ["build", "references"] else "10")
    if not options.minutes.isdecimal() or int(options.minutes) < 1:
        parser.exit(2, f"gpu_check: --minutes {options.minutes} is not a whole number above 0\n")
    return options


def main():
    os.chdir(pathlib.Path(__file__).resolve().parents[1])
    options = read_options()
    if options.bundle:
        return bundle()
    if options.part:
        return run_commands(types.SimpleNamespace(**json.loads(os.environ["GPU_CHECK"])), options.part)
    c = types.SimpleNamespace(parts=options.parts, against=options.against, references=options.references,
                              rehearsal=options.emulated, out=os.path.abspath(options.out), records=[], aims=[],
                              begin=time.monotonic(), limit=60 * int(options.minutes) - 10)  # 10 s for tables
    c.numbers = f"{c.out}/numbers"
    remove(c.numbers, f"{c.out}/runs")
    os.makedirs(c.numbers)
    for old in (file for kind in ("log", "json", "txt", "csv") for file in files_of(c.out, f"*.{kind}")):
        os.unlink(old)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    find_machine(c, options)
    choose_sizes(c, options)
    describe(c)
    os.environ |= {"TEST_DEVICE": "cuda", "OMP_WAIT_POLICY": "passive", "CUBLASLT_LOG_MASK": "5",
                   "CUBLASLT_LOG_FILE": f"{c.out}/cublaslt-%i.txt", "GPU_CHECK": json.dumps(vars(c))}
    c.children, c.beside, c.status, c.is_starting, over = [], [], 0, False, threading.Event()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def end(number, _):
        c.status = 130 if number == signal.SIGINT else 143
        if not c.is_starting:
            sys.exit(c.status)

    def archive_often():
        while not over.wait(10):
            archive(c)
    archiver = threading.Thread(target=archive_often, daemon=True)
    archiver.start()
    try:
        for number in signals:
            signal.signal(number, end)
        archive(c)
        return check(c)
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)  # the rest takes seconds
        stop(c.children)
        stop(c.beside)
        over.set()
        archiver.join()
        remove(f"/dev/shm/gpu_check.{os.getuid()}")  # runs that were stopped leave checkpoints in memory
        archive(c)
        print(f"{c.out}.tar.gz, after {passed(c)} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
