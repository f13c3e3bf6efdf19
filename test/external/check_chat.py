"""Checks that a chat model trained here answers, ends and renders in transformers as it does here.

    python test/external/check_chat.py FOLDER

Works in FOLDER, which is emptied first. A small Llama learns a few conversations by heart, for each
built-in chat template and for a template of its own: its weights, and adapters. Then the rendered
tokens, the answers of generate and their ends, and the files of the base are compared. TRAIN and
PREPARE name the programs. Prints one line for each check; exit status 1 if one failed.
"""

import json
import pathlib
import subprocess
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from check_huggingface import PREPARE, TRAIN, Checks, fresh, read_shard

CHATS = [
    [("user", "Where is the boat?"), ("assistant", "In the river.")],
    [("system", "Be kind."), ("user", "hello"), ("assistant", "hello there"), ("user", "help"),
     ("assistant", "the door is open")],
    [("user", "two and two?"), ("assistant", "four, of course")],
]
OWN = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
       "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# own #}")
# Renders as the template of OLMo-2-1124-13B-Instruct, and begins turns as it does.
OLMO2 = ("{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|assistant|>\n' "
         "+ m.content + eos_token + ('' if loop.last else '\n') }}{% else %}{{ '<|' + m.role + "
         "'|>\n' + m.content + '\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ "
         "'<|assistant|>\n' }}{% endif %}")
