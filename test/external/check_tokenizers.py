"""Compares our tokens with those of Hugging Face's tokenizers. See check_tokenizers.sh.

    python test/external/check_tokenizers.py FOLDER [TOKENIZER.json | FOLDER ...]

Works in FOLDER, which is emptied first. Trains a small tokenizer of each supported kind, or uses
the given ones. Compares the tokens of hostile texts of more than 2 MB and of our own prose, and the
decoded text, with tokenizers; vocabularies of ranks are compared with tiktoken. One line a check; exit status 1 if one failed. ENCODE names the program
(build/fast/encode_file).
"""

import base64
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

import numpy
import tiktoken
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

ENCODE = os.environ.get("ENCODE", "build/fast/encode_file")
HOSTILE_BYTES = 2_200_000
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + SIGNS
QWEN = LLAMA3.replace("{1,3}", "")
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{ENDINGS}?|"
         rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{ENDINGS}?|\p{{N}}{{1,3}}|"
         + SIGNS.replace("[\\r\\n]*|", "[\\r\\n/]*|", 1))
MARK = "\u2581"


# ---------------------------------------------------------------- texts


def prose():
    names = sorted(path for ending in ("md", "c", "h", "py") for path in
                   pathlib.Path(".").glob(f"**/*.{ending}") if "build" not in path.parts)
    return "".join(path.read_text() for path in names[::3])


def hostile(seed, extra):
    """Text that breaks tokenizers, in a random order."""
    chance = random.Random(seed)
    words = prose()[:400_000].split()

    def characters(low, high, most):
        codes = (chance.randrange(low, high) for _ in range(chance.randrange(1, most)))
        return "".join(chr(code) for code in codes if not 0xD800 <= code <= 0xDFFF)

    makers = [
        lambda: chance.choice(words),
        lambda: " " + chance.choice(words),
        lambda: chance.choice(words).upper() + chance.choice(
            ["'s", "'S", "'\u017f", "'ll", "'LL", "'Ve", "'t", "\u2019s", "'", "''s", "'M "]),
        lambda: " " * chance.randrange(1, 20),
        lambda: "".join(chance.choices(" \t\r\n\v\f\u00a0\u2003\u3000\u0085\u2028\u180e\u200b",
                                       k=chance.randrange(1, 9))),
        lambda: "\n" * chance.randrange(1, 5),
        lambda: str(chance.randrange(10 ** chance.randrange(1, 18))),
        lambda: characters(0x21, 0x40, 12),
        lambda: characters(0x300, 0x370, 6),
        lambda: "".join(chance.choice("aeiouAEIOUnsdKΑω가ᄀ각ष") + characters(0x300, 0x370, 5)
                        for _ in range(3)),
        lambda: characters(0xA0, 0x250, 8),
        lambda: characters(0x370, 0x600, 8),
        lambda: characters(0x900, 0xE00, 8),
        lambda: characters(0x1100, 0x1200, 8),
        lambda: characters(0x4E00, 0x9FA6, 12),
        lambda: characters(0xAC00, 0xD7A4, 6),
        lambda: characters(0xF900, 0xFB50, 6),
        lambda: characters(0x1F300, 0x1FAFF, 5),
        lambda: characters(1, 0x10000, 6),
        lambda: characters(0x10000, 0x110000, 5),
        lambda: "\U0001f469\u200d\U0001f469\u200d\U0001f467\ufe0f",
        lambda: chance.choice(extra + [MARK, MARK * 3, " " + MARK, "<", "<|", "<0x0A>"]),
        lambda: chance.choice("ab=-_ \u0301中") * chance.randrange(1, 200),
    ]
    parts, size = [], 0
    while size < HOSTILE_BYTES:
        parts.append(chance.choice(makers)())
        size += len(parts[-1].encode())
    return "".join(parts)


# ---------------------------------------------------------------- tokenizers of every kind


def train(tokenizer, alphabet, special):
    trainer = trainers.BpeTrainer(vocab_size=3000, special_tokens=special, show_progress=False,
                                  initial_alphabet=alphabet)
    tokenizer.train_from_iterator(prose()[:1_000_000].splitlines(keepends=True), trainer)
    return tokenizer


def byte_level(cuts, normalizer=None, special=("<|endoftext|>",)):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = cuts
    tokenizer.decoder = decoders.ByteLevel()
    return train(tokenizer, pre_tokenizers.ByteLevel.alphabet(), list(special))


