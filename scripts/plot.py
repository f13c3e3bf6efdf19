#!/usr/bin/env python3
"""Draws training runs, in the terminal or into a file. A RUN is its directory,
such as runs/bf16, or a metrics.jsonl file. Several runs are overlaid.

  scripts/plot.py runs/fp32 runs/bf16 runs/fp16
  scripts/plot.py runs/fp16 --metric loss,loss_scale --follow
  scripts/plot.py runs/* --smooth 50 --svg curves.svg

It needs gnuplot: apt-get install gnuplot-nox
"""
import argparse
import collections
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # no __pycache__ beside the scripts
from runs import is_figure, printable, record_of, setting

TITLES = {
    "loss": "loss",
    "val_loss": "validation loss",
    "grad_norm": "gradient norm",
    "loss_scale": "loss scale",
    "fp8_not_finite": "quantizations of infinity or NaN",
    "fp8_zero": "quantizations of only zeros",
    "lr": "learning rate",
    "tokens_per_s": "tokens per second",
    "choices_acc": "share of questions answered right",
}
SMOOTHED = ("loss", "grad_norm", "tokens_per_s")
# Constant values of a run without mixed precision, which "all" leaves out. Drawn as steps.
RESTING = {"loss_scale": 1, "fp8_not_finite": 0, "fp8_zero": 0}
# One colour for each run.
COLOURS = "0067a3 c95000 008a63 b0558d a87400 2f9bd6 5f666d 7c7a00".split()
GREATEST = 1e100  # of a value that gnuplot draws


def stop(message):
    sys.exit("plot.py: " + message)


def is_validation(metric):
    return metric.startswith("val_")


def title_of(metric):
    """The title of a chart; for a figure of the objective, its name."""
    if metric in TITLES:
        return TITLES[metric]
    title = metric.removeprefix("val_").replace("_", " ")
    return title + ", validation" if is_validation(metric) else title


def is_smoothed(metric):
    return metric in SMOOTHED or is_figure(metric) and not is_validation(metric)


def value_of(value):
    """A finite value, or NaN for null and the like."""
    is_number = isinstance(value, (int, float)) and abs(value) < GREATEST
    return float(value) if is_number else math.nan


