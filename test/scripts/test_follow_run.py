#!/usr/bin/env python3
"""Tests scripts/follow_run.py: that each point is written once, with a fake wandb module that
records its calls; rows of the table; and files of the real tensorboard and wandb, where they are
installed."""
import csv
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts/follow_run.py")
FAKE = """
import json, os
class Fake:
    config = None
    def __getattr__(self, name):
        def call(*arguments, **named):
            with open(os.environ["CALLS"], "a") as file:
                file.write(json.dumps([name, list(arguments), named]) + "\\n")
        return call
def init(**named):
    run = Fake()
    run.config = Fake()
    run.init(**named)
    return run
"""
failures = []


def expect(what, got, wanted):
    if got != wanted:
        failures.append(f"{what}: {got!r}, not {wanted!r}")


class Run:
    """A run's folder, and the fake beside it."""

    def __init__(self, folder, steps):
        self.folder = os.path.join(folder, "my run")
        self.calls = os.path.join(folder, "calls")
        os.mkdir(self.folder)
        os.mkdir(os.path.join(folder, "fake"))
        self.environment = dict(
            os.environ, PYTHONPATH=os.path.join(folder, "fake"), CALLS=self.calls
        )
        self.write("../fake/wandb.py", FAKE)
        config = {"train": {"steps": steps}, "eval": {"every": 2}}
        self.write("config.json", json.dumps(config))

    def write(self, name, text, mode="w"):
        with open(os.path.join(self.folder, name), mode, encoding="utf-8") as file:
            file.write(text)

    def step(self, step, loss="1.5", mode="a"):
        self.write(
            "metrics.jsonl",
            f'{{"step": {step}, "loss": {loss}, "lr": 0.1, "grad_norm": null}}\n',
            mode,
        )

    def start(self, *flags):
        return subprocess.Popen(
            [sys.executable, SCRIPT, self.folder, *flags],
            env=self.environment,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def send(self, *flags, to="wandb"):
        """The status, the messages, and the calls that were made."""
        if os.path.exists(self.calls):
            os.remove(self.calls)
        process = self.start("--to", to, *flags)
        messages = process.communicate(timeout=60)[1]
        return process.returncode, messages, self.made()

    def made(self):
        if not os.path.exists(self.calls):
            return []
        with open(self.calls, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    def rows(self):
        """The rows of metrics.csv, without their empty cells."""
        if not os.path.exists(os.path.join(self.folder, "metrics.csv")):
            return []
        with open(os.path.join(self.folder, "metrics.csv"), encoding="utf-8") as file:
            return [{k: v for k, v in row.items() if v} for row in csv.DictReader(file)]


def points(calls):
    return [arguments[0] for name, arguments, _ in calls if name == "log"]


def point(step, loss=1.5):
    return {"step": step, "train/loss": loss, "train/lr": 0.1}


def test_once(run):
    run.step(1)
    run.step(2, "null")
    run.write("metrics.jsonl", 'nonsense\n[1]\n{"step": 2, "val_loss": 3}\n', "a")
    run.write("metrics.jsonl", '{"step": 2, "choices_acc": 0.5}\n{"step": 3, "lo', "a")
    status, messages, calls = run.send("--project", "mine")
    expect("status", (status, messages), (0, ""))
    sent = [point(1), {"step": 2, "train/lr": 0.1}, {"step": 2, "validation/loss": 3}]
    sent.append({"step": 2, "choices/acc": 0.5})
    expect("points", points(calls), sent)
    first = calls[0][2]
    expect("init", (first["resume"], first["project"], first["name"]), ("allow", "mine", "my run"))
    expect("config", calls[1][1][0]["train"], {"steps": 4})
    expect("the end", calls[-1][0], "finish")

    # The second call resumes: nothing twice, the same id, also where a resume repeats steps.
    run.write("wandb.json.tmp", "left by an interruption")
    run.step(1, mode="w")
    run.step(2)
    run.step(3)
    _, _, calls = run.send()
    expect("later points", points(calls), [point(3)])
    expect("id", calls[0][2]["id"], first["id"])


def follow(run, to, written):
    """Follows a run of four steps that is cut off after the second and repeats the third."""
    process = run.start("--to", to, "--follow", "--seconds", "0.05")
    for step in range(1, 4):
        run.step(step)
        while len(written()) < step and process.poll() is None:
            time.sleep(0.01)
    run.step(1, mode="w")
    run.step(2)
    run.step(3, "1.25")
    run.step(4)
    run.write("metrics.jsonl", '{"step": 4, "val_loss": 2}\n', "a")
    process.communicate(timeout=60)
    expect(f"status of {to}", process.returncode, 0)
    return written()


def test_follow(run):
    wanted = [point(step) for step in range(1, 5)] + [{"step": 4, "validation/loss": 2}]
    expect("followed", follow(run, "wandb", lambda: points(run.made())), wanted)


def row(step, loss="1.5"):
    return {"step": str(step), "loss": loss, "lr": "0.1"}


def test_table(run):
    wanted = [row(1), row(2), row(3, "1.25"), row(4), {"step": "4", "val_loss": "2"}]
    expect("followed rows", follow(run, "csv", run.rows), wanted)
    run.write("metrics.jsonl", """{"step": 1, "skipped": true, "time": 1.25, "a 'b": 1}\n""")
    expect("status of csv", run.send(to="csv")[:2], (0, ""))
    expect("one row", run.rows(), [{"step": "1", "skipped": "1", "time": "1.25"}])
    os.remove(os.path.join(run.folder, "metrics.csv"))
    run.write("../victim", "kept")
    os.symlink("../victim", os.path.join(run.folder, "metrics.csv"))
    status, messages, _ = run.send(to="csv")
    expect("a linked table", (status, "symbolic link" in messages), (1, True))
    with open(os.path.join(run.folder, "../victim"), encoding="utf-8") as file:
        expect("what the link names", file.read(), "kept")


def test_figures(run):
    """Figures of an objective pass, also one that is null and one with a new name."""
    lines = '{"step": 1, "loss": 1.5, "rewards_margins": 0.5, "logps_chosen": -3, "kl": null, '
    lines += '"entropy": 2}\n{"step": 1, "val_loss": 2, "val_rewards_margins": 0.75, "val_kl": 0}\n'
    run.write("metrics.jsonl", lines)
    sent = [{"step": 1, "train/loss": 1.5, "rewards/margins": 0.5, "logps/chosen": -3,
             "train/entropy": 2}]
    sent.append({"step": 1, "validation/loss": 2, "validation/rewards_margins": 0.75,
                 "validation/kl": 0})
    expect("points of pairs", points(run.send()[2]), sent)
    expect("status of csv", run.send(to="csv")[:2], (0, ""))
    rows = [{"step": "1", "loss": "1.5", "rewards_margins": "0.5", "logps_chosen": "-3",
             "entropy": "2"}]
    rows.append({"step": "1", "val_loss": "2", "val_rewards_margins": "0.75", "val_kl": "0"})
    expect("rows of figures", run.rows(), rows)


def test_refusals(run):
    run.write("../fake/wandb.py", "raise ImportError")
    status, messages, _ = run.send()
    expect("without wandb", (status, "pip install wandb" in messages), (1, True))
    run.write("../fake/wandb.py", FAKE)
    for name in ("wandb.json", "wandb", "metrics.jsonl"):
        os.symlink("../victim", os.path.join(run.folder, name))
        status, messages, _ = run.send()
        expect(f"{name} is a link", (status, "symbolic link" in messages), (1, True))
        os.remove(os.path.join(run.folder, name))
    os.mkfifo(os.path.join(run.folder, "metrics.jsonl"))
    status, messages, _ = run.send()
    expect("a pipe", (status, "not a regular file" in messages), (1, True))
    os.remove(os.path.join(run.folder, "metrics.jsonl"))
    for config in ('{"train": []}', '{"train": {"steps": "2"}, "eval": 1}'):
        run.write("config.json", config)
        expect(config, run.send()[:2], (0, ""))
    run.write("config.json", "\u009b\u202e{")
    status, messages, _ = run.send()
    expect("bad JSON", (status, "\u009b" in messages, "\u202e" in messages), (1, False, False))
    os.remove(os.path.join(run.folder, "config.json"))
    status, messages, _ = run.send()
    expect("no run", (status, "no config.json" in messages), (1, True))


def test_real_tensorboard(run):
    """What TensorBoard's own reader finds after two calls, with a resume between them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run.write("metrics.jsonl", '{"step": 1, "loss": 1.5, "memory_bytes": 3145728, "time": 7}\n')
    run.step(2)
    expect("tensorboard", run.send(to="tensorboard")[0], 0)
    run.step(1, mode="w")
    run.step(2)
    run.step(3, "1.25")
    run.write("metrics.jsonl", '{"step": 3, "val_loss": 2}\n', "a")
    for _ in range(2):  # the second finds nothing new
        expect("tensorboard again", run.send(to="tensorboard")[0], 0)
    reader = EventAccumulator(run.folder)
    reader.Reload()
    found = {
        tag: [(event.step, event.value) for event in reader.Scalars(tag)]
        for tag in ("train/loss", "memory/peak_mib", "validation/loss")
    }
    expect("losses", found["train/loss"], [(1, 1.5), (2, 1.5), (3, 1.25)])
    expect("memory", found["memory/peak_mib"], [(1, 3)])
    expect("validations", found["validation/loss"], [(3, 2)])
    expect("time of step 1", reader.Scalars("train/loss")[0].wall_time, 7)


def test_real_wandb(run):
    os.remove(os.path.join(run.folder, "../fake/wandb.py"))
    run.environment.update(WANDB_MODE="offline", WANDB_SILENT="true")
    for key in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        run.environment[key] = os.path.dirname(run.folder)
    run.step(1)
    run.step(2)
    status, messages, _ = run.send()
    expect("wandb offline", status, 0)
    with open(os.path.join(run.folder, "wandb.json"), encoding="utf-8") as file:
        state = json.load(file)
    expect("last step", state["step"], 2)
    folders = [name for name in os.listdir(os.path.join(run.folder, "wandb")) if "offline" in name]
    expect("offline runs", (len(folders), folders[0].endswith(state["id"])), (1, True))
    files = os.listdir(os.path.join(run.folder, "wandb", folders[0]))
    expect("files to sync", [name for name in files if name.endswith(".wandb")] != [], True)


tests = [test_once, test_follow, test_table, test_figures, test_refusals]
for package, test in (("tensorboard", test_real_tensorboard), ("wandb", test_real_wandb)):
    if importlib.util.find_spec(package):
        tests.append(test)
    else:
        print(f"skipped: {test.__name__}, because there is no {package} here")
for test in tests:
    with tempfile.TemporaryDirectory() as scratch:
        test(Run(scratch, steps=4))
for failure in failures:
    print("FAILED:", failure)
print(f"scripts/follow_run.py: {len(failures)} failures")
sys.exit(1 if failures else 0)
