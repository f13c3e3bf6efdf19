"""Compares tokens of vocabularies that lack bytes with those of Hugging Face's tokenizers.

    python test/external/missing_bytes.py [COUNT [SEED]]

Needs tokenizers and numpy, and build/fast/encode_file (make build/fast/encode_file). Trains COUNT
small tokenizers (default 100), byte-level or of characters, with every combination of unk_token,
fuse_unk, byte_fallback and ignore_merges. Removes random tokens of bytes from each, with all tokens
that are merged from them, and compares the tokens of random text. Prints the first differences of a
tokenizer, and the number that differ; exit status 1 if there are any.
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ENCODE = os.environ.get("ENCODE", "build/fast/encode_file")
PROSE = "the boat there, Straße über 東京 \r\n\t\x0b\x01 it's 12 \U0001f600 naïve ħōme <0xC4> <unk>!"


def train(chance, byte_level):
    """Returns a tokenizer.json of a few merges."""
    tokenizer = Tokenizer(models.BPE())
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet()) if byte_level else []
    if byte_level:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=False, use_regex=chance.random() < 0.8)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Replace("▁", " ")
    trainer = trainers.BpeTrainer(vocab_size=len(alphabet) + chance.randrange(20, 60),
                                  initial_alphabet=alphabet, show_progress=False)
    texts = [PROSE] * 3 + [text(chance).replace("\0", "") for _ in range(5)]
    tokenizer.train_from_iterator(texts, trainer)
    return json.loads(tokenizer.to_str())


def text(chance):
    """Random text of characters that the vocabulary may lack."""
    makers = [
        lambda: chr(chance.randrange(0x80)),
        lambda: chance.choice(PROSE),
        lambda: chance.choice(PROSE.split(" ")),
        lambda: chr(chance.choice([chance.randrange(0x80, 0x800), chance.randrange(0x4E00, 0x5000),
                                   chance.randrange(0x10000, 0x110000)])),
        lambda: " " * chance.randrange(1, 4),
    ]
    return "".join(chance.choice(makers)() for _ in range(chance.randrange(1, 40)))


def remove_tokens(chance, tree, byte_level):
    """Removes tokens of single characters and what is merged from them; adds those of options."""
    model = tree["model"]
    vocabulary, merges = model["vocab"], [tuple(pair) for pair in model["merges"]]
    single = [name for name in vocabulary if len(name) == 1]
    gone = set(chance.sample(single, min(len(single), chance.choice([1, 3, 21, 100]))))
    if chance.random() < 0.7:  # else tokens stay that no merge makes, as after a conversion
        changed = True
        while changed:
            more = {a + b for a, b in merges if a in gone or b in gone} - gone
            gone |= more
            changed = bool(more)
    merges = [[a, b] for a, b in merges if a not in gone and b not in gone and a + b not in gone]
    names = [name for name in sorted(vocabulary, key=vocabulary.get) if name not in gone]
    model["unk_token"] = chance.choice([None, "<unk>", "<unk>", "!"])
    model["byte_fallback"] = chance.random() < 0.4
    for option in ("fuse_unk", "ignore_merges"):
        model[option] = chance.random() < 0.5
    names += [f"<0x{byte:02X}>" for byte in range(256) if chance.random() < 0.7] \
        if model["byte_fallback"] else []
    chance.shuffle(names)
    if model["unk_token"] and model["unk_token"] not in names and chance.random() < 0.9:
        names.insert(0, model["unk_token"])
    model["vocab"] = {name: number for number, name in enumerate(dict.fromkeys(names))}
    model["merges"] = merges
    return tree


def compare(chance, folder, index):
    byte_level = chance.random() < 0.7
    tree = remove_tokens(chance, train(chance, byte_level), byte_level)
    (folder / "tokenizer.json").write_text(json.dumps(tree))
    theirs = Tokenizer.from_str(json.dumps(tree))
    wrong = 0
    for _ in range(6):
        sample = text(chance)
        (folder / "text").write_bytes(sample.encode())
        done = subprocess.run([ENCODE, folder, folder / "text", folder / "tokens", folder / "back"],
                              capture_output=True, text=True, check=False)
        try:
            wanted = theirs.encode(sample, add_special_tokens=False).ids
            back = theirs.decode(wanted, skip_special_tokens=False)
        except Exception as error:  # of unk_token outside the vocabulary
            wanted = f"an error: {error}"
        got = (numpy.fromfile(folder / "tokens", numpy.int32).tolist() if done.returncode == 0
               else f"an error: {done.stderr.strip()}")
        if isinstance(got, str) and isinstance(wanted, str):
            continue
        if got == wanted and (not byte_level or (folder / "back").read_bytes().decode(
                errors="replace") == back):
            continue
        wrong += 1
        model = {key: value for key, value in tree["model"].items()
                 if key not in ("vocab", "merges")}
        print(f"tokenizer {index} {model}: {sample!r}\n  got  {got}\n  want {wanted}")
    return wrong


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    chance = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    with tempfile.TemporaryDirectory() as folder:
        wrong = sum(compare(chance, pathlib.Path(folder), index) for index in range(count))
    print(f"{count} tokenizers, {6 * count} texts: {wrong} differ")
    sys.exit(wrong > 0)


main()
