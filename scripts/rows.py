#!/usr/bin/env python3
"""Turns tables into JSON Lines for ./prepare, one object a row, in memory
that does not grow with the number of rows.

    scripts/rows.py train.parquet | ./prepare --tokenizer DIR --out datasets/rows --jsonl -

Reads .csv and .tsv files, whose first line names the columns, .parquet and .arrow files (pip install
pyarrow), and folders of them, as `hf download --repo-type dataset` and save_to_disk of the library
"datasets" leave them. Of a folder with splits, only the files of --split are read. After an error
the output ends in a line that is not a row, so that ./prepare fails too (unless --skip-bad-rows
lets it go on with the rows before)
"""
import argparse
import csv
import json
import math
import os
import signal
import sys


def fail(text):
    print(f"rows.py: {text}", flush=True)
    sys.exit(f"rows.py: {text}")


def arrow():
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        fail("parquet and arrow files need pyarrow: pip install pyarrow")
    return pyarrow


BATCH_ROWS = 16  # rows that are in memory as Python objects at a time


def check_names(path, names):
    if len(set(names)) < len(names):
        fail(f"{path}: two columns have the same name")


LABELS = {"true": True, "false": False}


def rows_of_csv(path, delimiter):
    csv.field_size_limit(1 << 28)
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        names = next(reader, [])
        check_names(path, names)
        for values in filter(None, reader):
            if len(values) != len(names):
                fail(f"{path}, line {reader.line_num}: {len(values)} values for {len(names)} columns")
            row = dict(zip(names, values))
            if {"completion", "label"} <= row.keys():  # a labelled answer needs true or false
                row["label"] = LABELS.get(row["label"].lower(), row["label"])
            yield row


def rows_of_parquet(path):
    with arrow().parquet.ParquetFile(path) as file:
        check_names(path, file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            yield from batch.to_pylist()


def rows_of_arrow(path):
    """Reads a file of the stream format, which "datasets" writes, or of the file format."""
    pyarrow = arrow()
    with pyarrow.memory_map(path) as source:
        try:
            batches = pyarrow.ipc.open_stream(source)
        except pyarrow.ArrowInvalid:
            file = pyarrow.ipc.open_file(source)
            batches = (file.get_batch(i) for i in range(file.num_record_batches))
        for batch in batches:
            check_names(path, batch.schema.names)
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield from batch.slice(start, BATCH_ROWS).to_pylist()


READERS = {
    ".csv": lambda path: rows_of_csv(path, ","),
    ".tsv": lambda path: rows_of_csv(path, "\t"),
    ".parquet": rows_of_parquet,
    ".arrow": rows_of_arrow,
}


def reader_of(path):
    return READERS.get(os.path.splitext(path)[1].lower())


def split_of(path):
    """The split that a file or its folder is named after, as the Hub's layouts do, or None."""
    for part in reversed(path.lower().split(os.sep)):
        for split in ("train", "validation", "valid", "dev", "test"):
            if part.startswith(split) and not part[len(split) :][:1].isalpha():
                return {"valid": "validation", "dev": "validation"}.get(split, split)
    return None


def files_of(folder, split):
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [os.path.join(place, name) for name in sorted(names) if reader_of(name)]
    found = [path for path in found if os.path.isfile(path)]  # a pipe would wait for its writer
    if not found:
        fail(f"{folder}: there is no file that ends in {' '.join(READERS)}")
    splits = {path: split_of(os.path.relpath(path, folder)) for path in found}
    if not any(splits.values()):
        return found
    chosen = [path for path in found if splits[path] == split]
    present = ", ".join(sorted({s for s in splits.values() if s}))
    if not chosen:
        fail(f"{folder}: there is no split {split}; --split chooses from: {present}")
    print(f"rows.py: {folder}: {split} of the splits {present}", file=sys.stderr)
    return chosen


def plain(value):
    """The value as JSON has it: no NaN and no infinities, which become null; bytes must be text."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def write_rows(path, columns):
    for row in reader_of(path)(path):
        for name in columns:
            if name not in row:
                fail(f"{path}: there is no column {name}, but: {', '.join(row)}")
        if columns:
            row = {name: row[name] for name in columns}
        print(json.dumps(plain(row), default=str))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a file or a folder")
    parser.add_argument("--columns", default="", metavar="NAME,...", help="write only these columns")
    parser.add_argument("--split", default="train", help="split of a folder (train)")
    options = parser.parse_args()
    columns = [name for name in options.columns.split(",") if name]
    files = []
    for path in options.paths:
        if os.path.isdir(path):
            files += files_of(path, options.split)
        elif not os.path.exists(path):
            fail(f"{path}: there is no such file")
        elif not reader_of(path):
            fail(f"{path}: only files that end in {' '.join(READERS)} are read")
        else:
            files.append(path)
    for path in files:
        try:
            write_rows(path, columns)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except Exception as error:  # libraries raise more kinds than a list could name
            fail(f"{path}: {str(error) or type(error).__name__}")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that ends early ends this program
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main()
