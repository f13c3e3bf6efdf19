#!/usr/bin/env python3
"""Tests scripts/rows.py: CSV always, Parquet and Arrow where pyarrow is installed."""
import json
import os
import subprocess
import sys
import tempfile

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts/rows.py")
failures = 0


def check(name, good, detail=""):
    global failures
    if not good:
        failures += 1
        print(f"FAILED {name}: {detail}")


def run(*arguments):
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def expect_rows(name, arguments, rows):
    status, out, err = run(*arguments)
    found = [json.loads(line) for line in out.splitlines()] if status == 0 else None
    check(name, found == rows, f"status {status}: {out}{err}")


def expect_error(name, arguments, text):
    status, out, err = run(*arguments)
    check(name, status == 1 and text in err, f"status {status}: {err}")
    # ./prepare behind the pipe must fail too.
    check(name, out.splitlines()[-1:] == [err.strip()], out)


def write(name, data):
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    with open(name, "wb") as file:
        file.write(data)


def test_csv():
    write("a.csv", b'\xef\xbb\xbfprompt,completion\r\n"a ""b"",\nc",d\r\n\r\n\xc3\xa9,\r\n')
    rows = [{"prompt": 'a "b",\nc', "completion": "d"}, {"prompt": "\u00e9", "completion": ""}]
    expect_rows("csv", ["a.csv"], rows)
    expect_rows("columns", ["a.csv", "--columns", "completion"],
                [{"completion": "d"}, {"completion": ""}])
    write("a.TSV", b"text\nx, y\n")
    expect_rows("tsv", ["a.TSV"], [{"text": "x, y"}])
    write("label.csv", b"prompt,completion,label\nq,a,True\nq,b,false\nq,c,1\n")
    expect_rows("labels", ["label.csv"], [{"prompt": "q", "completion": one, "label": label}
                                          for one, label in (("a", True), ("b", False), ("c", "1"))])
    write("class.csv", b"text,label\nx,True\n")
    expect_rows("labels of other rows", ["class.csv"], [{"text": "x", "label": "True"}])
    write("b.csv", b"a,b\n1,2\n1\n")
    expect_error("a short row", ["b.csv"], "b.csv, line 3: 1 values for 2 columns")
    write("c.csv", b'a,b\n1,"2\n')
    expect_error("an open quote", ["c.csv"], "c.csv: unexpected end of data")
    write("d.csv", b"a,a\n1,2\n")
    expect_error("equal names", ["d.csv"], "two columns have the same name")
    write("e.csv", b"a\n\xff\n")
    expect_error("no UTF-8", ["e.csv"], "e.csv: 'utf-8'")
    expect_error("no such column", ["a.csv", "--columns", "x"], "no column x, but: prompt, completion")
    expect_error("no such file", ["x.csv"], "there is no such file")
    write("f.txt", b"x")
    expect_error("no table", ["f.txt"], "only files that end in .csv")


def test_folders():
    for name in ("train-00001", "train-00000", "validation-00000", "trainer"):
        write(f"set/data/{name}.csv", b"text\n" + name.encode() + b"\n")
    write("set/.git/train.csv", b"text\nhidden\n")
    write("set/README.md", b"x")
    expect_rows("train of a folder", ["set"], [{"text": "train-00000"}, {"text": "train-00001"}])
    expect_rows("another split", ["set", "--split", "validation"], [{"text": "validation-00000"}])
    expect_error("no such split", ["set", "--split", "test"], "chooses from: train, validation")
    write("flat/b.csv", b"text\nb\n")
    write("flat/a.csv", b"text\na\n")
    expect_rows("a folder without splits", ["flat"], [{"text": "a"}, {"text": "b"}])
    os.mkfifo("flat/c.csv")  # is skipped: opening it would wait for a writer
    expect_rows("a pipe in a folder", ["flat"], [{"text": "a"}, {"text": "b"}])
    write("empty/x.txt", b"x")
    expect_error("no table in a folder", ["empty"], "there is no file that ends in .csv")


def test_arrow():
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        print("skipped: Parquet and Arrow, because there is no pyarrow here")
        write("a.parquet", b"x")
        expect_error("without pyarrow", ["a.parquet"], "need pyarrow: pip install pyarrow")
        return
    messages = [[{"role": "user", "content": "q\n"}], []] * 1500
    table = pyarrow.table({"messages": messages, "n": [1.5, float("nan")] * 1500})
    rows = [{"messages": messages[0], "n": 1.5}, {"messages": [], "n": None}] * 1500
    pyarrow.parquet.write_table(table, "a.parquet")
    expect_rows("parquet", ["a.parquet"], rows)
    with pyarrow.OSFile("a.arrow", "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    expect_rows("arrow, as a stream", ["a.arrow"], rows)
    with pyarrow.OSFile("b.arrow", "wb") as sink, pyarrow.ipc.new_file(sink, table.schema) as out:
        out.write_table(table)
    expect_rows("arrow, as a file", ["b.arrow"], rows)
    pyarrow.parquet.write_table(pyarrow.table({"text": [b"a\xc3\xa9"], "raw": [b"\xff"]}), "d.parquet")
    expect_rows("bytes of text", ["d.parquet", "--columns", "text"], [{"text": "a\u00e9"}])
    expect_error("bytes of no text", ["d.parquet"], "d.parquet: 'utf-8' codec")
    pair = {"chosen": messages[0], "rejected": [{"role": "assistant", "content": "n"}], "score": 1.5}
    label = {"prompt": "q", "completion": "a", "label": False}
    for name, row in (("pair", pair), ("label", label)):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), "e.parquet")
        expect_rows(name, ["e.parquet"], [row])
    late = pyarrow.array([0] * 50 + [2**52], pyarrow.timestamp("ms"))  # after the year 9999
    pyarrow.parquet.write_table(pyarrow.table({"t": late}), "f.parquet")
    expect_error("a date that Python lacks", ["f.parquet"], "f.parquet: ")
    twice = pyarrow.table([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
    pyarrow.parquet.write_table(twice, "g.parquet")
    expect_error("columns of one name", ["g.parquet"], "two columns have the same name")
    with pyarrow.OSFile("g.arrow", "wb") as sink, pyarrow.ipc.new_stream(sink, twice.schema) as out:
        out.write_table(twice)
    expect_error("columns of one name", ["g.arrow"], "two columns have the same name")
    write("c.parquet", b"x")
    expect_error("a broken file", ["c.parquet"], "c.parquet: ")


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    test_csv()
    test_folders()
    test_arrow()
print(f"rows.py: {failures} failures")
sys.exit(failures > 0)
