"""Compares the tokens and masks of ./prepare's rows with those of TRL's tokenization.

    python test/external/row_tokens.py [--seed N] [--count N] [DIR ...]

Needs transformers, trl, jinja2 and ./prepare. Trains small tokenizers of seven kinds, with and
without a space before a text, or reads those of folders. For random prompts, completions and pairs
of strings, which begin or end with spaces, line feeds and special tokens, it takes the steps of
SFTTrainer and DPOTrainer: eos_token is appended unless the text ends with it, both texts are encoded
together, and the answer begins after the tokens common to the prompt, to that text, and for a pair
to both texts. For templates with {% generation %} it compares the masks of render_chat.py's rows
with transformers' assistant masks. Prints the first differences; exit status 1 if there are any.

A begin token that both the text and the tokenizer bring stands once in ./prepare's rows and twice in
TRL's, so the second is removed here. Where eos_token is the token before a text, as for GPT-2, no
row of this script begins with its name, since the one token is then the end of the row before.
"""

import argparse
import array
import glob
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

from tokenizers import (AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from trl.data_utils import common_prefix_length

PREPARE = os.environ.get("PREPARE", "./prepare")
RENDER = pathlib.Path(__file__).parents[2] / "scripts/render_chat.py"
PROSE = ["The river is blue. Where is the red boat? It is by the door, home and cold.\n\n",
         "Add 2+2= 4 apples. \tA: the miller's town; naïve 東京 🙂 <INST>\r\n"]
PARTS = ["The door", "is", " ", "  ", "\n", "\n\n", "4", " apples", " blue", "é", "東京", "🙂", "\t",
         "a", "!", " the river", ".", ":", "\r\n", "=", "\u2581"]


def kinds():
    """Names and (normalizer, pre-tokenizer, special tokens, tokens before a text) of tokenizers."""
    space = normalizers.Replace(" ", "▁")
    legacy = normalizers.Sequence([normalizers.Prepend("▁"), space])
    level, meta = pre_tokenizers.ByteLevel, pre_tokenizers.Metaspace
    chatml = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return {
        "gpt2": (None, level(add_prefix_space=False), chatml[:1], ""),
        "add_prefix_space": (None, level(add_prefix_space=True), ["<s>", "</s>"], "<s>"),
        "chatml": (None, level(add_prefix_space=False), chatml, ""),
        "llama3": (None, level(add_prefix_space=False), ["<|begin_of_text|>", "<|eot_id|>"],
                   "<|begin_of_text|>"),
        "llama2": (legacy, None, ["<unk>", "<s>", "</s>"], "<s>"),
        "metaspace": (None, meta(prepend_scheme="first", split=False), ["<unk>", "<s>", "</s>"],
                      "<s>"),
        "gemma": (space, None, ["<pad>", "<bos>", "<end_of_turn>"], "<bos>"),
    }


def train(name, folder):
    normalizer, cut, special, begin = kinds()[name]
    by_bytes = isinstance(cut, pre_tokenizers.ByteLevel)
    tokenizer = Tokenizer(models.BPE(byte_fallback=not by_bytes))
    if normalizer:
        tokenizer.normalizer = normalizer
    if cut:
        tokenizer.pre_tokenizer = cut
    alphabet = pre_tokenizers.ByteLevel.alphabet() if by_bytes else []
    added = [AddedToken(one, special=True, normalized=False) for one in special]
    names = added if by_bytes else added + [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.train_from_iterator(PROSE * 3, trainers.BpeTrainer(
        vocab_size=480, initial_alphabet=alphabet, special_tokens=names, show_progress=False))
    text = json.loads(tokenizer.to_str())
    text["added_tokens"] = [one for one in text["added_tokens"] if one["content"] in special]
    tokenizer = Tokenizer.from_str(json.dumps(text))
    tokenizer.decoder = decoders.ByteLevel() if by_bytes else decoders.Replace("▁", " ")
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, tokenizer.token_to_id(begin))])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[-1],
                                   bos_token=begin or None)
    fast.save_pretrained(folder)


