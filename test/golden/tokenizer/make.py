"""Writes the tokenizer's fixtures: what Hugging Face's tokenizers make of nasty texts.

    python test/golden/tokenizer/make.py --gpt2 DIR --tinyshakespeare FILE [--train]

DIR holds GPT-2's vocab.json and merges.txt, FILE is tinyshakespeare's input.txt. With --train the
small vocabulary is trained anew. See README.md beside this file. The script stops where tiktoken
and tokenizers disagree.
"""

import argparse
import hashlib
import json
import pathlib
import struct
import subprocess

import tiktoken
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

FOLDER = pathlib.Path(__file__).parent
END = "<|endoftext|>"
SMALL_SIZE = 1200
MIX_BYTES = 1_000_000
PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""

# Each group is a comment and its texts.
TEXTS = {
    "plain": [
        "", "a", " ", "\n", "Hello, world!", "The quick brown fox jumps over the lazy dog.",
        "To be, or not to be: that is the question.",
        "for (int i = 0; i < count; i++) sum += x[i] * 0x1F;",
        "  \"key\": [1, 2.5e-3, null],\n", "https://example.org/a%20b?c=d&e=f#g",
    ],
    "contractions": [
        "it's he'll we've I'd they're don't I'm", "IT'S HE'LL WE'VE I'D THEY'RE DON'T I'M",
        "'s't're've'm'll'd", "'S'T'RE", "it\u2019s don\u2019t", "' s ' t",
        "''s '''t 'sx 'rex 'lla",
        "o'clock 'tis 'twas rock'n'roll", "l'd'm'x'", "'re're're 're 'r 'v 'l",
    ],
    "white space": [
        "a b  c   d    e", "   leading", "trailing   ", " \n \n  \n\n a", "\t\ta\tb\t \tc",
        "a\r\nb\r\n\r\nc",
        "a \r\n b", "\u00a0a\u00a0\u00a0b \u00a0c",
        "\u3000\u5168\u89d2\u3000\u3000\u7a7a\u767d",
        "a\u2003b\u2009 c\u2028d\u2029e\u202ff\u205fg\u1680h", "a\u0085b \u0085 c",
        "x\v\fy\v z",
        "\u180ea \u180e b\u200bc \u200b d\ufeffe", "\u001ca\u001d b \u001e\u001f c",
        " " * 40 + "x" + " " * 41, "\n" * 30, "x \n", "x \n ", "x\n \ny", " \u00a0 \u3000 !",
    ],
    "numbers": [
        "1 12 123 1234 12345 123456789012345678901234567890",
        "3.14159 1,000,000 -42 +7 1e9 0xff",
        "a1b2c3 4d5e6f",
        "\u0661\u0662\u0663 \u0967\u0968\u0969 \uff11\uff12 \u00bd \u2167 \u00b2x \u3007",
        "\U0001d7d8\U0001d7d9 \u2460\u2461 \u0f2a", "2nd 3rd4th",
    ],
    "signs": [
        "!?...---***", " !!! ??? ...", "a--b ... c!!!d",
        "$100 \u20ac50 \u00a37 \u00a55 50% #1 @me",
        "_a__b_", "\u201cquoted\u201d \u2018single\u2019 \u2014 \u2013 \u2026",
        "\u2192\u2190\u21d2 \u2211\u222b\u221e\u2260",
    ],
    "emoji": [
        "\U0001f600", "\U0001f600\U0001f601 \U0001f602",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 family",
        "\U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea \u2764\ufe0f \u0031\ufe0f\u20e3",
        "a\U0001f600b1\U0001f600c",
    ],
    "marks and scripts": [
        "cafe\u0301 caf\u00e9 nai\u0308ve \u0301x",
        "Z\u0351\u036b\u0343\u036a\u0302a\u0328l\u0321go",
        "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
        "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3067\u3059\u3002 "
        "\u30ab\u30bf\u30ab\u30ca",
        "\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8",
        "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645\u060c "
        "\u0661\u0662",
        "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd \u05b8\u05b7",
        "\u200f\u05d0\u200e a \u202eb\u202c",
        "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
        "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
        "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! "
        "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac",
        "\u0130I\u0131i \u00df\u1e9e \ufb01 \u01c5",
        "\U00010400\U00010428 \U00020000\U0002a6df \U0001e900",
        "later letters \ua7cb\ua7dc \U00010d4a \U00031350\U000323af \U00013460 "
        "\U0001e030\U0001e5d0",
        "later numbers x\U0001e5f1 \U00010d40\U000116d0 \U0001ccf0\U00011f50",
        "\ue000\uf8ff \U000f0000 \U0010ffff \ufffe\uffff \u0378",
    ],
    "control bytes": [
        "\0", "a\0b\0\0 c", "\x01\x02\x03 \x1b[31mred\x1b[0m \x7f", "\x08\x07bell",
        "\u0080\u0081 \u009f",
        "\ufeffbyte order mark",
    ],
    "long words": [
        "a" * 300, "ab" * 100, "Donaudampfschifffahrtsgesellschaftskapitaen" * 5,
        "supercalifragilistic" * 3,
        "=" * 200, "\u597d" * 60, "\U0001f600" * 40, "x" * 48, "x" * 49, "hello" * 9 + "wor",
        "hello" * 9 + "worl",
        "ACGT" * 64 + "TTTT", "0" * 100,
    ],
    "the special token": [
        END, END + END, "a" + END + "b", "a " + END + " b", "\n" + END + "\n\n",
        "a  " + END + "  b",
        "<|endoftext", "|endoftext|>", "<|endoftext|" + END + ">", "<|ENDOFTEXT|>",
        "x<|endoftext|>'s", "<<|endoftext|>>",
    ],
}


