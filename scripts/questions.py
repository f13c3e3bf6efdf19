#!/usr/bin/env python3
"""Turns rows of benchmarks into questions for ./train --choices.

    python3 scripts/questions.py IN OUT.jsonl

It needs Python 3.8. IN is a file of JSON Lines, or of Parquet where Python has pyarrow. The fields of a row decide its
benchmark; a file may mix them:

    HellaSwag    activity_label, ctx_a, ctx_b, endings, label
    ARC          question, choices {text, label}, answerKey; or question {stem, choices [{text,
                 label}, ...]}, answerKey, as in its archive
    PIQA         goal, sol1, sol2, label
    WinoGrande   sentence, option1, option2, answer (1 or 2)
    MMLU         question, subject, choices, answer (0 to 3)

Contexts, choices and the space between them are those of lm-evaluation-harness without examples.
Rows are read one by one. OUT.jsonl appears complete or not at all. Exit status: 0 done, 1 a row or
a file is wrong, 2 wrong usage.
"""
import json
import os
import sys
import tempfile


class Wrong(ValueError):
    """A row that is not a question."""


def field(row, name, kind):
    value = row.get(name) if isinstance(row, dict) else None
    names = {str: "a string", list: "a list", dict: "an object"}
    if not isinstance(value, kind):
        raise Wrong(f'"{name}" is missing or not {names[kind]}')
    return value


def texts(row, name):
    values = field(row, name, list)
    if not all(isinstance(value, str) for value in values):
        raise Wrong(f'"{name}" is not an array of strings')
    return values


def index(row, name, count, first=0):
    """The answer's index among `count` choices, which the row numbers from `first`."""
    value = row.get(name)
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:9])
    if type(value) is not int or not first <= value < first + count:
        raise Wrong(f'"{name}" is not a whole number from {first} to {first + count - 1}; test '
                    "splits often have no answers")
    return value - first


def without_brackets(text):
    """Removes each [ with the text up to the next ] of its line."""
    parts, begin = [], 0
    while begin < len(text):
        line_end = text.find("\n", begin) + 1 or len(text)
        while (opens := text.find("[", begin, line_end)) >= 0 and \
                (closes := text.find("]", opens, line_end)) >= 0:
            parts.append(text[begin:opens])
            begin = closes + 1
        parts.append(text[begin:line_end])
        begin = line_end
    return "".join(parts)


def clean(text):
    """A text of HellaSwag without the marks of WikiHow."""
    return without_brackets(text.strip().replace(" [title]", ". ")).replace("  ", " ")


def hellaswag(row):
    context = field({"ctx_b": "", **row}, "ctx_b", str).capitalize()
    context = f"{field(row, 'activity_label', str)}: {field(row, 'ctx_a', str)} {context}"
    choices = [clean(ending) for ending in texts(row, "endings")]
    return clean(context), choices, index(row, "label", len(choices))


def arc(row):
    inner = row["question"]
    if isinstance(inner, dict):
        question, listed = field(inner, "stem", str), field(inner, "choices", list)
        choices, labels = ([field(choice, name, str) for choice in listed]
                           for name in ("text", "label"))
    else:
        question, lists = field(row, "question", str), field(row, "choices", dict)
        choices, labels = texts(lists, "text"), texts(lists, "label")
    if len(choices) != len(labels):
        raise Wrong('"choices" has not a label for each text')
    if row["answerKey"] not in labels:
        raise Wrong('"answerKey" is not the label of a choice')
    return f"Question: {question}\nAnswer:", choices, labels.index(row["answerKey"])


def piqa(row):
    choices = [field(row, "sol1", str), field(row, "sol2", str)]
    return f"Question: {field(row, 'goal', str)}\nAnswer:", choices, index(row, "label", 2)


def winogrande(row):
    """The choices differ in their contexts, and the text after the blank is scored."""
    before, blank, after = field(row, "sentence", str).partition("_")
    if not blank:
        raise Wrong('"sentence" has no "_"')
    contexts = [before + field(row, name, str) for name in ("option1", "option2")]
    return contexts, [after.strip()] * 2, index(row, "answer", 2, 1)


