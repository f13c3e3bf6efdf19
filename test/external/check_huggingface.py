"""Checks exports to transformers and imports from it. See check_huggingface.sh.

    python test/external/check_huggingface.py FOLDER [NAME ...]

Works in FOLDER, which is emptied first. With NAMEs only families whose name has one are checked.
Prints one line for each check with the measured value; exit status 1 if one failed. TRAIN, PREPARE
and LOGITS name the programs (./train, ./prepare, build/fast/logits). GPT2_DIR names a folder with
GPT-2's tokenizer, GPT2_WEIGHTS one with a whole GPT-2: either adds checks.
"""

import copy
import json
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import traceback
import unicodedata

import numpy
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import ByteLevelBPETokenizer
from torch.nn.functional import cross_entropy
from transformers import (
    AutoConfig, AutoModelForCausalLM, AutoTokenizer, Exaone4Config, Exaone4ForCausalLM,
    GPT2LMHeadModel, Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig,
    Olmo2Config, Olmo2ForCausalLM, Olmo3Config, Olmo3ForCausalLM, SmolLM3Config, SmolLM3ForCausalLM)
from transformers.utils import logging

from huggingface_models import (
    EXAONE4, GEMMA, GEMMA3_ROPE, KINDS, LENGTH, OLMO, OLMO3_YARN, SIZES, SMOLLM3, families, gpt2,
    llamas)

TRAIN = os.environ.get("TRAIN", "./train")
PREPARE = os.environ.get("PREPARE", "./prepare")
LOGITS = os.environ.get("LOGITS", "build/fast/logits")
FIXTURES = pathlib.Path("test/golden/tokenizer")
END_OF_TEXT = "<|endoftext|>"
MASKS = r"\.attn\.(masked_)?bias$"
ALL = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
TOLERANCE = 1e-4  # of logits and losses in fp32
# Of ten losses: sums in another order, and in 16 bit roundings that the other does not make, or as
# far as PyTorch's own losses are from those in fp32: rounding errors grow with the logits of a
# random model.
TRAINED = {"fp32": 1e-5, "bf16": 5e-3, "fp16": 2e-3}
STEPS = 10
OTHER_SETTINGS = {"_name_or_path", "transformers_version", "use_cache", "initializer_range",
                  "dtype"}
PROMPTS = ["Once upon a time", " the", "It's 12 o'clock,\n\n  and all is", "naïve 世界 🙂"]
TOKENIZER_FILES = ["vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json"]

# Contractions, white space of all kinds, scripts with and without spaces, joined emoji, combining
# marks, right to left, control characters, a soft hyphen, and the special token in the middle.
NASTY = (
    "I'll can't WE'RE 'tis they’ve  two  spaces\t\ttabs \n\n\n lines\r\nCRLF   \n"
    "12345 ½ ²³ Ⅷ x1y2 _under_score_ -- ... !?!? (a)[b]{c}\n"
    "naïve café cafe\u0301 Straße ΑΒΓ Привет мир 世界你好 こんにちは 한국어 ไทย हिन्दी\n"
    "שלום עולם مرحبا بالعالم \u200fmixed\u200e 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🙂🙂 \U0001f9d1\u200d\U0001f680\n"
    "\u00a0nbsp\u2003em\u3000ideographic \u00adsoft\x01\x02\x7f\x1b[0m \ufffd \ufeffbom\n"
    + END_OF_TEXT + "After it. " + "a" * 300 + " " * 40 + "end" + 2 * END_OF_TEXT + "\nlast"
)


class Checks:
    """Counts checks and failures, and prints a line for each check."""

    def __init__(self):
        self.done = self.failed = 0

    def line(self, good, name, measured):
        self.done += 1
        self.failed += not good
        print(f"{'ok    ' if good else 'FAILED'}  {name:<58} {measured}", flush=True)

    def near(self, name, difference, limit=TOLERANCE):
        self.line(difference <= limit, name, f"{difference:.2e} (at most {limit:.0e})")

    def equal(self, name, ours, theirs, measured):
        if ours == theirs:
            self.line(True, name, measured)
        else:
            self.line(False, name, f"\n    ours   {ours!r:.300}\n    theirs {theirs!r:.300}")

    def group(self, function, *arguments):
        """A check that raises an exception has failed; later checks still run."""
        try:
            function(self, *arguments)
        except Exception as reason:  # pylint: disable=broad-except
            line = traceback.extract_tb(reason.__traceback__)[1].lineno
            self.line(False, f"{arguments[0]}: {function.__name__}, line {line}",
                      f"\n        {type(reason).__name__}: {reason}")