def split(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def ignoring_merges():
    """Some merges are missing, so that only whole pieces give their tokens."""
    tokenizer = byte_level(split(LLAMA3))
    state = json.loads(tokenizer.to_str())
    most = [m for i, m in enumerate(state["model"]["merges"]) if i % 7 or i < 300]
    made = {"".join(merge) for merge in most}
    state["model"]["merges"] = [m for m in most if all(len(p) == 1 or p in made for p in m)]
    state["model"]["ignore_merges"] = True
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    return tokenizer


def with_added_tokens():
    tokenizer = byte_level(split(QWEN), normalizers.NFC())
    tokenizer.add_tokens([
        AddedToken("<tool>", lstrip=True), AddedToken("</tool>", rstrip=True),
        AddedToken("<both>", lstrip=True, rstrip=True), AddedToken("word", single_word=True),
        AddedToken("caf\u1eb9", normalized=True), AddedToken("cafe\u0323!", normalized=False),
        AddedToken("<|", normalized=False), AddedToken("<|im_start|>", special=True)])
    return tokenizer


def characters(first, cuts, byte_fallback=True, fuse=True, strip=True):
    """A tokenizer.json in the form of converted SentencePiece models."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse,
                                     byte_fallback=byte_fallback))
    if first:
        tokenizer.normalizer = first
    # Learned with words, applied as said.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    special = ["<unk>", "<s>", "</s>"]
    if byte_fallback:
        special += [f"<0x{byte:02X}>" for byte in range(256)]
    train(tokenizer, list("abcdefghijklmnopqrstuvwxyz中世가"), special)
    # Bytes are tokens, but none that is looked for.
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = state["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    if cuts:
        tokenizer.pre_tokenizer = cuts
    else:
        state["pre_tokenizer"] = None
        tokenizer = Tokenizer.from_str(json.dumps(state))
    parts = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(parts + [decoders.Strip(" ", 1, 0)] * strip)
    return tokenizer


def gemma(tab_for_byte=False):
    """Like transformers' conversion of Gemma's tokenizer.model: every pair of tokens that together
    are a token has a merge, in the order of tokens. Runs of white space and tags of HTML are added
    tokens that are not special; one token has a space inside."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", MARK)
    trained.pre_tokenizer = pre_tokenizers.Split(MARK, "merged_with_next")
    train(trained, list("abcdefghijklmnopqrstuvwxyz中世가>/"), [])
    words = sorted(trained.get_vocab(), key=trained.get_vocab().get)
    runs = [text * count for text in ("\n", MARK, "\t") for count in range(1 + (text == MARK), 32)]
    added = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<unused{i}>" for i in range(99)),
             "<start_of_turn>", "<end_of_turn>", *runs, "<table>", "</table>", "<s>", "</s>"]
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    if tab_for_byte:  # transformers does so if the vocabulary has no tab
        added = [text for text in added if "\t" not in text]
        pieces[9] = "\t"
    pieces = dict.fromkeys(added + pieces + words + [f">{MARK}</", f">{MARK}", "</"])
    vocabulary = {text: token for token, text in enumerate(pieces)}
    merges = [(text[:cut], text[cut:]) for text in pieces for cut in range(1, len(text))
              if text[:cut] in vocabulary and text[cut:] in vocabulary]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True,
                                     byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", MARK)
    if not tab_for_byte:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(),
                                           decoders.Fuse()])
    special = added[:5] + ["<start_of_turn>", "<end_of_turn>"]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in added
                          if text not in special])
    tokenizer.add_special_tokens(special + ["<image_soft_token>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", vocabulary["<bos>"])])
    return tokenizer


def kinds():
    metaspace = pre_tokenizers.Metaspace
    llama2 = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    yield "GPT-2's pattern", byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    yield "a space before", byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True))
    yield "Llama 3's pattern", byte_level(split(LLAMA3))
    yield "Qwen's, NFC", byte_level(split(QWEN), normalizers.NFC())
    yield "o200k's pattern", byte_level(split(O200K))
    yield "digits, then GPT-2's", byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)]))
    yield "ignore_merges", ignoring_merges()
    yield "added tokens", with_added_tokens()
    yield "Llama 2", characters(llama2, None)
    yield "Metaspace, first", characters(None, metaspace(prepend_scheme="first", split=False))
    yield "Metaspace, split", characters(None, metaspace(prepend_scheme="always", split=True))
    yield "Metaspace, never", characters(None, metaspace(prepend_scheme="never", split=False),
                                         strip=False)
    yield "Gemma", gemma()
    yield "Gemma, a tab for a byte", gemma(tab_for_byte=True)
    yield "unknown, fused", characters(llama2, None, byte_fallback=False)
    yield "unknown, one by one", characters(llama2, None, byte_fallback=False, fuse=False)


# ---------------------------------------------------------------- the check


def first_difference(ours, theirs):
    count = min(len(ours), len(theirs))
    at = next((i for i in range(count) if ours[i] != theirs[i]), count)
    return at, list(ours[max(at - 3, 0):at + 6]), list(theirs[max(at - 3, 0):at + 6])