def mmlu(row):
    choices, letters = texts(row, "choices"), ["A", "B", "C", "D"]
    if len(choices) != 4:
        raise Wrong('"choices" has not four texts')
    lines = [f"{letter}. {choice}" for letter, choice in zip(letters, choices)]
    subject = field(row, "subject", str).replace("_", " ")
    return ("The following are multiple choice questions (with answers) about " + subject +
            ".\n\n" + "\n".join([field(row, "question", str).strip(), *lines, "Answer:"]),
            letters, index(row, "answer", 4))


# A row with both fields is of this benchmark.
BENCHMARKS = {
    ("ctx_a", "endings"): hellaswag,
    ("question", "answerKey"): arc,
    ("goal", "sol1"): piqa,
    ("sentence", "option1"): winogrande,
    ("question", "subject"): mmlu,
}


def question(row):
    """The row as a question; lm-evaluation-harness puts a space before each choice."""
    for fields, convert in BENCHMARKS.items():
        if isinstance(row, dict) and all(name in row for name in fields):
            context, choices, answer = convert(row)
            if not all(choices):
                raise Wrong("a choice is empty")
            if any("\0" in text for text in [*context, *choices]):
                raise Wrong("a text has a NUL character, \\u0000")
            if len(choices) < 2:
                raise Wrong("it has fewer than two choices")
            return {"context": context, "choices": choices, "answer": answer, "delimiter": " "}
    raise Wrong("the fields are not those of a known benchmark; --help lists them")


def json_rows(file):
    mark = b"\xef\xbb\xbf"
    for number, line in enumerate(file, 1):
        line = line.strip()
        line = line[len(mark):] if line.startswith(mark) else line
        if line:
            try:
                yield f"line {number}", json.loads(line)
            except (ValueError, RecursionError) as problem:
                raise Wrong(f"line {number}: {problem}") from None


def parquet_rows(path):
    try:
        import pyarrow.parquet
    except ImportError:
        sys.exit(f"{path}: this is a Parquet file: install pyarrow (python3 -m pip install pyarrow)")
    number = 0
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(1000):
            for row in batch.to_pylist():
                number += 1
                yield f"row {number}", row
    except pyarrow.ArrowException as problem:
        raise Wrong(f"after row {number}: {problem}") from None


def rows(path):
    """Pairs of a name, such as "line 1", and a row."""
    with open(path, "rb") as file:
        yield from parquet_rows(path) if file.peek(4)[:4] == b"PAR1" else json_rows(file)


def write(out, path):
    """Writes the questions. Returns their number."""
    count = 0
    for name, row in rows(path):
        try:
            out.write((json.dumps(question(row), ensure_ascii=False) + "\n").encode())
        except Wrong as problem:
            raise Wrong(f"{name}: {problem}") from None
        except UnicodeEncodeError:
            raise Wrong(f"{name}: a text has half a character") from None
        count += 1
    if count == 0:
        raise Wrong("there are no rows")
    return count


def write_whole(target, path):
    """Writes the questions to a file beside the target, and renames it once it is complete."""
    handle, part = tempfile.mkstemp(".part", "questions-", os.path.dirname(target) or ".")
    try:
        with open(handle, "wb") as out:
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(part, 0o666 & ~umask)
            count = write(out, path)
        os.replace(part, target)
    except BaseException:
        os.remove(part)
        raise
    return count


def main():
    if sys.argv[1:] in (["--help"], ["-h"]):
        print(__doc__.strip())
        return 0
    if len(sys.argv) != 3:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    path, target = sys.argv[1:]
    try:
        count = write_whole(target, path)
    except (ValueError, OSError) as problem:
        print(f"{path}: {problem}", file=sys.stderr)
        return 1
    print(f"{target}: {count:,} questions")
    print(f"next: ./train --choices {target} --from datasets/gpt2")
    return 0


if __name__ == "__main__":
    sys.exit(main())
