#!/usr/bin/env python3
"""Compares scripts/questions.py and ./train --choices with lm-evaluation-harness, row by row.

    python3 test/external/check_choices.py [FOLDER]    FOLDER: for models and rows, build/check_choices
    python3 test/external/check_choices.py --texts     questions.py only

It needs lm_eval and, for models, torch and transformers. The rows are made here, and nothing is
downloaded. Texts of random rows of each benchmark are those of lm_eval's own tasks. Small models of
random weights are exported and opened by lm_eval's HFLM, in fp32. Prints one line a benchmark and a
model; the exit status is 1 if a text differs, or a log-likelihood by more than 1e-4.
"""
import copy
import json
import os
import random
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"

import datasets
import lm_eval.tasks
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml
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
    """Questions, with the contexts and continuations of lm_eval."""
    random_ = random.Random(5)
    for number in range(80):
        context = text(random_, random_.randrange(1, 12)) if number % 10 else ""
        if context and number % 7 == 3:
            context += " "
        choices = [text(random_, random_.randrange(1, 6)) for _ in range(random_.randrange(2, 6))]
        if len(set(choices)) < len(choices):
            continue
        row = {"context": context, "choices": choices, "answer": 0}
        joint = "" if not context or context[-1] == " " else " "
        if number % 4 == 3:
            row["delimiter"] = joint = " "
        if number % 8 == 7:
            row["context"] = [context + choice for choice in choices]
            row["choices"] = choices[:1] * len(choices)
            yield row, [(before, joint + choices[0]) for before in row["context"]]
        else:
            yield row, [(context, joint + choice) for choice in choices]


# ---- texts of benchmarks

PIECES = """a b É ß ŠŽ ǆ ﬁ 水 😀 _ " ' {{ }} {% \\ [ ] [title] [step] [header] the McDonald's NYC""".split()
PIECES += [" ", " ", "  ", "   ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\x1c", "\u2028", " [title]", ""]


def noise(random_, most=12):
    return "".join(random_.choice(PIECES) for _ in range(random_.randrange(most)))


def some(random_):
    """A text with a character that no clean-up removes."""
    return noise(random_, 6) + random_.choice("xyzÉ水") + noise(random_, 6)


def hellaswag(random_):
    return {"activity_label": noise(random_), "ctx_a": noise(random_), "ctx_b": noise(random_),
            "endings": ["x" + noise(random_) for _ in range(4)],
            "label": str(random_.randrange(4))}


def arc(random_):
    count = random_.randrange(2, 6)
    labels = random_.choice(["ABCDE", "12345"])[:count]
    return {"question": noise(random_), "choices": {"text": [some(random_) for _ in labels],
            "label": list(labels)}, "answerKey": random_.choice(labels)}


def arc_archive(random_):
    row = arc(random_)
    lists = row.pop("choices")
    row["question"] = {"stem": row["question"], "choices": [
        {"text": text_, "label": label} for text_, label in zip(lists["text"], lists["label"])]}
    return row


def piqa(random_):
    return {"goal": noise(random_), "sol1": some(random_), "sol2": some(random_),
            "label": random_.randrange(2)}


def winogrande(random_):
    return {"sentence": noise(random_) + "_" + some(random_), "option1": noise(random_),
            "option2": noise(random_), "answer": random_.choice("12")}


def mmlu(random_):
    return {"question": noise(random_), "subject": "high_school_us_history",
            "choices": [noise(random_) for _ in range(4)], "answer": random_.randrange(4)}


BENCHMARKS = {  # makes a row: lm_eval's file of the task, rows
    hellaswag: ("hellaswag/hellaswag.yaml", 5000),
    arc: ("arc/arc_easy.yaml", 3750),
    arc_archive: ("arc/arc_easy.yaml", 1250),
    piqa: ("piqa/piqa.yaml", 5000),
    winogrande: ("winogrande/default.yaml", 5000),
    mmlu: ("mmlu/default/mmlu_high_school_us_history.yaml", 2500),
}


def as_loaded(row):
    """The row of ARC's archive as in the data set that lm_eval loads."""
    row = copy.deepcopy(row)
    if isinstance(row.get("question"), dict):
        inner = row["question"]
        row["question"] = inner["stem"]
        row["choices"] = {name: [choice[name] for choice in inner["choices"]]
                          for name in ("text", "label")}
    return row


def their_questions(path, all_rows):
    """Pairs of context and continuation, the answer, and the lengths that acc_norm divides by."""
    config = load_yaml(os.path.join(os.path.dirname(lm_eval.tasks.__file__), path))
    split = datasets.Dataset.from_list([as_loaded(row) for row in all_rows])
    config["custom_dataset"] = lambda **_: datasets.DatasetDict(
        {name: split for name in ("train", "validation", "test", "dev")})
    task = ConfigurableTask(config=config)
    for document in task.eval_docs:
        context = task.fewshot_context(document, 0)
        requests = task.construct_requests(document, context)
        answer = task.doc_to_text(document) if task.multiple_input else \
            task.doc_to_target(document)
        lengths = None if task.multiple_input else \
            [len(choice) for choice in task.doc_to_choice(document)]
        yield [request.args for request in requests], int(answer), lengths


def our_questions(folder, all_rows):
    """The same of scripts/questions.py, from JSON Lines and, to the same bytes, from Parquet."""
    files = [os.path.join(folder, "rows" + ending) for ending in (".jsonl", ".parquet")]
    with open(files[0], "w", encoding="utf-8") as file:
        for row in all_rows:
            file.write(json.dumps(row) + "\n")
    datasets.Dataset.from_list(all_rows).to_parquet(files[1])
    converted = []
    for file in files:
        questions = file + ".questions"
        run(sys.executable, "scripts/questions.py", file, questions)
        with open(questions, "rb") as written:
            converted.append(written.read())
    if converted[0] != converted[1]:
        sys.exit(f"{files[0]} and {files[1]} became other questions")
    with open(questions, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            contexts = row["context"]
            if isinstance(contexts, str):
                contexts = [contexts] * len(row["choices"])
            yield ([(before, row["delimiter"] + choice)
                    for before, choice in zip(contexts, row["choices"], strict=True)],
                   row["answer"], [len(choice) for choice in row["choices"]])


def compare_texts(folder):
    wrong_count = 0
    for make, (path, count) in BENCHMARKS.items():
        random_ = random.Random(make.__name__)
        all_rows = [make(random_) for _ in range(count)]
        wrong = [row for row, ours, theirs in
                 zip(all_rows, our_questions(folder, all_rows), their_questions(path, all_rows),
                     strict=True)
                 if ours[:2] != theirs[:2] or theirs[2] not in (None, ours[2])]
        print(f"{make.__name__:16} {count} random rows: {len(wrong)} differ")
        for row in wrong[:3]:
            print(json.dumps(row))
        wrong_count += len(wrong)
    return wrong_count == 0


# ---- models

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
    from lm_eval.models.huggingface import HFLM
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
    texts_only = sys.argv[1:] == ["--texts"]
    folder = sys.argv[1] if len(sys.argv) > 1 and not texts_only else "build/check_choices"
    subprocess.run(["rm", "-rf", folder], check=True)
    os.makedirs(folder)
    good = compare_texts(folder)
    all_rows = list(rows())
    for name, settings in () if texts_only else MODELS.items():
        make_model(folder, name, settings)
        good = compare(folder, name, all_rows) and good
    sys.exit(not good)


if __name__ == "__main__":
    main()