def run(*command):
    """Standard output of a program, as bytes."""
    done = subprocess.run([str(word) for word in command], capture_output=True, check=False)
    if done.returncode != 0:
        words = " ".join(str(word) for word in command)
        raise RuntimeError(f"{words}\n        " + done.stderr.decode(errors="replace").strip())
    return done.stdout


def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


# ---------------------------------------------------------------- tokens


def write_shard(path, tokens):
    header = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
    path.write_bytes(header + numpy.array(tokens, "<u2").tobytes())


def read_shard(path):
    return numpy.frombuffer(path.read_bytes()[1024:], "<u2").astype(int).tolist()


def random_tokens(vocabulary, count):
    return torch.randint(vocabulary, (count,), generator=torch.manual_seed(vocabulary)).tolist()


def as_terminal(raw):
    """Text as ./train shows it: anything but a visible character is U+FFFD. Programs differ in how
    many U+FFFD replace a run of broken bytes; here it is one."""
    text = raw if isinstance(raw, str) else raw.decode("utf-8", "replace")
    hidden = (c not in "\n\t" and unicodedata.category(c) == "Cc" for c in text)
    shown = "".join("\ufffd" if hide else c for c, hide in zip(text, hidden))
    return re.sub("\ufffd+", "\ufffd", shown)


def vocabulary_of(folder):
    """Strings and ids of all tokens."""
    if (folder / "vocab.json").exists():
        return json.loads((folder / "vocab.json").read_text())
    whole = json.loads((folder / "tokenizer.json").read_text())
    return whole["model"]["vocab"] | {t["content"]: t["id"] for t in whole["added_tokens"]}


def train_tokenizer(folder):
    """A byte-pair encoding of 700 tokens, learned from our own prose."""
    tokenizer = ByteLevelBPETokenizer(add_prefix_space=False)
    prose = [str(path) for path in pathlib.Path(".").glob("*.md")]
    tokenizer.train(prose, vocab_size=700, special_tokens=[END_OF_TEXT], show_progress=False)
    tokenizer.save_model(str(fresh(folder)))
    return folder


# ---------------------------------------------------------------- models


