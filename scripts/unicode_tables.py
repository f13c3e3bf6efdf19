"""Generates the Unicode tables of data/tokenize as C source.

    python scripts/unicode_tables.py data/tokenize

writes the three files unicode_*.inc. Tokens must equal those of Hugging Face's tokenizers (pip
install tokenizers), so the tables are read out of that library. Its two parts use
different versions: classes of Unicode 16, canonical composition of Unicode 9. Python's unicodedata,
of any later version, lists the candidates.
"""

import itertools
import pathlib
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

CODES = [code for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]
# CLASSES and LETTERS are in the order of enum unicode_atom.
CLASSES = ["", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Nd", "N", "P", "S"]
SPACE, WORDS = 11, {8: 12, 9: 13, 10: 14, 0: 15}
LETTERS = ".UltmoMdnps_NPSW"


def matching(pattern):
    """The characters that the pattern of one character matches."""
    text = "".join(map(chr, CODES))
    split = pre_tokenizers.Split(Regex(f"(?:{pattern})+"), "removed", invert=True)
    return {ord(c) for part, _ in split.pre_tokenize_str(text) for c in part}


def word_characters():
    """Characters next to which an added token is not a word of its own."""
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    tokenizer.add_tokens([AddedToken("@", single_word=True)])
    encoded = tokenizer.encode_batch([chr(code) + "@" for code in CODES if code != ord("@")])
    codes = [code for code in CODES if code != ord("@")]
    return {code for code, one in zip(codes, encoded) if 1 not in one.ids}


def atoms():
    found = [0] * 0x110000
    for atom, name in enumerate(CLASSES):
        for code in matching(rf"\p{{{name}}}") if name else ():
            if name != "N" or found[code] == 0:
                found[code] = atom
    for code in matching(r"\s"):
        assert found[code] == 0
        found[code] = SPACE
    words = word_characters()
    for code in CODES:
        is_word = 1 <= found[code] <= 7
        if code in words and not is_word:
            found[code] = WORDS[found[code]]
        elif is_word and code not in words:
            print(f"U+{code:04X}: a {CLASSES[found[code]]}, but no character of words")
    return found


def runs(values):
    """(count, value) of each run of equal values"""
    for value, run in itertools.groupby(values):
        yield len(list(run)), value


def combining_classes(decompose):
    """Combining classes of the library, by which it orders the marks after a letter."""
    found = [0] * 0x110000
    for code in CODES:
        value, mark = unicodedata.combining(chr(code)), chr(code)
        if unicodedata.decomposition(mark) and not unicodedata.decomposition(mark).startswith("<"):
            # Marks composed of others have the classes of those.
            value = unicodedata.combining(unicodedata.normalize("NFD", mark)[0])
        before, after = "x\u0345" + mark, "x" + mark + "\u0334"
        moves = decompose(before) != before if value < 240 else decompose(after) != after
        if value and (moves or code in (0x0345, 0x0334)):
            found[code] = value
    return found


def decompositions(decompose, compose):
    """(code, first, second or 0, True if the library composes the two again)"""
    for code in CODES:
        names = unicodedata.decomposition(chr(code))
        if not names or names.startswith("<") or decompose(chr(code)) == chr(code):
            continue
        parts = [int(part, 16) for part in names.split()] + [0]
        pair = "".join(chr(part) for part in parts[:2] if part)
        yield code, parts[0], parts[1], compose(pair) == chr(code)


def groups(found):
    """For each second character: itself, whether the pairs compose, their number, and the
    increments of code and first character from pair to pair."""
    found = sorted(found, key=lambda pair: (pair[2], pair[3], pair[0]))
    for (second, composes), pairs in itertools.groupby(found, key=lambda pair: pair[2:]):
        pairs = list(pairs)
        yield from (second, int(composes), len(pairs))
        for before, pair in zip([(0, 0)] + pairs, pairs):
            yield from (pair[0] - before[0], pair[1] - before[1])


def write(path, head, words, quote=""):
    """Fills lines with the words; `quote` stands around each line."""
    lines = [f"/* Made by scripts/unicode_tables.py: {head} */"]
    line = ""
    for word in words:
        if len(line) + len(word) > 96:
            lines.append(quote + line.rstrip() + quote)
            line = ""
        line += word
    path.write_text("\n".join(lines + [quote + line.rstrip() + quote]) + "\n")


def main():
    folder = pathlib.Path(sys.argv[1])
    compose, decompose = (form().normalize_str for form in (normalizers.NFC, normalizers.NFD))
    write(folder / "unicode_classes.inc",
          "runs of one class, its letter and length.",
          (LETTERS[atom] + (str(count) if count > 1 else "") for count, atom in runs(atoms())),
          quote='"')
    write(folder / "unicode_combining.inc", "runs of one combining class, count * 256 + class.",
          (f"{count * 256 + value}, " for count, value in runs(combining_classes(decompose))))
    write(folder / "unicode_canonical.inc",
          "groups of decompositions with one second character.",
          (f"{number}, " for number in groups(decompositions(decompose, compose))))


if __name__ == "__main__":
    main()
