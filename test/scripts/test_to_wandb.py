#!/usr/bin/env python3
"""Tests that scripts/to_wandb.py sends each point once, with a fake wandb module that records its
calls."""
import json
import os
import subprocess
import sys
import tempfile
import time

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts/to_wandb.py")
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

    def send(self, *flags):
        """The status, the messages, and the calls that were made."""
        if os.path.exists(self.calls):
            os.remove(self.calls)
        process = self.start(*flags)
        messages = process.communicate(timeout=60)[1]
        return process.returncode, messages, self.made()

    def made(self):
        if not os.path.exists(self.calls):
            return []
        with open(self.calls, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]


def points(calls):
    return [arguments[0] for name, arguments, _ in calls if name == "log"]


def point(step, loss=1.5):
    return {"step": step, "train/loss": loss, "train/lr": 0.1}


def test_once(run):
    run.step(1)
    run.step(2, "null")
    run.write("metrics.jsonl", 'nonsense\n[1]\n{"step": 2, "val_loss": 3}\n{"step": 3, "lo', "a")
    status, messages, calls = run.send("--once", "--project", "mine")
    expect("status", (status, messages), (0, ""))
    sent = [point(1), {"step": 2, "train/lr": 0.1}, {"step": 2, "validation/loss": 3.0}]
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
    _, _, calls = run.send("--once")
    expect("later points", points(calls), [point(3)])
    expect("id", calls[0][2]["id"], first["id"])


def test_interrupted(run):
    """Ctrl-C while points are sent: the next call repeats at most the one under way."""
    interrupt = """
    def log(self, values):
        self.__getattr__("log")(values)
        if values["step"] == 2 and os.environ.get("INTERRUPT"):
            raise KeyboardInterrupt
"""
    run.write("../fake/wandb.py", FAKE.replace("    config = None\n", "    config = None" + interrupt))
    for step in range(1, 4):
        run.step(step)
    run.step(4, "1" + 400 * "0")
    run.environment["INTERRUPT"] = "1"
    status, _, calls = run.send("--once")
    expect("interrupted", (status, points(calls)), (130, [point(1), point(2)]))
    del run.environment["INTERRUPT"]
    status, messages, calls = run.send("--once")
    expect("after it", (status, messages), (0, ""))
    expect("points after it", points(calls), [point(2), point(3)])


def test_follow(run):
    process = run.start("--seconds", "0.05")
    for step in range(1, 5):
        run.step(step)
        while len(points(run.made())) < step and process.poll() is None:
            time.sleep(0.01)
    run.step(2, mode="w")  # cut off by a resume, and repeated
    run.write("metrics.jsonl", '{"step": 4, "val_loss": 2}\n', "a")
    process.communicate(timeout=60)
    expect("status", process.returncode, 0)
    wanted = [point(step) for step in range(1, 5)] + [{"step": 4, "validation/loss": 2.0}]
    expect("followed", points(run.made()), wanted)


def test_refusals(run):
    run.write("../fake/wandb.py", "raise ImportError")
    status, messages, _ = run.send("--once")
    expect("without wandb", (status, "pip install wandb" in messages), (1, True))
    run.write("../fake/wandb.py", FAKE)
    run.write("../victim", "kept")
    os.symlink("../victim", os.path.join(run.folder, "wandb.json"))
    status, messages, calls = run.send("--once")
    expect("a link", (status, "symbolic link" in messages, calls), (1, True, []))
    os.remove(os.path.join(run.folder, "wandb.json"))
    os.symlink("..", os.path.join(run.folder, "wandb"))
    status, messages, calls = run.send("--once")
    expect("a linked folder", (status, "symbolic link" in messages, calls), (1, True, []))
    os.remove(os.path.join(run.folder, "wandb"))
    for name in ("metrics.jsonl", "config.json"):
        os.rename(os.path.join(run.folder, "config.json"), os.path.join(run.folder, "kept"))
        os.mkfifo(os.path.join(run.folder, name))
        if name != "config.json":
            os.rename(os.path.join(run.folder, "kept"), os.path.join(run.folder, "config.json"))
        status, messages, _ = run.send("--once")
        expect(f"{name} is a pipe", (status, "not a regular file" in messages), (1, True))
        os.remove(os.path.join(run.folder, name))
        os.symlink("../victim", os.path.join(run.folder, name))
        status, messages, _ = run.send("--once")
        expect(f"{name} is a link", (status, "symbolic link" in messages), (1, True))
        os.remove(os.path.join(run.folder, name))
    os.rename(os.path.join(run.folder, "kept"), os.path.join(run.folder, "config.json"))
    for config in ('{"train": []}', '{"train": {"steps": "2"}, "eval": 1}', '{"eval": {"every": {}}}'):
        run.write("config.json", config)
        status, messages, _ = run.send("--once")
        expect(config, (status, messages), (0, ""))
    run.write("config.json", "\u009b\u202e{")
    status, messages, _ = run.send("--once")
    expect("bad JSON", (status, "\u009b" in messages, "\u202e" in messages), (1, False, False))
    os.remove(os.path.join(run.folder, "config.json"))
    status, messages, _ = run.send("--once")
    expect("no run", (status, "no config.json" in messages), (1, True))


for test in (test_once, test_interrupted, test_follow, test_refusals):
    with tempfile.TemporaryDirectory() as scratch:
        test(Run(scratch, steps=4))
for failure in failures:
    print("FAILED:", failure)
print(f"scripts/to_wandb.py: {len(failures)} failures")
sys.exit(1 if failures else 0)