def prepare(folder, rows, work):
    """The documents of rows: lists of tokens and of marks that they count."""
    path, prefix = os.path.join(work, "rows.jsonl"), os.path.join(work, "set")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    subprocess.run([PREPARE, "--tokenizer", folder, "--val-fraction", "0", "--force", "--out",
                    prefix, path], check=True, capture_output=True)
    documents = []
    for name in sorted(glob.glob(prefix + "_train_*.bin")):
        data, mask = pathlib.Path(name).read_bytes(), pathlib.Path(name[:-3] + "mask").read_bytes()
        wide = int.from_bytes(data[:4], "little") == 20240801
        planes = {2: 2, 3: 4}[int.from_bytes(mask[4:8], "little")]
        for i, token in enumerate(array.array("I" if wide else "H", data[1024:])):
            counts, begins = (mask[16 + i // 8 * planes + k] >> i % 8 & 1 for k in (0, 1))
            if begins:
                if counts and documents:  # the end of one row and the beginning of the next
                    documents[-1].append((token, 1))
                documents.append([])
            documents[-1].append((token, 0 if begins else counts))
    return documents


def of_trl(tokenizer, prompt, answers):
    """The tokens of a prompt with each answer, and the marks of those that count."""
    eos = tokenizer.eos_token
    alone = tokenizer(prompt)["input_ids"]
    whole = [tokenizer(prompt + one + ("" if one.endswith(eos) else eos))["input_ids"]
             for one in answers]
    same = min(common_prefix_length(alone, one) for one in whole)
    found = [list(zip(one, [0] * same + [1] * (len(one) - same))) for one in whole]
    begin = tokenizer.bos_token_id
    if begin is not None and [token for token, _ in found[0][:2]] == [begin, begin]:
        found = [one[1:] for one in found]
    return found


def texts_of(chance, special, most):
    return "".join(chance.choice(special) if chance.random() < 0.12 else chance.choice(PARTS)
                   for _ in range(chance.randrange(1, most)))


def compare(name, folder, chance, count, work):
    """The number of documents that differ."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    special = [*tokenizer.all_special_tokens, "</s>", "<|im_end|>"]
    wrong = 0
    for is_pair in (False, True):
        rows, expected = [], []
        while len(rows) < count:
            prompt, *answers = (texts_of(chance, special, 7) for _ in range(2 + is_pair))
            if prompt.startswith(tokenizer.eos_token) or len(set(answers)) < len(answers):
                continue
            keys = ("prompt", "chosen", "rejected") if is_pair else ("prompt", "completion")
            rows.append(dict(zip(keys, (prompt, *answers))))
            expected += of_trl(tokenizer, prompt, answers)
        found = prepare(folder, rows, work)
        for i, one in enumerate(expected):
            own = found[i] if i < len(found) else []
            # GPT-2's token stands before a row; the mark of a first token is never read.
            if own not in (one, [(one[0][0], 0)] + one[1:]) and own[1:] != one:
                wrong += 1
                if wrong < 3:
                    print(f"{name}: {rows[i // (1 + is_pair)]}\n  here {own}\n  TRL  {one}")
    print(f"{name}: {wrong} of {3 * count} documents differ")
    return wrong


TEMPLATE = ("{% for one in messages %}{% if one.role == 'assistant' %}<|im_start|>assistant\n"
            "{% generation %}{% if one.thinking %}<t>{{ one.thinking }}</t>{% endif %}"
            "{{ one.content }}<|im_end|>{% endgeneration %}\n{% else %}<|im_start|>{{ one.role }}\n"
            "{{ one.content }}<|im_end|>\n{% endif %}{% endfor %}")


def compare_masks(chance, count, work):
    folder = os.path.join(work, "generation")
    train("chatml", folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    rows, expected = [], []
    for _ in range(count):
        messages = []
        for _ in range(chance.randrange(1, 4)):
            messages.append({"role": "user", "content": texts_of(chance, ["x"], 5)})
            messages.append({"role": "assistant", "content": "y" + texts_of(chance, ["x"], 5),
                             **({"thinking": "z"} if chance.random() < 0.3 else {})})
        rows.append({"messages": messages})
        both = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True,
                                             return_assistant_tokens_mask=True)
        expected.append(list(zip(both["input_ids"], both["assistant_masks"])))
    path = os.path.join(work, "messages.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    done = subprocess.run([sys.executable, RENDER, folder, path], check=True, capture_output=True,
                          text=True)
    found = prepare(folder, [json.loads(line) for line in done.stdout.splitlines()], work)
    wrong = sum(a != b for a, b in zip(found, expected)) + abs(len(found) - len(expected))
    print(f"generation: {wrong} of {count} conversations differ")
    return wrong


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", metavar="DIR")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=150)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    wrong = 0
    with tempfile.TemporaryDirectory() as work:
        for folder in options.folders or kinds():
            place = folder if options.folders else os.path.join(work, folder)
            if not options.folders:
                train(folder, place)
            wrong += compare(folder, place, chance, options.count, work)
        wrong += compare_masks(chance, options.count, work)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
