#!/usr/bin/env python3
"""Tests scripts/questions.py on rows invented here, in the layouts of the benchmarks. The expected
texts are those of lm-evaluation-harness, which test/external/check_choices.py compares at random."""
import json
import os
import subprocess
import sys
import tempfile

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts/questions.py")

ENDINGS = ["rows  home   now.", "[header] Sings a [song", "waves [x]both[y] oars é.", "[a [b] c] d"]
MMLU = "The following are multiple choice questions (with answers) about bee keeping.\n\n"

# Row, context or contexts, choices, answer.
GOLDEN = [
    ({"ctx_a": "A sailor ties a knot.", "ctx_b": "she [step]", "activity_label": "Sailing",
      "endings": ENDINGS, "label": "3", "ctx": "unused"},
     "Sailing: A sailor ties a knot. She ",
     ["rows home  now.", " Sings a [song", "waves both oars é.", " c] d"], 3),
    ({"ctx_a": "[header] Baking rye [title] Heat it. [step] Wait.", "ctx_b": "",
      "activity_label": " Kitchen ", "endings": ["\tx\u00a0", "y\n[z\n]"], "label": 0},
     "Kitchen : Baking rye. Heat it. Wait.", ["x", "y\n[z\n]"], 0),
    ({"ctx_a": "a", "ctx_b": "ßÉCOLE OF NYC", "activity_label": "L", "endings": ["x", "y"],
      "label": 1}, "L: a Ssécole of nyc", ["x", "y"], 1),
    ({"ctx_a": "a", "activity_label": "L", "endings": ["x", "y"], "label": 1}, "L: a", ["x", "y"],
     1),
    ({"question": "Which melts?", "choices": {"text": ["ice", " warm  wax"], "label": ["A", "B"]},
      "answerKey": "B"}, "Question: Which melts?\nAnswer:", ["ice", " warm  wax"], 1),
    ({"question": {"stem": "How \"many\"?", "choices": [{"text": "½", "label": "1"},
                                                        {"text": "水", "label": "2"}]},
      "answerKey": "1"}, "Question: How \"many\"?\nAnswer:", ["½", "水"], 0),
    ({"goal": "Dry a boot ", "sol1": "Fill it with rice.", "sol2": " Dip\nit.", "label": 0},
     "Question: Dry a boot \nAnswer:", ["Fill it with rice.", " Dip\nit."], 0),
    ({"sentence": "The owl outran the snail, for _ was _ fast. ", "option1": "the owl",
      "option2": "it ", "answer": "2"},
     ["The owl outran the snail, for the owl", "The owl outran the snail, for it "],
     ["was _ fast."] * 2, 1),
    ({"question": " Who dances?\n", "subject": "bee_keeping", "choices": ["a", "", "c  c", "d"],
      "answer": 2},
     MMLU + "Who dances?\nA. a\nB. \nC. c  c\nD. d\nAnswer:", ["A", "B", "C", "D"], 2),
]

ARC = {"question": "q", "answerKey": "A"}
WINOGRANDE = {"sentence": "a _ b", "option1": "x", "option2": "y", "answer": "1"}
BAD = [
    ([], "known benchmark"),
    ({"context": "c", "choices": ["a", "b"], "answer": 0}, "known benchmark"),
    ({**GOLDEN[0][0], "label": ""}, '"label" is not a whole number from 0 to 3; test splits'),
    ({**GOLDEN[0][0], "endings": ["x", "[y]"], "label": 0}, "a choice is empty"),
    ({**GOLDEN[0][0], "endings": ["x"], "label": 0}, "fewer than two choices"),
    ({**GOLDEN[0][0], "endings": ["x", None]}, '"endings" is not an array of strings'),
    ({**ARC, "choices": {"text": ["x", "y"], "label": ["A"]}}, "has not a label for each"),
    ({**ARC, "choices": {"text": ["x", "y"], "label": ["B", "C"]}}, "not the label of a choice"),
    ({**ARC, "question": {"stem": "s", "choices": ["x"]}}, '"text" is missing'),
    ({"goal": "g", "sol1": "x", "label": 0}, '"sol2" is missing'),
    ({**WINOGRANDE, "sentence": "a"}, 'has no "_"'),
    ({**WINOGRANDE, "answer": "0"}, "whole number from 1 to 2"),
    ({"question": "q", "subject": "s", "choices": ["a"], "answer": 0}, "not four texts"),
    ({"goal": "g", "sol1": "x\0", "sol2": "y", "label": 0}, "a NUL character"),
    ({"goal": "\ud800", "sol1": "x", "sol2": "y", "label": 0}, "half a character"),
]


def convert(folder, text):
    path, out = os.path.join(folder, "in"), os.path.join(folder, "out.jsonl")
    with open(path, "wb") as file:
        file.write(text)
    before = set(os.listdir(folder)) - {"out.jsonl"}
    done = subprocess.run([sys.executable, SCRIPT, path, out], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": folder})
    assert set(os.listdir(folder)) - {"out.jsonl"} == before
    if done.returncode:
        assert not os.path.exists(out) and "Traceback" not in done.stderr, done.stderr
        return done.stderr
    with open(out, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    os.remove(out)
    return rows


def main():
    with tempfile.TemporaryDirectory() as folder:
        text = "\ufeff\n" + "\n\n".join(json.dumps(row) for row, *_ in GOLDEN)
        for row, (_, *expected) in zip(convert(folder, text.encode()), GOLDEN, strict=True):
            found = [row["context"], row["choices"], row["answer"]]
            assert found == expected and row["delimiter"] == " ", f"{found} instead of {expected}"
        good = json.dumps(GOLDEN[0][0])
        for row, message in BAD:
            said = convert(folder, f"{good}\n{json.dumps(row)}\n".encode())
            assert "in: line 2: " in said and message in said, f"{row}: {said}"
        for text, message in ((b"", "no rows"), (b"{,", "line 1: "), (b"\xff", "line 1: "),
                              (b"[" * 100000, "line 1: "), (b"PAR1 damaged", "in: ")):
            assert message in convert(folder, text), text
        # A search for each bracket's end would take hours.
        row = {**GOLDEN[0][0], "ctx_a": "[" * 2000000, "ctx_b": ""}
        assert convert(folder, json.dumps(row).encode())[0]["context"].count("[") == 2000000
        usage = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True)
        assert usage.returncode == 2 and "questions.py IN OUT.jsonl" in usage.stderr
    print("test_questions.py: %d rows of five benchmarks, %d bad ones: ok" % (len(GOLDEN), len(BAD)))


main()