@torch.no_grad()
def randomize(model, seed):
    """Makes every parameter random, so that predictions differ clearly."""
    generator = torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        # Factors of norms that are 1 + the weights.
        zero = re.match("gemma|qwen3_5", model.config.model_type) and "linear_attn" not in name
        centre = 1.0 if re.search(r"(ln_.*|norm\d?)\.weight", name) and not zero else 0.0
        centre = -2.0 if name.endswith("A_log") else centre  # states decay slowly
        parameter.copy_(centre + 0.15 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def save_variants(model, folder):
    """The formats in which models are saved; each folder holds the same model, rounded."""
    for name, dtype in ALL.items():
        copy.deepcopy(model).to(dtype).save_pretrained(folder / name)
        yield folder / name
    model.save_pretrained(folder / "sharded", max_shard_size="100KB")
    assert len(list((folder / "sharded").glob("model-*.safetensors"))) > 2
    yield folder / "sharded"
    if isinstance(model, GPT2LMHeadModel):
        yield save_bare(model, folder)


def save_bare(model, folder):
    """A GPT-2 as it was saved first: names without transformer., and masks."""
    state, bare = dict(model.transformer.state_dict()), fresh(folder / "bare names and masks")
    positions = model.config.n_positions
    for layer in range(model.config.n_layer):
        state[f"h.{layer}.attn.bias"] = torch.ones(1, 1, positions, positions).tril()
        state[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file({name: value.contiguous() for name, value in state.items()},
              bare / "model.safetensors", {"format": "pt"})
    shutil.copy(folder / "fp32" / "config.json", bare)
    return bare


def load(folder):
    """Transformers' own reading of a folder, in fp32; every weight must be found in it."""
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, trust_remote_code=False)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        strange = [key for key in info[kind] if not re.search(MASKS, str(key))]
        if strange:
            raise RuntimeError(f"{folder}: {kind}: {strange}")
    return model.eval()


def windows(tokens, length):
    """Inputs and targets; the last row is filled up with its first token, and targets to ignore."""
    tokens = torch.as_tensor(tokens)
    more = -(len(tokens) - 1) % length
    first = (len(tokens) - 1) // length * length
    inputs = torch.cat([tokens[:-1], tokens[first:first + 1].repeat(more)])
    targets = torch.cat([tokens[1:], torch.full((more,), -100)])
    return inputs.view(-1, length), targets.view(-1, length)


@torch.no_grad()
def their_logits(model, inputs):
    return torch.cat([model(row[None]).logits for row in inputs])


def check_predictions(checks, name, folder, work, length):
    """Logits and loss of a folder, ours against transformers'."""
    model = load(folder)
    vocabulary = model.config.vocab_size
    tokens = random_tokens(vocabulary, 6 * length + 3)
    inputs, targets = windows(tokens, length)
    theirs = their_logits(model, inputs)
    write_shard(work / "eval.bin", tokens)
    run(LOGITS, folder, work / "eval.bin", length, work / "logits.f32")
    ours = torch.from_numpy(numpy.fromfile(work / "logits.f32", "<f4")).view(theirs.shape)
    counted = targets >= 0  # the others are filled up in another way
    difference = (ours - theirs)[counted].abs().max().item()
    limit = TOLERANCE
    if difference > limit:  # where logits are large, transformers' own error is the measure
        truth = their_logits(model.double(), inputs)
        limit = max(limit, 2 * (theirs - truth)[counted].abs().max().item())
        difference = (ours - truth)[counted].abs().max().item()
    checks.near(f"{name}: logits", difference, limit)
    rows = theirs.view(-1, vocabulary).double()
    loss = cross_entropy(rows, targets.view(-1))
    table = run(TRAIN, "--eval", "--from", folder, "--data", work / "eval.bin",
                "--precision", "fp32", "--set", f"data.seq_len={length}").decode()
    perplexity = float(re.search(r"^fp32 +\S+ +(\S+)", table, re.M)[1])  # has more digits
    checks.near(f"{name}: loss of --eval, {loss:.4f}", abs(math.log(perplexity) - loss.item()))


# ---------------------------------------------------------------- text


def our_text(folder, prompt, count):
    raw = run(TRAIN, "--sample", prompt, "--from", folder, "--temperature", "0",
              "--tokens", count, "--set", "precision=fp32")
    return as_terminal(raw.decode())  # which must be valid UTF-8


@torch.no_grad()
def their_ids(model, ids, count):
    inputs = torch.tensor([ids])
    made = model.generate(inputs, attention_mask=torch.ones_like(inputs), do_sample=False,
                          max_new_tokens=count, pad_token_id=0)
    return made[0, len(ids):].tolist()


def raw_text(tokenizer, ids):
    """The bytes of tokens, decoded with the alphabet of byte-level encodings."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    alphabet = {chr(byte): byte for byte in visible}
    alphabet |= {chr(256 + i): byte for i, byte in enumerate(hidden)}
    return bytes(alphabet[c] for token in tokenizer.convert_ids_to_tokens(ids) for c in token)


def check_greedy(checks, name, folder, count):
    model, tokenizer = load(folder), AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    made, positions = 0, model.config.max_position_embeddings  # GPT-2's n_positions, too
    for prompt in PROMPTS:
        ids = tokenizer(prompt).input_ids
        new = their_ids(model, ids, min(count, positions - len(ids)))
        if new and new[-1] == model.config.eos_token_id:
            new.pop()
        theirs = as_terminal(prompt.encode() + raw_text(tokenizer, new)) + "\n"
        ours = our_text(folder, prompt, min(count, positions - len(ids)))
        made += len(new)
        if ours != theirs:
            checks.equal(f"{name}: greedy text after {prompt!r}", ours, theirs, "")
            return
    checks.line(True, f"{name}: greedy text", f"{made} tokens after {len(PROMPTS)} prompts")


def check_tokens(checks, name, folder, work, texts):
    """./prepare makes the same tokens as AutoTokenizer, with <|endoftext|> before each document."""
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    kind = f"gpt2:{folder}" if END_OF_TEXT in tokenizer.get_vocab() else "bytes"
    count = 0
    for text in texts:
        (work / "text.txt").write_bytes(text.encode())
        run(PREPARE, "--tokenizer", kind, "--val-fraction", "0", "--force",
            "--out", work / "tokens", work / "text.txt")
        ours = read_shard(work / "tokens_train_000000.bin")
        theirs = tokenizer(text.removeprefix("\ufeff")).input_ids
        if kind != "bytes":
            theirs = begin_documents(theirs, tokenizer.convert_tokens_to_ids(END_OF_TEXT))
        if ours != theirs:
            checks.equal(f"{name}: tokens", ours, theirs, "")
            return
        count += len(ours)
    checks.line(True, f"{name}: tokens of ./prepare and AutoTokenizer", f"{count} equal")


def begin_documents(tokens, end):
    """The special token separates documents, empty ones are skipped; ours precedes each."""
    documents = [[]]
    for token in tokens:
        if token == end:
            documents.append([])
        else:
            documents[-1].append(token)
    return [token for document in documents if document for token in [end, *document]]


# ---------------------------------------------------------------- files


def tensors_of(folder):
    """All tensors of a folder, by safetensors' own reader, without "transformer." and masks."""
    tensors = {}
    for path in sorted(folder.glob("model*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                if not re.search(MASKS, name):
                    tensors[name.removeprefix("transformer.")] = file.get_tensor(name)
    return tensors


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


def settings_of(folder):
    """The settings of a config that affect predictions: those that its class has."""
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    own = type(config)().to_dict()
    return {key: value for key, value in config.to_dict().items()
            if key in own and key not in OTHER_SETTINGS}


def check_export(checks, name, source, work, dtypes):
    """./train --export rounds as torch does, bit for bit, and keeps the settings."""
    before = tensors_of(source)
    for word, dtype in dtypes.items():
        target = fresh(work / "export" / word)
        target.rmdir()
        run(TRAIN, "--export", target, "--dtype", word, "--from", source)
        after = tensors_of(target)
        load(target)
        wrong = [key for key in before.keys() | after.keys()
                 if key not in before or key not in after or after[key].dtype != dtype
                 or not torch.equal(bits(after[key]), bits(before[key].to(dtype)))]
        ours, theirs = settings_of(target), settings_of(source)
        wrong += [key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)]
        count = sum(value.numel() for value in after.values())
        checks.line(not wrong, f"{name}: --export --dtype {word}",
                    f"differs in {wrong}" if wrong else f"{count} values bit for bit")


def check_kept_files(checks, name, source, target):
    """The tokenizer's files are exported byte for byte, and give the same tokens."""
    kept = [file for file in TOKENIZER_FILES[:3] if (source / file).exists()]
    same = all((source / file).read_bytes() == (target / file).read_bytes() for file in kept)
    theirs, ours = (AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
                    for folder in (source, target))
    same = same and ours(NASTY).input_ids == theirs(NASTY).input_ids
    same = same and ours.eos_token == theirs.eos_token == END_OF_TEXT
    checks.line(same, f"{name}: tokenizer files", ", ".join(kept))


# ---------------------------------------------------------------- checks


def check_family(checks, name, model, work):
    folder = fresh(work / name.replace(" ", "-"))
    for variant in save_variants(randomize(model, 1), folder):
        checks.group(check_predictions, f"{name}, {variant.name}", variant, folder, LENGTH - 16)
    checks.group(check_export, f"{name}, fp32", folder / "fp32", folder, ALL)
    checks.group(check_export, f"{name}, sharded", folder / "sharded", folder,
                 {"bf16": ALL["bf16"]})
    checks.group(check_export, f"{name}, bf16", folder / "bf16", folder,
                 {"bf16": ALL["bf16"], "fp32": ALL["fp32"]})
    for precision in ALL:
        checks.group(check_training, name, load(folder / "sharded"), folder, precision, None)
    # transformers scales rope by the longest document of a batch, and queries by positions in theirs.
    if "dynamic" in name or "Ministral" in name:
        return
    starts = (torch.rand(3 * LENGTH + 1, generator=torch.manual_seed(4)) < 0.1).int()
    checks.group(check_training, f"{name}, isolated", load(folder / "sharded"), folder, "fp32",
                 starts)


def write_starts(folder, starts):
    """Marks the first tokens of documents of the batch's shard (data/corpus/masks.md)."""
    shard = folder / "batch_000000.bin"
    shard.write_bytes(shard.read_bytes()[:16] + b"\1" + shard.read_bytes()[17:])
    packed = numpy.packbits(starts.numpy(), bitorder="little")
    both = numpy.stack([numpy.full_like(packed, 255), packed], 1).tobytes()
    (folder / "batch_000000.mask").write_bytes(
        b"MASK" + struct.pack("<IQ", 2, len(starts)) + both)


def isolation(model, starts):
    """The mask and the positions of documents that begin at these tokens of a batch; with windows
    a mask for each kind of layer. Gated DeltaNets have none: each document is run alone."""
    index = torch.arange(LENGTH)
    if "linear_attention" in (getattr(model.config, "layer_types", None) or ()):
        begins = ((starts[:-1] > 0) | (torch.arange(len(starts) - 1) % LENGTH == 0)).nonzero()
        ends = [*begins.flatten().tolist()[1:], len(starts) - 1]
        return {"documents": list(zip(begins.flatten().tolist(), ends))}
    first = torch.where(starts[:-1].view(-1, LENGTH) > 0, index, 0).cummax(1).values
    mask = ((first[:, :, None] == first[:, None, :]) & (index[:, None] >= index))[:, None]
    window = getattr(model.config, "sliding_window", None) or LENGTH
    mask, inside = (torch.where(seen, 0.0, torch.finfo(torch.float32).min)
                    for seen in (mask, mask & (index[:, None] - index < window)))
    if len(set(getattr(model.config, "layer_types", None) or ())) > 1:
        inside = {"full_attention": mask, "sliding_attention": inside}
    return {"attention_mask": inside, "position_ids": index - first}


def loss_of(model, inputs, targets, dtype=torch.float32, documents=None, **isolated):
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        if documents:
            logits = torch.cat([model(inputs.reshape(1, -1)[:, first:end], use_cache=False).logits
                                for first, end in documents], 1)
        else:
            logits = model(inputs, **isolated).logits
    return cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def train_there(model, inputs, targets, dtype, isolated):
    """Losses of AdamW in PyTorch, always on the same batch."""
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    groups = [{"params": [p for p in model.parameters() if (p.dim() >= 2) == matrix],
               "weight_decay": 0.1 if matrix else 0.0} for matrix in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, inputs, targets, dtype, **isolated)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        yield loss.item()


def check_training(checks, name, model, folder, precision, starts):
    """Ten steps of AdamW, here and in PyTorch on the same batch, and an export. starts: of
    documents, which are isolated, or None."""
    tokens = random_tokens(model.config.vocab_size, 3 * LENGTH + 1)
    write_shard(folder / "batch_000000.bin", tokens)
    (folder / "batch_000000.mask").unlink(missing_ok=True)
    if starts is not None:
        write_starts(folder, starts)
    (folder / "config.json").write_text("{}")
    checkpoint, ours = train(folder, "run", folder / "config.json", {
        "precision": precision, "threads": 2, "model.init_from": folder / "sharded",
        "data.isolate": "true" if starts is not None else "false", "data.pack": "cut",
        "data.train": folder / "batch_*.bin", "data.seq_len": LENGTH, "train.steps": STEPS,
        "train.micro_batch_size": 3, "optimizer.lr": 1e-3, "optimizer.schedule": "constant"})
    inputs, targets = windows(tokens, LENGTH)
    isolated = isolation(model, starts) if starts is not None else {}
    own = 0.0
    if precision != "fp32":
        exact = train_there(copy.deepcopy(model), inputs, targets, ALL["fp32"], isolated)
        theirs = list(train_there(model, inputs, targets, ALL[precision], isolated))
        own = max(abs(a - b) for a, b in zip(exact, theirs, strict=True))
    else:
        theirs = list(train_there(model, inputs, targets, ALL[precision], isolated))
    # Two roundings of one run, each as far from it as PyTorch's own, may be twice that apart.
    checks.near(f"{name}: ten losses in {precision}",
                max(abs(a - b) for a, b in zip(ours, theirs, strict=True)),
                max(TRAINED[precision], 2 * own))
    if precision != "fp32" or starts is not None:
        return
    run(TRAIN, "--export", folder / "trained", "--dtype", "fp32", "--from", checkpoint)
    with torch.no_grad():
        after = loss_of(load(folder / "trained"), inputs, targets)
        checks.near(f"{name}: loss of the exported model",
                    abs(after - loss_of(model, inputs, targets)).item(), TRAINED[precision])


def train(work, name, config, settings):
    """Trains from a config without pauses; returns the last checkpoint and the losses."""
    runs = work / "runs"
    shutil.rmtree(runs / name, ignore_errors=True)
    settings |= {"name": name, "run_dir": runs, "eval.every": 0, "checkpoint.every": 0,
                 "sample.every": 0, "optimizer.warmup_steps": 0}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    run(TRAIN, "--config", config, *words)
    lines = [json.loads(line) for line in (runs / name / "metrics.jsonl").open()]
    checkpoint, = (runs / name / "checkpoints").glob("step-*")
    return checkpoint, [line["loss"] for line in lines if "loss" in line]


def finetune(folder, work, run_name, precision, length):
    """Trains twenty steps from a Hugging Face folder."""
    prose = sorted(pathlib.Path(".").glob("*.md"))
    run(PREPARE, "--tokenizer", f"gpt2:{folder}", "--force", "--out", work / "prose", *prose)
    return train(work, run_name, "finetune-gpt2.json", {
        "precision": precision, "model.init_from": folder,
        "data.train": work / "prose_train_*.bin", "data.val": work / "prose_val_*.bin",
        "data.seq_len": length, "train.steps": 20, "train.micro_batch_size": 4,
        "train.grad_accum_steps": 1, "optimizer.lr": 1e-3})


def check_finetune(checks, name, folder, work, precision, length):
    """From transformers to ours, twenty steps, and back."""
    name = f"{name}, trained in {precision}"
    checkpoint, losses = finetune(folder, work, f"{folder.name}-{precision}", precision, length)
    checks.line(losses[-1] < losses[0] - 0.1, f"{name}: 20 steps of fine-tuning",
                f"loss {losses[0]:.3f} to {losses[-1]:.3f}")
    checks.group(check_predictions, name, checkpoint, work, length)
    checks.group(check_greedy, name, checkpoint, 40)
    checks.group(check_kept_files, name, folder, checkpoint)
    checks.group(check_export, name, checkpoint, work, ALL)
    checks.group(check_greedy, f"{name}, exported in bf16", work / "export" / "bf16", 40)
    checks.group(check_kept_files, f"{name}, exported", folder, work / "export" / "bf16")


def check_with_tokenizer(checks, name, tokenizer, work):
    """A random model with a tokenizer: tokens, text, fine-tuning."""
    folder = fresh(work / name.replace(" ", "-"))
    for file in TOKENIZER_FILES:
        if (tokenizer / file).exists():
            shutil.copy(tokenizer / file, folder)
    vocabulary = vocabulary_of(folder)
    randomize(gpt2(len(vocabulary), vocabulary[END_OF_TEXT]), 2).save_pretrained(folder)
    prose = [path.read_text() for path in sorted(pathlib.Path(".").glob("*.md"))]
    checks.group(check_tokens, name, folder, work, [NASTY, *prose])
    checks.group(check_predictions, name, folder, work, 77)
    checks.group(check_greedy, name, folder, 60)
    checks.group(check_finetune, name, folder, work, "fp32", 77)
    checks.group(check_finetune, name, folder, work, "bf16", 64)


def check_cached(checks, tokenizer, work, chosen):
    """Greedy text of models whose layers have windows, caps, factors and ropes of their own, or no
    rope."""
    own = {"vocab_size": 700, "bos_token_id": 0, "eos_token_id": 0,
           "tie_word_embeddings": False}  # tied, a random model repeats itself
    sizes = GEMMA | SIZES | own
    plain = {key: value for key, value in sizes.items() if key in SIZES or "token_id" in key}
    for name, model in [
            *llamas(plain),
            ("SmolLM3", SmolLM3ForCausalLM(SmolLM3Config(**(SMOLLM3 | own)))),
            ("OLMo 2", Olmo2ForCausalLM(Olmo2Config(**(OLMO | own)))),
            ("OLMo 3", Olmo3ForCausalLM(
                Olmo3Config(rope_parameters=OLMO3_YARN, **(OLMO | KINDS | own)))),
            ("EXAONE 4", Exaone4ForCausalLM(Exaone4Config(**(EXAONE4 | KINDS | own)))),
            ("Gemma 2", Gemma2ForCausalLM(Gemma2Config(
                attn_logit_softcapping=5.0, final_logit_softcapping=8.0, **sizes))),
            ("Gemma 3", Gemma3ForCausalLM(Gemma3TextConfig(rope_parameters=GEMMA3_ROPE, **sizes)))]:
        if not chosen(name):
            continue
        folder = fresh(work / f"cached {name}")
        ByteLevelBPETokenizer(*(str(tokenizer / file) for file in TOKENIZER_FILES[:2])).save(
            str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TEXT}))
        randomize(model, 3).save_pretrained(folder)
        checks.group(check_greedy, name, folder, 60)


