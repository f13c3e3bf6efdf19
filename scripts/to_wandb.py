#!/usr/bin/env python3
"""Sends the metrics of a run to Weights & Biases while it trains.

    scripts/to_wandb.py runs/NAME            follows the run until its last step
    scripts/to_wandb.py runs/NAME --once     sends existing metrics and ends

Needs their library and a key: pip install wandb && wandb login. With WANDB_MODE=offline nothing is
sent: files for `wandb sync` appear in runs/NAME/wandb.

Steps have train/loss, train/lr and train/grad_norm, validations have validation/loss.
runs/NAME/wandb.json keeps the id at Weights & Biases and the last step that was sent, so that
another call adds only later points to the same run. Remove it to send all to a new one.
"""
import argparse
import contextlib
import json
import math
import os
import re
import signal
import stat
import sys
import time
import uuid

NAMES = {
    "loss": "train/loss",
    "lr": "train/lr",
    "grad_norm": "train/grad_norm",
    "val_loss": "validation/loss",
    "choices_acc": "choices/acc",
    "choices_acc_norm": "choices/acc_norm",
}


def stop(message):
    """Ends the program with a message, whose names may hold control characters."""
    sys.exit("to_wandb.py: " + "".join(one if one.isprintable() else "?" for one in message))


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


def number_at(config, block, key, otherwise):
    """A number in a block of a config, or `otherwise` if there is none."""
    found = config.get(block)
    found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, (int, float)) else otherwise


class State:
    """The id and the last steps that were sent, kept in the run's folder."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "wandb.json")
        refuse_link(self.path)
        kept = read_json(self.path)
        self.id = kept.get("id", "")
        if not isinstance(self.id, str) or not re.fullmatch("[0-9a-z]{1,64}", self.id):
            self.id, kept = uuid.uuid4().hex[:12], {}
        self.sent = {kind: kept.get(kind, -1) for kind in ("step", "validation")}
        if not all(isinstance(step, int) for step in self.sent.values()):
            stop(f"{self.path}: a step is no number; remove it to send all again")

    def save(self):
        """Replaces the file as a whole, so that an interruption leaves the old one."""
        staged = self.path + ".tmp"
        try:
            with contextlib.suppress(FileNotFoundError):
                os.remove(staged)
            with open(staged, "x", encoding="utf-8") as file:  # "x" follows no link
                json.dump({"id": self.id, **self.sent}, file)
            os.replace(staged, self.path)
        except OSError as error:
            stop(f"{self.path}: {error.strerror}")


def point_of(line):
    """The kind, the step and the finite values of a line of metrics.jsonl; None for other lines."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        return None
    try:
        numbers = {
            name: float(record[key])
            for key, name in NAMES.items()
            if isinstance(record.get(key), (int, float))
        }
    except OverflowError:  # an integer of hundreds of digits
        return None
    values = {name: number for name, number in numbers.items() if math.isfinite(number)}
    return ("validation" if "val_loss" in record else "step"), record["step"], values


class Metrics:
    """Reads the whole lines that were added to metrics.jsonl since the last call."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "metrics.jsonl")
        self.position = 0

    def lines(self):
        try:
            with open_regular(self.path) as file:
                # A resumed run cuts the steps off that it repeats.
                if os.fstat(file.fileno()).st_size < self.position:
                    self.position = 0
                file.seek(self.position)
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    self.position += len(line)
                    yield line
        except FileNotFoundError:
            return
        except OSError as error:
            stop(f"{self.path}: {error.strerror}")


def send_new(run, metrics, state):
    """Sends the points that are later than those sent before, each once."""
    before = dict(state.sent)
    try:
        for line in metrics.lines():
            point = point_of(line)
            if point is None:
                continue
            kind, step, values = point
            if step <= state.sent[kind]:
                continue
            if values:
                run.log({"step": step, **values})
            state.sent[kind] = step
    finally:  # also when Ctrl-C or SIGTERM ends it on the way
        if state.sent != before:
            state.save()


def is_done(folder, state):
    """True once the last step of the config was sent, and its validation if there is one."""
    config = read_json(os.path.join(folder, "config.json"))
    steps = number_at(config, "train", "steps", math.inf)
    validates = number_at(config, "eval", "every", 0) > 0
    return state.sent["step"] >= steps and (not validates or state.sent["validation"] >= steps)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", metavar="RUN", help="folder of the run, such as runs/NAME")
    parser.add_argument("--once", action="store_true", help="send what is there and end")
    parser.add_argument("--project", default="mantissa", help="project there (default: mantissa)")
    parser.add_argument("--seconds", type=float, default=5, help="between two looks (default: 5)")
    options = parser.parse_args()
    config = read_json(os.path.join(options.run, "config.json"))
    if not config:
        stop(f"{options.run}: no run, as it has no config.json; give runs/NAME")
    try:
        import wandb
    except ImportError:
        stop("there is no wandb here: pip install wandb && wandb login")
    refuse_link(os.path.join(options.run, "wandb"))  # where wandb writes its files
    state = State(options.run)
    state.save()
    name = os.path.basename(os.path.abspath(options.run))
    run = wandb.init(
        project=options.project, id=state.id, name=name, dir=options.run, resume="allow"
    )
    run.config.update(config, allow_val_change=True)
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    metrics, status = Metrics(options.run), 0
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        send_new(run, metrics, state)
        while not options.once and not is_done(options.run, state):
            time.sleep(options.seconds)
            send_new(run, metrics, state)
    except KeyboardInterrupt:
        status = 130
    run.finish()
    return status


if __name__ == "__main__":
    sys.exit(main())