def byte_level(model, with_special):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if with_special:
        tokenizer.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    return tokenizer


def all_texts():
    return [text for texts in TEXTS.values() for text in texts]


def train():
    """A small vocabulary in both forms: small/ and small_whole/."""
    names = subprocess.run(["git", "ls-files", "*.md", "*.c", "*.h", "*.cu"], cwd=FOLDER.parents[2],
                           capture_output=True, text=True, check=True).stdout.split()
    ours = [(FOLDER.parents[2] / name).read_text(encoding="utf-8") for name in sorted(names)]
    tokenizer = byte_level(models.BPE(), False)
    trainer = trainers.BpeTrainer(vocab_size=SMALL_SIZE - 1, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(ours + all_texts() * 30, trainer)
    tokenizer.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    (FOLDER / "small").mkdir(exist_ok=True)
    (FOLDER / "small_whole").mkdir(exist_ok=True)
    tokenizer.save(str(FOLDER / "small_whole/tokenizer.json"))
    saved = json.loads((FOLDER / "small_whole/tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = saved["model"]["vocab"] | {END: tokenizer.token_to_id(END)}
    (FOLDER / "small/vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    lines = ["#version: 0.2"] + [" ".join(merge) for merge in saved["model"]["merges"]]
    (FOLDER / "small/merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def escaped(text):
    """Printable ASCII as it is, a backslash and all other bytes as \\xNN; so are spaces that an
    editor might remove."""
    inner = range(1, len(text.encode()) - 1)
    return "".join(chr(byte) if 0x20 < byte < 0x7f and byte != 0x5c or byte == 0x20 and i in inner
                   else f"\\x{byte:02x}" for i, byte in enumerate(text.encode()))


def mix():
    """About 1 MB of the texts in the order of a linear congruential generator."""
    texts, state, parts, size = [text.encode() for text in all_texts()], 1, [], 0
    while size < MIX_BYTES:
        state = (state * 1103515245 + 12345) % 2**31
        parts.append(texts[(state >> 16) % len(texts)])
        size += len(parts[-1])
    return b"".join(parts).decode()


def encoders(folder):
    """Functions from text to tokens: without and with the special token."""
    files = str(folder / "vocab.json"), str(folder / "merges.txt")
    plain = byte_level(models.BPE.from_file(*files), False)
    special = byte_level(models.BPE.from_file(*files), True)
    return (lambda text: plain.encode(text).ids), (lambda text: special.encode(text).ids)


def check_with_tiktoken(folder, plain, texts):
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    end = vocabulary.pop(END)
    letters = pre_tokenizers.ByteLevel.alphabet()
    codes = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in codes]
    of_letter = {chr(code): code for code in codes}
    of_letter |= {chr(256 + i): byte for i, byte in enumerate(others)}
    assert set(of_letter) == set(letters)
    ranks = {bytes(of_letter[letter] for letter in name): i for name, i in vocabulary.items()}
    encoding = tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks,
                                 special_tokens={END: end})
    for text in texts:
        assert encoding.encode_ordinary(text) == plain(text), repr(text)


def classes_by(pieces_of):
    """pieces_of: from a text to the set of its pieces, at least of those of two characters."""
    codes = [code for code in range(0x110000) if not 0xd800 <= code <= 0xdfff]
    classes = dict.fromkeys(codes, "s")
    for neighbour, name in ("a", "L"), ("1", "N"), ("!", "o"):
        for start in range(0, len(codes), 5_000):
            part = codes[start:start + 5_000]
            pieces = pieces_of("".join(f"\n{neighbour}{chr(code)}" for code in part) + "\n")
            classes.update((code, name) for code in part if neighbour + chr(code) in pieces)
    return "".join(classes.values())


def all_classes():
    """By tokenizers, and by tiktoken, whose pieces are tokens where its vocabulary has them."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)

    def by_tokenizers(text):
        return {text[begin:end] for _, (begin, end) in level.pre_tokenize_str(text)}

    def by_tiktoken(text):
        pairs = {text[i:i + 2].encode() for i in range(1, len(text) - 1, 3)}
        single = [bytes([byte]) for byte in range(256)]
        ranks = {token: i for i, token in enumerate(single + sorted(pairs))}
        encoding = tiktoken.Encoding("pieces", pat_str=PATTERN, mergeable_ranks=ranks,
                                     special_tokens={})
        tokens = set(encoding.encode_ordinary(text)) - set(range(256))
        return {encoding.decode_single_token_bytes(token).decode() for token in tokens}

    theirs = classes_by(by_tokenizers)
    assert theirs == classes_by(by_tiktoken)
    return theirs


def digest(tokens):
    return hashlib.sha256(struct.pack(f"<{len(tokens)}H", *tokens)).hexdigest()


def write_case(out, text, sets):
    print("text", escaped(text), file=out)
    for name, (plain, special) in sets.items():
        print(name, *plain(text), file=out)
        if special(text) != plain(text):
            print(f"{name}-special", *special(text), file=out)


def write_cases(gpt2, shakespeare):
    sets = {"small": encoders(FOLDER / "small"), "gpt2": encoders(gpt2)}
    whole = Tokenizer.from_file(str(FOLDER / "small_whole/tokenizer.json"))
    long_texts = {"mix": mix(), "tinyshakespeare": shakespeare.read_bytes().decode()}
    for folder, (plain, special) in zip((FOLDER / "small", gpt2), sets.values()):
        check_with_tiktoken(folder, plain, all_texts() + list(long_texts.values()))
    classes = hashlib.sha256(all_classes().encode()).hexdigest()
    with open(FOLDER / "cases.txt", "w", encoding="ascii", newline="\n") as out:
        print("# Written by make.py. text: in bytes, the rest: its tokens. -special: where they"
              " differ with\n# the special token; hash: bytes and SHA-256 of a text, count and"
              " SHA-256 of its tokens (uint16).", file=out)
        for group, texts in TEXTS.items():
            print(f"# {group}", file=out)
            for text in texts:
                assert whole.encode(text).ids == sets["small"][1](text)
                write_case(out, text, sets)
        for name, text in long_texts.items():
            for vocabulary, (plain, _) in sets.items():
                tokens = plain(text)
                print("hash", name, len(text.encode()), hashlib.sha256(text.encode()).hexdigest(),
                      vocabulary, len(tokens), digest(tokens), file=out)
        print("classes", classes, file=out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpt2", type=pathlib.Path, required=True)
    parser.add_argument("--tinyshakespeare", type=pathlib.Path, required=True)
    parser.add_argument("--train", action="store_true")
    arguments = parser.parse_args()
    if arguments.train:
        train()
    write_cases(arguments.gpt2, arguments.tinyshakespeare)


main()