def check_bytes(checks, work):
    """A model with the byte tokenizer, trained from scratch."""
    checkpoint, _ = train(work, "bytes", "fp32.json", {
        "precision": "fp32", "train.steps": 20, "model.n_layer": 2, "model.n_embd": 64,
        "data.seq_len": 128})
    checks.group(check_predictions, "bytes", checkpoint, work, 100)
    checks.group(check_tokens, "bytes", checkpoint, work, [NASTY])
    checks.group(check_greedy, "bytes", checkpoint, 60)
    checks.group(check_export, "bytes", checkpoint, work, ALL)


def check_weights(checks, folder, work):
    """The same checks with a complete GPT-2."""
    checks.group(check_predictions, folder.name, folder, work, 256)
    checks.group(check_tokens, folder.name, folder, work, [NASTY])
    checks.group(check_greedy, folder.name, folder, 40)
    checks.group(check_finetune, folder.name, folder, work, "bf16", 128)


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    checks, work = Checks(), fresh(pathlib.Path(sys.argv[1]))
    names = sys.argv[2:]
    chosen = lambda name: not names or any(part in name for part in names)
    for name, model in families():
        if chosen(name):
            checks.group(check_family, name, model, work)
    trained = train_tokenizer(work / "bpe")
    check_cached(checks, trained, work, chosen)
    if not names:
        check_rest(checks, trained, work)
    print(f"{checks.done} checks, {checks.failed} failed")
    sys.exit(checks.failed > 0)


def check_rest(checks, trained, work):
    """Checks of one model each: tokenizers, fine-tuning and whole weights."""
    checks.group(check_bytes, work)
    checks.group(check_with_tokenizer, "tokenizer of here", trained, work)
    for tokenizer in sorted(path for path in FIXTURES.glob("small*") if path.is_dir()):
        checks.group(check_with_tokenizer, f"tokenizer {tokenizer.name}", tokenizer, work)
    if "GPT2_DIR" in os.environ:
        tokenizer = pathlib.Path(os.environ["GPT2_DIR"])
        checks.group(check_with_tokenizer, "tokenizer of GPT-2", tokenizer, work)
    if "GPT2_WEIGHTS" in os.environ:
        checks.group(check_weights, pathlib.Path(os.environ["GPT2_WEIGHTS"]), work)


if __name__ == "__main__":
    main()