REPEATS = 8  # of the rows, so that few tokens are in the tail of the shard
# Special tokens, the token before a text, the end of a turn, the model's eos, a template of its own
KINDS = {
    "chatml": (["<|endoftext|>", "<|im_start|>", "<|im_end|>"], None, "<|im_end|>",
               "<|endoftext|>", None),
    "own": (["<|endoftext|>", "<|im_start|>", "<|im_end|>"], None, "<|im_end|>", "<|endoftext|>",
            OWN),
    "llama3": (["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                "<|eot_id|>"], "<|begin_of_text|>", "<|eot_id|>", "<|end_of_text|>", None),
    "gemma": (["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"], "<bos>",
              "<end_of_turn>", "<eos>", None),
    "mistral": (["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], "<s>", "</s>", "</s>", None),
    "olmo2": (["<|endoftext|>", "<|endofprompt|>", "<|im_start|>", "<|im_end|>"], "<|endoftext|>",
              "<|endoftext|>", "<|endoftext|>", OLMO2),
    "exaone4": (["<|endoftext|>", "[|system|]", "[|tool|]", "[|assistant|]", "[|user|]",
                 "[|endofturn|]"], None, "[|endofturn|]", "[|endofturn|]", None),
}


class ChatChecks(Checks):
    """Checks that are true or false."""

    def expect(self, name, good):
        self.line(good, name, "")


def make_base(folder, special, begin, eos, template):
    """A Llama of random weights, and a byte-level tokenizer without a chat template."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, tokenizer.token_to_id(begin))])
    config = LlamaConfig(
        vocab_size=len(letters) + len(special), hidden_size=64, intermediate_size=128,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, bos_token_id=None, eos_token_id=tokenizer.token_to_id(eos))
    config.odd_key = {"kept": [1, None]}
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos, "pad_token": eos,
                "bos_token": begin, "model_max_length": 256, "odd": 1}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    generation = {"eos_token_id": tokenizer.token_to_id(eos), "top_k": 7, "odd": 0.25}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    if template:
        (folder / "chat_template.jinja").write_text(template)


def run(*arguments, **more):
    return subprocess.run([str(part) for part in arguments], check=True, capture_output=True,
                          text=True, **more).stdout


def train(work, base, shards, adapter):
    name = "adapter" if adapter else "full"
    settings = {
        "name": name, "run_dir": work, "model.init_from": base, "precision": "fp32", "threads": 2,
        "data.train": f"{shards}_train_*.bin", "data.val": "", "data.seq_len": 128,
        "train.epochs": 0, "train.steps": 250, "train.micro_batch_size": 3, "eval.every": 0,
        "train.grad_accum_steps": 1, "train.batch_tokens": 0, "optimizer.warmup_steps": 5,
        "optimizer.lr": 5e-3, "sample.every": 0}
    if adapter:
        settings |= {"adapter.rank": 32, "adapter.alpha": 64}
    run(TRAIN, "--config", "finetune-lora.json" if adapter else "finetune-llama.json",
        *[part for key, value in settings.items() for part in ("--set", f"{key}={value}")])
    run(TRAIN, "--export", work / f"{name}-out", "--dtype", "fp32", "--from", work / name,
        *(["--merge"] if adapter else []))
    return work / f"{name}-out"


def compare_files(checks, label, base, out):
    """All of the base that training did not change must be there."""
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (base, out))
    changed = {key for key in before if before[key] != after.get(key)}
    checks.expect(f"{label}: config.json keeps its keys", changed <= {"eos_token_id"})
    before, after = (json.loads((folder / "generation_config.json").read_text())
                     for folder in (base, out))
    changed = {key for key in before if before[key] != after.get(key)}
    checks.expect(f"{label}: generation_config.json keeps its keys", changed <= {"eos_token_id"})
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (base / name).exists():
            checks.expect(f"{label}: {name} is the base's",
                          (base / name).read_bytes() == (out / name).read_bytes())


@torch.no_grad()
def compare_answers(checks, label, out, end):
    tokenizer = AutoTokenizer.from_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(out).eval()
    for number, chat in enumerate(CHATS):
        messages = [{"role": role, "content": content} for role, content in chat]
        ids = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True,
                                            return_dict=False)
        text = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=60)[0]
        made = text[len(ids):].tolist()
        checks.expect(f"{label}: answer {number} ends with {end}",
                      tokenizer.convert_ids_to_tokens(made)[-1] == end and len(made) < 60)
        answer = tokenizer.decode(made, skip_special_tokens=True)
        checks.expect(f"{label}: answer {number} is {answer!r}", answer.strip() == chat[-1][1])
        ours = run(TRAIN, "--sample", tokenizer.decode(ids), "--from", out, "--temperature", 0,
                   "--tokens", 60, "--json", "--set", "precision=fp32")
        ours = json.loads(ours)
        checks.expect(f"{label}: --sample gives it too",
                      ours["text"] == answer and ours["tokens"] == len(made) - 1)
        if len(chat) == 2:
            ours = run(TRAIN, "--chat", "--from", out, "--temperature", 0, "--set",
                       "precision=fp32", input=chat[0][1] + "\n")
            checks.expect(f"{label}: --chat gives it too", ours.strip() == answer.strip())


def rendered(out, chats):
    """The tokens of apply_chat_template, of all chats."""
    tokenizer = AutoTokenizer.from_pretrained(out)
    made = []
    for chat in chats:
        messages = [{"role": role, "content": content} for role, content in chat]
        if chat[0][0] == "system" and "[INST]" in tokenizer.get_vocab():
            # Here as for an answer to the last question: data/corpus/README.md.
            messages[-2]["content"] = messages[0]["content"] + "\n\n" + messages[-2]["content"]
            del messages[0]
        made += tokenizer.apply_chat_template(messages, return_dict=False)
    return made


def check(checks, kind, work):
    special, begin, end, eos, template = KINDS[kind]
    base = fresh(work / "base")
    make_base(base, special, begin, eos, template)
    (work / "rows.jsonl").write_text("".join(
        json.dumps({"messages": [{"role": r, "content": c} for r, c in chat]}) + "\n"
        for chat in REPEATS * CHATS))
    run(PREPARE, "--tokenizer", base, "--out", work / "x", "--val-fraction", 0, "--force",
        work / "rows.jsonl")
    for adapter in (False, True):
        label = f"{kind}, {'adapter' if adapter else 'weights'}"
        out = train(work, base, work / "x", adapter)
        compare_files(checks, label, base, out)
        checks.expect(f"{label}: prepared as apply_chat_template renders",
                      rendered(out, REPEATS * CHATS) == read_shard(work / "x_train_000000.bin"))
        compare_answers(checks, label, out, end)


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    checks = ChatChecks()
    for kind in KINDS:
        checks.group(check, kind, fresh(pathlib.Path(sys.argv[1]) / kind))
    sys.exit(checks.failed > 0)


if __name__ == "__main__":
    main()