def records_of(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        yield from (record for record in map(record_of, file) if record and record["step"] < 1e15)


def smooth(points, count):
    """Means of the last `count` finite values."""
    last = collections.deque(maxlen=count)
    for step, value in points:
        if not math.isnan(value):
            last.append(value)
            value = sum(last) / len(last)
        yield step, value


def thin(points, most):
    """At most about twice as many points: the smallest and largest of each group, so that no spike
    is lost, and a gap where a value is not finite."""
    if len(points) <= 2 * most:
        return points
    kept, size = [], -(-len(points) // most)
    for begin in range(0, len(points), size):
        group = points[begin:begin + size]
        finite = [i for i, (_, value) in enumerate(group) if not math.isnan(value)]
        chosen = {f(finite, key=lambda i: group[i][1]) for f in (min, max)} if finite else set()
        chosen |= {i for i, (_, value) in enumerate(group) if math.isnan(value)}
        kept += [group[i] for i in sorted(chosen)]
    return kept


class Run:
    """The curves of one metrics.jsonl: lists of (step, value) by metric, and "skipped"."""

    def __init__(self, path, name, smoothing):
        self.name, self.steps = name, 0
        self.curves = collections.defaultdict(list)
        for record in records_of(path) if os.path.isfile(path) else ():
            for metric in record:
                if metric in TITLES or is_figure(metric):
                    self.curves[metric].append((record["step"], value_of(record[metric])))
            if "loss" in record:
                self.steps = max(self.steps, record["step"])
            scale = value_of(record.get("loss_scale"))
            if record.get("skipped") is True and scale == scale:
                self.curves["skipped"].append((record["step"], scale))
        for metric in filter(is_smoothed, self.curves) if smoothing > 1 else ():
            self.curves[metric] = list(smooth(self.curves[metric], smoothing))
        self.is_complete = 0 < steps_to_make(path) <= self.steps

    def finite(self, metric):
        return [value for _, value in self.curves[metric] if not math.isnan(value)]

    def draws(self, metric, all_metrics):
        values = self.finite(metric)
        return values and not (all_metrics and set(values) == {RESTING.get(metric)})


def steps_to_make(path):
    """train.steps of the config beside a metrics.jsonl; 0 if unknown."""
    config = os.path.join(os.path.dirname(path), "config.json")
    if not os.path.isfile(config):  # such as a pipe, which would block
        return 0
    try:
        with open(config, encoding="utf-8") as file:
            return setting(json.load(file), "train", "steps", (int, float), 0)
    except (OSError, ValueError, RecursionError):
        return 0


def names_of(files):
    """The paths of the runs below the folder that they share."""
    paths = [file.removesuffix("/metrics.jsonl").removesuffix(".jsonl")
             for file in map(os.path.abspath, files)]
    shared = os.path.commonpath(map(os.path.dirname, paths))
    return [printable(os.path.relpath(path, shared)) for path in paths]


# ---- commands of gnuplot


class Picture:
    """The charts of some runs, as commands of gnuplot."""

    def __init__(self, runs, metrics, options, columns, rows):
        self.runs, self.options, self.lines = runs, options, []
        self.all = metrics is None
        self.points = columns if not options.kind else 500
        figures = (m for run in runs for m in filter(is_figure, run.curves))
        names = dict.fromkeys((*TITLES, *figures))
        found = [m for m in names if m in (metrics or names) and any(self.drawn(m))]
        self.metrics = [m for m in found if m == "loss" or not self.all or len(self.values(m)) > 1
                        or max(run.steps for run in runs) < 2]
        self.constant = [f"{m} ({self.values(m).pop():g})" for m in found if m not in self.metrics]
        self.missing = [m for m in metrics or () if m not in self.metrics]
        if self.metrics:
            self.settings(columns, rows)
            for metric in self.metrics:
                self.chart(metric)

    def drawn(self, metric):
        return [(i, run) for i, run in enumerate(self.runs) if run.draws(metric, self.all)]

    def values(self, metric):
        return {value for _, run in self.drawn(metric) for value in run.finite(metric)}

    def settings(self, columns, rows):
        steps = [step for metric in {*self.metrics, "loss", "val_loss"} for run in self.runs
                 for step, _ in run.curves[metric]]
        first, last = min(steps), max(steps)
        if first == last:
            first, last = first - 1, last + 1
        self.lines += ["set encoding utf8; set xlabel 'step'; set format x '%.0f'",
                       f"set xrange [{first}:{last}]"]
        if last - first < 8:
            self.lines.append("set xtics 1")
        count = len(self.metrics)
        if not self.options.kind:
            height = max(10, (rows - 1) // count) if rows else 22 if count == 1 else 18
            is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
            self.lines += [f"set terminal dumb size {columns}, {height} noenhanced "
                           + ("ansi" if is_coloured else "mono"),
                           "set colorsequence classic",
                           "set key above left Left reverse samplen 2 noenhanced"]
            return
        across = 2 if count > 1 else 1
        down = -(-count // across)
        self.lines.append({
            "svg": f"set terminal svg size 1000, {down * 330} dynamic font 'sans-serif,13' "
                   "noenhanced background 'white'",
            "png": f"set terminal pngcairo size 1500, {down * 495} fontscale 1.3 noenhanced",
        }[self.options.kind])
        self.lines += [f"set linetype {i} lc rgb '#38{c}'" for i, c in enumerate(COLOURS, 1)]
        self.lines += ["set key above left horizontal Left reverse; set grid lc rgb '#e8ebee' lt 1",
                       "set border 3 lc rgb '#5b636b'; set tics nomirror",
                       f"set multiplot layout {down},{across}"]

    def axis(self, metric, values):
        low, high = min(values), max(values)
        self.lines.append("unset logscale y; set format y '%g'; set yrange [*:*]")
        if metric == "tokens_per_s":
            self.lines.append("set format y '%.0f'; set yrange [0:*]")
        elif metric == "grad_norm" and low > 0 and high > 50 * low:
            self.lines.append("set logscale y")
        elif metric == "loss_scale" and low > 0:
            self.lines.append("set logscale y 2; set format y '2^%L'; "
                              f"set yrange [{low / 2:g}:{high * 2:g}]")

    def curve(self, i, run, metric, style, title):
        """Adds the points of a curve; returns its part of the command `plot`."""
        data = thin(run.curves[metric], self.points)
        name = f"$r{i}{metric}"
        self.lines += [f"{name} << END", *(f"{step} {value:.9g}" for step, value in data), "END"]
        look = f" lt {i % len(COLOURS) + 1}"
        if self.options.kind and style != "points":
            look += f" lw 1.3 dt {i // len(COLOURS) % 5 + 1}"
        if style.endswith("points"):
            letter = "x" if metric == "skipped" else chr(65 + i % 26) if len(self.runs) > 1 else "V"
            sign = "2 ps 0.8" if metric == "skipped" else f"{i % 4 * 2 + 5} ps 0.6"
            look += " pt " + (sign if self.options.kind else f"'{letter}'")
        every = ""
        if not self.options.kind and metric.startswith("val_") and style == "points":
            every = f" every {(len(data) + 19) // 20}"  # more marks would cover the curve
        quoted = "'" + title.replace("'", "''") + "'"
        return f"{name}{every} with {style}{look} title {quoted}"

    def chart(self, metric):
        title = title_of(metric)
        if self.options.smooth > 1 and is_smoothed(metric):
            title += f", mean of the last {self.options.smooth} steps"
        drawn = self.drawn(metric)
        self.lines.append(f"set key title '{title}' left")
        self.axis(metric, self.values(metric))
        parts = []
        for i, run in drawn:
            has_few = is_validation(metric) or metric == "choices_acc"
            style = "linespoints" if has_few else "steps" if metric in RESTING else "lines"
            if len(run.finite(metric)) == 1:
                style = "points"
            parts.append(self.curve(i, run, metric, style, run.name))
        extra, title = f"val_{metric}", "validation"
        if metric == "loss_scale":
            extra, title = "skipped", "skipped steps"
        for i, run in enumerate(self.runs):
            if run.finite(extra):
                shared = len(self.runs) > (1 if self.options.kind else 4)
                is_single = len(self.runs) == 1
                entry = title if shared or is_single else f"{run.name}, {title}"
                parts.append(self.curve(i, run, extra, "points", entry))
                title = "" if shared else title  # many runs share one entry in the legend
        self.lines.append("plot " + ", ".join(parts))


# ---- drawing


def draw(files, names, options):
    """Draws into the file, or returns the text for the terminal, and True if all runs have made their
    steps. The text is None if there is nothing to draw yet."""
    runs = [Run(file, name, options.smooth) for file, name in zip(files, names)]
    on_terminal = sys.stdout.isatty()
    columns, lines = shutil.get_terminal_size((80, 24))
    columns = min(max(columns - 2, 40), 138)
    rows = lines if options.follow and on_terminal else 0
    picture = Picture(runs, options.metrics, options, columns, rows)
    done = all(run.is_complete for run in runs)
    if not options.follow:
        for run in runs:
            if not run.steps:
                print(f"plot.py: {run.name}: no steps in it yet; --follow waits for them",
                      file=sys.stderr)
        if picture.missing:
            print("plot.py: no finite value of", *picture.missing, file=sys.stderr)
        if picture.constant:
            print("plot.py: left out, since constant:", *picture.constant, file=sys.stderr)
    if not picture.metrics:
        return None, done
    made = subprocess.run(["gnuplot"], input="\n".join(picture.lines).encode() + b"\n",
                          capture_output=True, check=False)
    if made.returncode:
        stop("gnuplot failed: " + made.stderr.decode(errors="replace").strip())
    if options.kind:
        try:
            with open(options.file, "wb") as file:
                file.write(made.stdout)
        except OSError:
            stop(f"{options.file}: cannot be written; does its folder exist?")
        return "", done
    text = [line.rstrip() for line in made.stdout.decode().replace("\f", "").split("\n")]
    return "\n".join(text).strip("\n") + "\n", done


def follow(files, names, options):
    """Redraws as the runs grow. On a terminal, from the top without flicker; elsewhere prints one
    chart after the other."""
    in_place = sys.stdout.isatty() and not options.kind
    before, waits, last_round = None, False, False
    if in_place:
        print("\033[?25l\033[H\033[J", end="")
    try:
        while True:
            now = [os.path.isfile(file) and os.stat(file).st_mtime_ns for file in files]
            now.append(in_place and shutil.get_terminal_size())
            if now != before:
                text, done = draw(files, names, options)
                if text is None and not waits:
                    waits = True
                    print("plot.py: waiting for the first steps of", *names, file=sys.stderr)
                elif text and in_place:
                    shown = text.splitlines()[:shutil.get_terminal_size()[1] - 1]
                    print("\033[H" + "\n".join(line + "\033[K" for line in shown) + "\033[J", end="")
                elif text:
                    print(text, end="")
                sys.stdout.flush()
            before = now
            if last_round:
                return
            last_round = done  # the validation of the last step may not be written yet
            time.sleep(options.follow)
    finally:
        if in_place:
            print("\033[?25h", end="", flush=True)


def find_files(options):
    """The metrics.jsonl of each run. Other files, such as a run's -profile.log, are skipped."""
    files, skipped = [], []
    for run in options.runs:
        file = run if os.path.isfile(run) else os.path.join(run, "metrics.jsonl")
        if file == run and not run.endswith(".jsonl"):
            skipped.append(run)
        elif os.path.isfile(file) and os.access(file, os.R_OK) or options.follow:
            files.append(file)
        elif os.path.isdir(run):
            skipped.append(run)
        else:
            stop(f"{run}: no such run; give its directory, such as runs/NAME, or a metrics.jsonl")
    if skipped and not files:
        stop(f"{skipped[0]}: no readable metrics.jsonl; is it a run, and does it log.metrics?")
    if skipped:
        print("plot.py: skipped, as no run with a metrics.jsonl:", *map(printable, skipped),
              file=sys.stderr)
    return files


def above_zero(kind):
    def convert(text):
        number = kind(text)
        if not 0 < number < 1e9:
            raise ValueError
        return number
    convert.__name__ = "number above 0"  # argparse names it in its messages
    return convert


def read_options(words):
    parser = argparse.ArgumentParser(
        prog="scripts/plot.py", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--metric", action="append", metavar="NAME,...",
                        help=", ".join(TITLES) + ", a figure of the objective, or all that change. "
                        "Default: loss, with the validation loss, in the terminal; all in a file. "
                        "loss_scale has the skipped steps")
    picture = parser.add_mutually_exclusive_group()
    picture.add_argument("--svg", metavar="FILE", help="draw into FILE instead")
    picture.add_argument("--png", metavar="FILE", help="likewise")
    parser.add_argument("--smooth", type=above_zero(int), default=1, metavar="N",
                        help="loss, grad_norm, tokens_per_s, and figures of objectives: mean "
                        "of the last N steps")
    parser.add_argument("--follow", type=above_zero(float), metavar="SECONDS",
                        help="redraw as the runs grow (every 2 seconds), until all have finished or "
                        "Ctrl-C (exit status 130); waits for runs that have not begun")
    if "--follow" in words:  # SECONDS may be left out: what follows may be a run
        at = words.index("--follow") + 1
        if not re.fullmatch(r"\d+(\.\d+)?", "".join(words[at:at + 1])):
            words = [*words[:at], "2", *words[at:]]
    options = parser.parse_intermixed_args(words)
    options.kind = "svg" if options.svg else "png" if options.png else ""
    options.file = options.svg or options.png
    asked = [name for text in options.metric or () for name in text.split(",") if name]
    if options.metric and not asked:
        parser.error(f"--metric: there are {' '.join(TITLES)}, figures of objectives, and all")
    default = None if options.kind else ["loss"]
    options.metrics = (None if "all" in asked else asked) if asked else default
    return options


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    options = read_options(sys.argv[1:])
    files = find_files(options)
    if not shutil.which("gnuplot"):
        stop("it needs gnuplot: apt-get install gnuplot-nox")
    names = names_of(files)
    try:
        if options.follow:
            follow(files, names, options)
            return 0
        text, _ = draw(files, names, options)
        print(text or "", end="")
        return 0 if text is not None else 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
