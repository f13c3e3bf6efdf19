#!/usr/bin/env python3
"""Writes the metrics of a run for other tools: TensorBoard, Weights & Biases, or a table.

    scripts/follow_run.py runs/NAME --to tensorboard    event files in runs/NAME
    scripts/follow_run.py runs/NAME --to wandb          a run at Weights & Biases
    scripts/follow_run.py runs/NAME --to csv            runs/NAME/metrics.csv

--follow waits for more until the last step of the run, or Ctrl-C. tensorboard and wandb need their
library (pip install tensorboard; pip install wandb && wandb login). With WANDB_MODE=offline nothing
is sent: files for `wandb sync` appear in runs/NAME/wandb.

runs/NAME/tensorboard.json or wandb.json keeps the last step that was written, and the id at Weights
& Biases, so that another call adds only later points, also where a resumed run repeats steps.
Remove it to write all again; metrics.csv is always written anew.
"""
import argparse
import contextlib
import csv
import json
import math
import os
import re
import signal
import stat
import sys
import time
import uuid

sys.dont_write_bytecode = True  # no __pycache__ beside the scripts
from runs import KEYS, is_figure, printable, record_of, setting

# Keys of metrics.jsonl: the name of the curve, and what its values are multiplied by.
CURVES = {
    "loss": ("train/loss", 1),
    "lr": ("train/lr", 1),
    "grad_norm": ("train/grad_norm", 1),
    "loss_scale": ("train/loss_scale", 1),
    "step_ms": ("speed/step_ms", 1),
    "tokens_per_s": ("speed/tokens_per_s", 1),
    "memory_bytes": ("memory/peak_mib", 2**-20),
    "val_loss": ("validation/loss", 1),
    "choices_acc": ("choices/acc", 1),
    "choices_acc_norm": ("choices/acc_norm", 1),
}


def curve_of(key):
    """The curve of a key of metrics.jsonl; None for one that is not drawn."""
    if key in CURVES or not is_figure(key):
        return CURVES.get(key)
    if key.startswith("val_"):
        return key.replace("val_", "validation/", 1), 1
    if key.startswith(("rewards_", "logps_")):  # TRL's names
        return key.replace("_", "/", 1), 1
    return "train/" + key, 1


def stop(message):
    sys.exit("follow_run.py: " + printable(message))


def refuse_link(path):
    """Ends the program if a link of the run's folder would lead elsewhere."""
    if os.path.islink(path):
        stop(f"{path}: it is a symbolic link; remove it")