class Theirs:
    """A tokenizer of either library: encode, decode, and the texts of added tokens."""

    def __init__(self, path):
        self.tokenizer = None
        if path.is_dir() and not (path / "tokenizer.json").exists():
            state = json.loads((path / "tiktoken.json").read_text())
            lines = (path / "ranks.tiktoken").read_bytes().splitlines()
            ranks = {base64.b64decode(line.split()[0]): int(line.split()[1])
                     for line in lines if line}
            self.added = list(state["special_tokens"])
            self.encoding = tiktoken.Encoding(
                "ranks", pat_str=state["pattern"], mergeable_ranks=ranks,
                special_tokens=state["special_tokens"])
        else:
            file = path / "tokenizer.json" if path.is_dir() else path
            self.tokenizer = Tokenizer.from_file(str(file))
            added = self.tokenizer.get_added_tokens_decoder().values()
            self.added = [token.content for token in added]

    def encode(self, text):
        if self.tokenizer:
            return self.tokenizer.encode(text, add_special_tokens=False).ids
        return self.encoding.encode(text, allowed_special="all")

    def decode(self, tokens):
        if self.tokenizer:
            return self.tokenizer.decode(tokens, skip_special_tokens=False)
        return self.encoding.decode(tokens)

    def name_of(self, token):
        if self.tokenizer:
            return self.tokenizer.id_to_token(token)
        return self.encoding.decode_single_token_bytes(token)


def check(name, path, folder):
    theirs = Theirs(path)
    good = True
    if path.is_file():
        (folder / "one").mkdir(exist_ok=True)
        path = pathlib.Path(shutil.copy(path, folder / "one" / "tokenizer.json")).parent
    extra = [text for text in theirs.added if "<unused" not in text][:200]
    extra += ["caf\u1eb9", "cafe\u0323", "cafe\u0323!"]
    for title, text in (("hostile", hostile(1, extra)), ("prose", prose())):
        source, tokens, back = (folder / name for name in ("text", "tokens", "back"))
        source.write_bytes(text.encode())
        command = [ENCODE, path, source, tokens, back]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            print(f"FAILED  {name:<24} {done.stderr.decode().strip()}")
            return False
        begin = time.process_time()
        expected = theirs.encode(text)
        seconds = time.process_time() - begin
        found = numpy.fromfile(tokens, "<i4")
        same = len(found) == len(expected) and bool((found == expected).all())
        decoded = theirs.decode(expected)
        same_back = back.read_bytes().decode(errors="replace") == decoded
        good = good and same and same_back
        size = len(text.encode())
        print(f"{'ok    ' if same and same_back else 'FAILED'}  {name:<24} {title:<8} "
              f"{size / 1e6:.2f} MB {len(expected):>8} tokens, "
              f"ours {float(done.stdout):6.1f} MB/s, theirs {1e-6 * size / seconds:5.1f}",
              flush=True)
        if not same:
            at, left, right = first_difference(found, expected)
            names = [[theirs.name_of(int(i)) for i in side] for side in (left, right)]
            print(f"        at token {at} of {len(found)}: ours {left} {names[0]}\n"
                  f"        theirs {right} {names[1]}")
        elif not same_back:
            print(f"        decoded: ours {back.read_bytes()[:80]!r}\n"
                  f"        theirs {decoded[:80]!r}")
    return good


def ranks(tokenizer, pattern, folder):
    """The vocabulary as ranks only, in the format of tiktoken."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    bytes_of = {chr(byte): byte for byte in printable}
    bytes_of |= {chr(256 + i): byte for i, byte in enumerate(others)}
    assert set(bytes_of) == set(letters)
    special = {"<|endoftext|>": 0}
    folder.mkdir()
    with (folder / "ranks.tiktoken").open("wb") as out:
        for name, rank in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
            if name not in special:
                token = bytes(bytes_of[letter] for letter in name)
                out.write(base64.b64encode(token) + b" %d\n" % rank)
    (folder / "tiktoken.json").write_text(json.dumps(
        {"pattern": pattern, "special_tokens": special, "begin": "<|endoftext|>"}))
    return folder


CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+|"
          r" ?[^\s\p{L}\p{N}]++[\r\n]*+|"
          r"\s++$|\s*[\r\n]|\s+(?!\S)|\s")


def main():
    folder = pathlib.Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    good = True
    for name, tokenizer in kinds() if len(sys.argv) == 2 else ():
        tokenizer.save(str(folder / "tokenizer.json"))
        good = check(name, folder / "tokenizer.json", folder) and good
        for title, pattern in (("Llama 3", LLAMA3), ("cl100k", CL100K)):
            if name == "Llama 3's pattern":
                path = ranks(tokenizer, pattern, folder / title)
                good = check(f"ranks, {title}'s pattern", path, folder) and good
    for path in sys.argv[2:]:
        good = check(pathlib.Path(path).stem, pathlib.Path(path), folder) and good
    sys.exit(not good)


if __name__ == "__main__":
    main()