def open_regular(path):
    """Opens a regular file for reading. A named pipe in a run's folder would block, and a link could
    send another file."""
    refuse_link(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        stop(f"{path}: it is not a regular file; remove it")
    return open(descriptor, "rb")


@contextlib.contextmanager
def replaced(path):
    """A new file that replaces `path` as a whole, so that an interruption leaves the old one."""
    staged = path + ".tmp"
    refuse_link(path)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.remove(staged)
        file = open(staged, "x", encoding="utf-8", newline="")  # "x" follows no link
        yield file
        os.replace(staged, path)
    except OSError as error:
        stop(f"{path}: {error.strerror}")


def read_json(path):
    """The object in a JSON file; {} if the file is missing."""
    try:
        with open_regular(path) as file:
            found = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        stop(f"{path}: {error}")
    return found if isinstance(found, dict) else {}


def kind_of(record):
    """Which of a step's lines in metrics.jsonl this one is."""
    if "val_loss" in record:
        return "validation"
    return "choices" if "choices_acc" in record else "step"


class State:
    """The id and the last steps that were written, kept in the run's folder."""

    def __init__(self, path):
        self.path = path
        kept = read_json(path)
        self.id = kept.get("id", "")
        if not isinstance(self.id, str) or not re.fullmatch("[0-9a-z]{1,64}", self.id):
            self.id, kept = uuid.uuid4().hex[:12], {}
        self.last = {kind: kept.get(kind, -1) for kind in ("step", "validation", "choices")}
        if not all(isinstance(step, int) for step in self.last.values()):
            stop(f"{path}: a step is no number; remove it to write all again")
        self.save()

    def save(self):
        with replaced(self.path) as file, file:
            json.dump({"id": self.id, **self.last}, file)


class Curves:
    """Points of curves, each once; the base of the writers that keep a State."""

    def __init__(self, folder, name):
        self.state = State(os.path.join(folder, name + ".json"))
        self.last = self.state.last

    def rewind(self):
        """Nothing: a curve has the points of the first time that a step was taken."""

    def write(self, records):
        """Writes the points that are later than those written before."""
        before = dict(self.last)
        try:
            for record in records:
                kind, step = kind_of(record), record["step"]
                if step <= self.last[kind]:
                    continue
                values = {
                    curve[0]: value * curve[1]
                    for key, value in record.items()
                    if isinstance(value, (int, float)) and (curve := curve_of(key))
                }
                values = {name: value for name, value in values.items() if math.isfinite(value)}
                if values:
                    self.put(step, values, record.get("time"))
                self.last[kind] = step
            self.flush()
        finally:  # also when Ctrl-C or SIGTERM ends it on the way
            if self.last != before:
                self.state.save()

    def flush(self):
        """Nothing, unless the library buffers points."""


class Wandb(Curves):
    def __init__(self, folder, config, project):
        try:
            import wandb
        except ImportError:
            stop("there is no wandb here: pip install wandb && wandb login")
        refuse_link(os.path.join(folder, "wandb"))  # where wandb writes its files
        super().__init__(folder, "wandb")
        name = os.path.basename(os.path.abspath(folder))
        self.run = wandb.init(
            project=project, id=self.state.id, name=name, dir=folder, resume="allow"
        )
        self.run.config.update(config, allow_val_change=True)
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def put(self, step, values, _):
        self.run.log({"step": step, **values})

    def close(self):
        self.run.finish()


class TensorBoard(Curves):
    def __init__(self, folder):
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            stop("there is no tensorboard here: pip install tensorboard")
        super().__init__(folder, "tensorboard")
        self.event, self.summary = event_pb2.Event, summary_pb2.Summary
        self.open, self.writer = lambda: EventFileWriter(folder), None

    def put(self, step, values, when):
        self.writer = self.writer or self.open()  # a call without news leaves no empty file
        points = [self.summary.Value(tag=tag, simple_value=one) for tag, one in values.items()]
        when = when if isinstance(when, (int, float)) else time.time()
        event = self.event(wall_time=when, step=step, summary=self.summary(value=points))
        self.writer.add_event(event)

    def flush(self):
        if self.writer:
            self.writer.flush()

    def close(self):
        if self.writer:
            self.writer.close()


class Table:
    """metrics.csv: a row for each line of metrics.jsonl."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "metrics.csv")
        self.file = None
        self.rewind()

    def rewind(self):
        """Starts a new file, which has no rows of steps that a resumed run repeats."""
        self.close()
        self.last = {"step": -1, "validation": -1, "choices": -1}
        with replaced(self.path) as self.file:
            self.rows = None

    def begin(self, record):
        """Writes the names of the columns: the first step has all figures."""
        figures = [key for key in record if is_figure(key)]
        columns = [*KEYS, *figures, *("val_" + key for key in figures)]
        self.rows = csv.DictWriter(self.file, columns, extrasaction="ignore", lineterminator="\n")
        self.rows.writeheader()

    def write(self, records):
        try:
            for record in records:
                if not self.rows:
                    self.begin(record)
                self.rows.writerow(
                    {k: int(v) if isinstance(v, bool) else v for k, v in record.items()}
                )
                self.last[kind_of(record)] = record["step"]
            self.file.flush()
        except OSError as error:
            stop(f"{self.path}: {error.strerror}")

    def close(self):
        if self.file:
            if not self.rows:
                self.begin({})
            self.file.close()


class Metrics:
    """Reads the whole lines that were added to metrics.jsonl since the last call."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "metrics.jsonl")
        self.position, self.newest = 0, b""

    def rewound(self, file):
        """True if the newest line that was read is gone: a resumed run cuts off steps."""
        file.seek(self.position - len(self.newest))
        return file.read(len(self.newest)) != self.newest

    def records(self, on_rewind):
        try:
            with open_regular(self.path) as file:
                if self.rewound(file):
                    self.position, self.newest = 0, b""
                    on_rewind()
                file.seek(self.position)
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    self.position, self.newest = self.position + len(line), line
                    record = record_of(line)
                    if record:
                        yield record
        except FileNotFoundError:
            return
        except OSError as error:
            stop(f"{self.path}: {error.strerror}")


def is_done(folder, last):
    """True once the lines of the last step of the config were written."""
    config = read_json(os.path.join(folder, "config.json"))
    steps = setting(config, "train", "steps", (int, float), math.inf)
    kinds = ["step"]
    if setting(config, "eval", "every", (int, float), 0) > 0:
        kinds.append("validation")
    if setting(config, "eval", "choices", str, ""):
        kinds.append("choices")
    return all(last[kind] >= steps for kind in kinds)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", metavar="RUN", help="folder of the run, such as runs/NAME")
    parser.add_argument("--to", required=True, choices=("tensorboard", "wandb", "csv"))
    parser.add_argument("--follow", action="store_true", help="wait for more until the last step")
    parser.add_argument("--project", default="mantissa", help="wandb: default mantissa")
    parser.add_argument("--seconds", type=float, default=5, help="between two looks (default: 5)")
    options = parser.parse_args()
    if not 0 < options.seconds < math.inf:
        parser.error("--seconds: a number above 0")
    folder = options.run
    config = read_json(os.path.join(folder, "config.json"))
    if not config:
        stop(f"{folder}: no run, as it has no config.json; give runs/NAME")
    if options.to == "wandb":
        writer = Wandb(folder, config, options.project)
    else:
        writer = TensorBoard(folder) if options.to == "tensorboard" else Table(folder)
    metrics, status = Metrics(folder), 0
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        writer.write(metrics.records(writer.rewind))
        while options.follow and not is_done(folder, writer.last):
            time.sleep(options.seconds)
            writer.write(metrics.records(writer.rewind))
    except KeyboardInterrupt:
        status = 130
    writer.close()
    return status


if __name__ == "__main__":
    sys.exit(main())
