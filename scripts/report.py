#!/usr/bin/env python3
"""Draws reports in JSON as one HTML page that needs no network: a comparison of ./compare --out, and
what ./train --audit, --agreement and --choices write with --out. It needs matplotlib
(apt-get install python3-matplotlib, or pip install matplotlib).

  scripts/report.py audit/audit.json      writes audit/report.html
  scripts/report.py runs/compare-fp32/report.json audit/audit.json --out page.html
"""

import argparse
import json
import math
import os
import stat
import sys
import tempfile

sys.dont_write_bytecode = True  # no __pycache__ beside the scripts
from report_page import (CHANGE, COLOURS, DECIBEL, FACTOR, MARKERS, Page, at, clean, number, scale,
                         share, size, small, ticker)


# ---- a comparison

LOSSES = [("run", "label"), ("<verdict", "verdict"), ("train loss", "training_loss", number(4)),
          ("differs", "training_difference.percent", CHANGE, "compared"),
          ("val loss", "validation_loss", number(4)),
          ("differs", "validation_difference.percent", CHANGE, "compared"),
          ("curve", "curve.percent", CHANGE, "compared")]
NORMS = [("run", "label"), ("median ratio", "gradient_norm.median_ratio", number(4), "compared"),
         ("mean ratio", "gradient_norm.geometric_mean_ratio", number(4), "compared"),
         ("correlation", "gradient_norm.correlation", number(4), "compared"),
         ("smoothed", "gradient_norm.smoothed_correlation", number(4), "compared")]
SCALES = [("run", "label"), ("steps skipped", "skipped.steps", number(), "skipped.steps"),
          ("share", "skipped.share", share, "skipped.steps"), ("first", "loss_scale.first", scale),
          ("last", "loss_scale.last", scale), ("least", "loss_scale.smallest", scale),
          ("most", "loss_scale.largest", scale), ("changes", "loss_scale.changes", number())]
SPEED = [("run", "label"), ("tokens/s", "tokens_per_s", number()),
         ("speed", "speed_up", FACTOR, "compared"),
         ("at equal loss", "equal_loss.speed_up", FACTOR, "compared"),
         ("tokens to it", "equal_loss.tokens.percent", number(1, " %", "+"), "compared"),
         ("peak memory", "memory_bytes", size),
         ("saved", "memory_saving_percent", number(1, " %"), "compared")]
NOISE = [("run", "label"), ("<difference of", "name"), ("seeds", "pairs", number()),
         ("mean", "percent", CHANGE), ("scatter", "scatter", number(3)), ("noise", "noise", number(3)),
         ("margin", "margin", number(3)), ("it is", "it is")]
CHECKS = [("run", "label"), ("<check", "name"), ("<outcome", "outcome"), ("<found", "text"),
          ("<passes if", "rule")]


def line(axes, i, label, x, y, **style):
    """A line with sparse markers, staggered so that equal lines stay visible."""
    points = [(a, math.nan if b is None else b) for a, b in zip(x, y) if a is not None]
    every = max(1, len(points) * (5 + i) // 40)
    axes.plot(*zip(*points), color=COLOURS[i % 8], marker=MARKERS[i % 8], markevery=every,
              label=" " + clean(label), **style)


def draw_curves(page, groups):
    reference = next(group for group in groups if not group["compared"])

    def chart(title, label, x, y, x_label="step", finish=None, **style):
        def values(group, path):
            found = group["curves"]
            if path.startswith("validations"):
                return [item[path.partition(".")[2]] for item in found["validations"]]
            return found.get(path, [])

        def draw(axes):
            drawn = False
            for i, group in enumerate(groups):
                if any(value is not None for value in values(group, y)):
                    line(axes, i, group["label"], values(group, x), values(group, y), **style)
                    drawn = True
            axes.set(xlabel=x_label, ylabel=label)
            if finish and drawn:
                finish(axes)
            return drawn
        page.figure(title, draw)

    def shade(axes):
        axes.axvspan(axes.get_xlim()[0], reference["settled_after"], color="#dfe2e5", lw=0)
        axes.text(0.01, 0.03, "not judged", transform=axes.transAxes, fontsize=8)
        axes.margins(x=0)

    def powers_of_ten(axes):
        if axes.dataLim.y1 > 10 * axes.dataLim.y0 > 0:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")

    def powers_of_two(axes):
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: scale(value))

    page.add("h2", "Curves")
    loss = "nats per token"
    chart("Training loss, smoothed", loss, "loss_step", "loss")
    chart("Difference of the training loss, smoothed", "% of the reference", "loss_step",
          "loss_percent", finish=shade)
    chart("Validation loss", loss, "validations.step", "validations.loss")
    chart("Validation loss over time", loss, "validations.seconds", "validations.loss",
          "seconds of training")
    chart("Gradient norm, smoothed", "before clipping", "step", "gradient_norm", finish=powers_of_ten)
    chart("Loss scale", "", "step", "loss_scale", finish=powers_of_two, drawstyle="steps-post")
    chart("Speed, smoothed", "tokens per second", "step", "tokens_per_s",
          finish=lambda axes: axes.set_ylim(bottom=0))
    if reference["training_difference"]["pairs"] > 1:
        page.add("p", "Training losses are means over the seeds; the other charts show the first seed.")


def draw_verdicts(page, groups):
    for group in groups:
        label = group["label"]
        for check in group["checks"]:
            if check["outcome"] in ("fail", "better", "noise"):
                failed = check["outcome"] == "fail"
                page.note("bad" if failed else "", f"{label}: {'FAIL' if failed else check['outcome']}, "
                          f"{check['name']}", f"{check['text']}; limit: {check['rule']}")
        if group["compared"] and group["verdict"] != "fail":
            parts = [(at(group, path), form) for path, form in (
                ("training_difference.percent", lambda value: "training loss " + CHANGE(value)),
                ("validation_difference.percent", lambda value: "validation loss " + CHANGE(value)),
                ("speed_up", number(2, " times as fast")),
                ("memory_saving_percent", lambda value: number(1)(abs(value)) + (
                    " % less memory" if value >= 0 else " % more memory")))]
            page.note("good" if group["rank"] in (None, 1) else "", f"{label}: {group['verdict']}",
                      ", ".join(form(value) for value, form in parts if value is not None))


def draw_profile(page, groups):
    profiles = [group["profile"] or {} for group in groups]
    names = list(dict.fromkeys(name for p in profiles for name in p.get("operations", {})))
    rows = [(name, [p.get("operations", {}).get(name) for p in profiles]) for name in names]
    rows += [(name, [p.get(key) for p in profiles])
             for name, key in (("whole step", "step_ms"), ("matmuls alone", "products_ms"))]
    rows = [[name] + ["-" if v is None else f"{v:.1f} ms" for v in values] for name, values in rows
            if max(v or 0 for v in values) >= 0.05]
    if names and rows:
        page.add("h2", "Where the time goes")
        page.cells(["of a step"] + [group["label"] for group in groups], rows)


def differences_of(group):
    """The differences of a group whose noise is known, as rows."""
    for path, name in (("training_difference", "training loss"),
                       ("validation_difference", "validation loss"), ("curve", "loss curve"),
                       ("gradient_norm", "gradient norms"),
                       ("equal_loss.tokens", "tokens to equal loss"),
                       ("equal_loss.speed", "speed at equal loss")):
        found = at(group, path)
        if found["real"] is not None:
            yield {**found, "label": group["label"], "name": name,
                   "it is": "real" if found["real"] else "noise"}


def draw_comparison(page, report):
    groups = report["groups"]
    others = [group for group in groups if group["compared"]]
    seeds = min(group["training_difference"]["pairs"] for group in others)
    page.title(", ".join(group["label"] for group in groups),
               f"{min(group['steps'] for group in others)} steps, {seeds} seed{'s' * (seeds != 1)}, "
               f"against {report['reference']}")
    for warning in report["warnings"]:
        page.note("", "warning", warning)
    draw_verdicts(page, groups)
    page.table("Losses", "The training loss is the mean of the last steps; the curve is where smoothed "
               "losses are farthest from the reference.", groups, LOSSES)
    draw_curves(page, groups)
    page.table("Gradient norms", "", groups, NORMS)
    page.table("Loss scale", "", groups, SCALES)
    page.table("Speed and memory", "", groups, SPEED)
    for group in others:
        page.note("", group["label"], group["equal_loss"]["text"])
    draw_profile(page, groups)
    page.table("Noise", "Scatter: standard deviation of the differences over the seeds. Noise: that of "
               "the reference itself. A difference is real beyond its margin.",
               [row for group in others for row in differences_of(group)], NOISE)
    page.table("Checks", "", [{**check, "label": group["label"]}
                              for group in others for check in group["checks"]], CHECKS)
    if report["config_differences"]:
        page.add("h2", "Configs")
        page.cells(["config"] + ["<" + group["label"] for group in groups],
                   [[d["key"]] + ["-" if v is None else json.dumps(v) for v in d["values"].values()]
                    for d in report["config_differences"]])
    if report["made_by"]:
        page.add("h2", "Made by")
        page.code(report["made_by"])


# ---- audits

FORMATS = ("bf16", "fp16")
ERRORS = [(name, "error." + name, share) for name in FORMATS]
ZERO, ZERO_SCALED, SUBNORMAL, SUBNORMAL_SCALED = [
    (heading, path, share, "stored.fp16") for heading, path in (
        ("zero", "unscaled.zero"), ("scaled", "scaled.zero"),
        ("subnormal", "unscaled.subnormal"), ("scaled", "scaled.subnormal"))]
FORWARD = [("tensor", "name"), *ERRORS, ZERO, SUBNORMAL,
           ("room", "unscaled.room", DECIBEL, "stored.fp16")]
BACKWARD = [("gradient", "name"), *ERRORS, ZERO, ZERO_SCALED, SUBNORMAL, SUBNORMAL_SCALED,
            ("room", "scaled.room", DECIBEL, "stored.fp16")]
PARAMETERS = [("gradient of", "name"), *ERRORS, ZERO_SCALED] + [
    (f"lost {name}", f"update.lost.{name}", share, "update.changed") for name in FORMATS] + [
    (f"dB {name}", f"update.decibel.{name}", DECIBEL, "update.changed") for name in FORMATS]
TRIALS = [("computed in", "name"), ("loss", "loss", number(5)), ("against fp32", "loss_error", share),
          ("error of gradients", "gradient_error", share), ("cosine", "gradient_cosine", number(4))]
OPERANDS = [("operand", "name"), ("<format", "format"), ("to zero", "to_zero", share),
            ("saturated", "saturated", share), ("SNR", "snr", DECIBEL),
            ("worst", "worst_snr", DECIBEL), ("layer", "worst_layer", number())]


def draw_bars(page, title, rows, values):
    """Horizontal bars on a logarithmic axis: values are (name, [a value for each row; 0: no bar;
    None: not finite])."""
    def draw(axes):
        width = 0.8 / max(len(values), 1)
        for k, (name, bars) in enumerate(values):
            finite = [(i + k * width, bar) for i, bar in enumerate(bars) if bar]
            if finite:
                axes.barh(*zip(*finite), height=width * 0.9, color=COLOURS[k + 1],
                          label=" " + clean(name) if len(values) > 1 else None)
        labels = [clean(row) + (" (inf)" if any(bars[i] is None for _, bars in values) else "")
                  for i, row in enumerate(rows)]
        axes.set_yticks([i + 0.4 - width / 2 for i in range(len(rows))], labels)
        axes.grid(axis="x")
        axes.grid(axis="y", visible=False)
        axes.set(xlabel="relative to fp32", xscale="log")
        axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5), numticks=8))
        axes.xaxis.set_major_formatter(lambda value, _: share(value))
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.invert_yaxis()
        return bool(axes.patches)
    page.figure(title, draw, 0.9 + 0.22 * max(len(rows), 4))


def draw_exponents(page, report):
    """The exponents of all values, as Micikevicius et al. (2018) show them, and fp16's limits: values
    above 2^-25 are rounded to its smallest subnormal, 2^-24."""
    kinds = {"activations": [t for t in report["tensors"] if not t["gradient"]],
             "gradients of activations": [t for t in report["tensors"] if t["gradient"]],
             "gradients of parameters": report["parameters"],
             "weights": [p["weights"] for p in report["parameters"]]}

    def draw(axes):
        for i, (name, items) in enumerate(kinds.items()):
            counts = {}
            for item in items:
                for e, count in enumerate(item["exponents"]["counts"], item["exponents"]["first"]):
                    counts[e] = counts.get(e, 0) + count
            total = sum(counts.values())
            if total:
                line(axes, i, name, *zip(*((e, 100 * c / total) for e, c in sorted(counts.items()))))
        axes.axvspan(-25, 16, color="#eef1f3", lw=0)
        axes.axvspan(-25, -14, color="#dfe2e5", lw=0)
        axes.set(xlabel="exponent of two; grey: in fp16, dark: subnormal", ylabel="% of the values")
    page.figure("Magnitudes in fp32, without a loss scale", draw, 3.6)


def largest(values):
    """The largest value, 0 if there is none, or None if one is not finite."""
    return None if None in values else max(values, default=0)


def draw_head(page, report):
    precision = "" if "tensors" in report else ", " + report["precision"]
    loss = report["loss"] if "tensors" in report else {"fp32": report["loss"]}
    advice = report["advice"]
    page.title(f"Precision audit of {report['config']}{precision}",
               f"{report['repetitions']} micro-batches of {report['micro_batch_size']} x "
               f"{report['seq_len']} tokens from step {report['step'] + 1} on")
    if "diverged" in report:
        page.note("bad", "diverged", report["diverged"])
    page.add("h2", "Advice")
    for text in advice if isinstance(advice, list) else advice["texts"]:
        page.add("p", text)
    for name, config in (at(advice, "configs") or {}).items():
        page.add("p", f"Config for {name}:")
        page.code(json.dumps(config, indent=1))
    page.cells(["config", "<" + report["config"]], [
        ["weights", report["from"]], ["device", report["device"]],
        ["loss", ", ".join(f"{name} {'inf' if value is None else f'{value:.6f}'}"
                           for name, value in loss.items())],
        *([["loss scale", f"{report['loss_scale']:.12g}, " +
            ("that of the fp16 run at this step" if at(report, "loss_scale_of_run")
             else "loss_scale.init_scale")]] if at(report, "formats.fp16") else [])])


def draw_audit(page, report):
    formats, tensors = report["formats"], report["tensors"]
    draw_head(page, report)
    page.add("h2", "Errors and magnitudes")
    kinds = list(dict.fromkeys(t["tensor"] for t in tensors))
    draw_bars(page, "Error of tensors, worst layer", kinds, [
        (name, [largest([t["error"][name] for t in tensors
                         if t["tensor"] == kind and name in (at(t, "error") or {})])
                for kind in kinds]) for name in formats])
    draw_exponents(page, report)
    sites = list(dict.fromkeys(site for f in formats.values() for site in f["trials"]))
    draw_bars(page, "Error of the gradients with one more operation in float32", ["(none)"] + sites, [
        (name, [f["first_error"]] + [f["trials"][site]["gradient_error"] if site in f["trials"] else 0
                                     for site in sites])
        for name, f in formats.items()])
    page.table("One more operation in float32", "",
               [{"name": site, **{name: at(f, "trials." + site) for name, f in formats.items()}}
                for site in sites],
               [("one more", "name")] + [(f"{name} {heading}", f"{name}.{key}", share)
                                         for name in formats
                                         for heading, key in (("gradients", "gradient_error"),
                                                              ("removes", "removes"))])
    page.table("Forward pass", "Errors: root mean square of the difference from fp32, relative to fp32. "
               "In fp16, of the values that are not zero: the shares that become zero and subnormal; "
               "room: doublings left before overflow. \"-\": kept in fp32.",
               [t for t in tensors if not t["gradient"]], FORWARD)
    page.table("Backward pass", "The same for gradients. \"scaled\" and room: at the loss scale.",
               [t for t in tensors if t["gradient"]], BACKWARD)
    every = {"name": "all", "error": {name: f["gradient_error"] for name, f in formats.items()},
             "update": report["update"]}
    page.table("Parameters", "Errors of gradients; and, if the master weights were 16 bit: updates lost "
               "in one step, and the signal to noise of the update in decibels.",
               report["parameters"] + [every], PARAMETERS)


def draw_quantized_audit(page, report):
    draw_head(page, report)
    trials = report["trials"]
    page.table("Loss and gradients", "The loss and the error of all gradients, relative to fp32, and "
               "the cosine of the angle between both gradients.", trials, TRIALS)
    draw_bars(page, "Error of the gradients", [t["name"] for t in trials],
              [("", [t["gradient_error"] for t in trials])])
    page.table("Quantized operands of linear layers", "Of the values that are not zero: the share that "
               "became zero and the share beyond the largest value. Signal to noise in decibels, of all "
               "layers and of the worst.", report["operands"], OPERANDS)


# ---- agreement and questions

AGREEMENT = [("precision", "name"), ("mean", "mean", small), ("median", "median", small),
             ("99 %", "percentile_99", small), ("largest", "largest", small), ("KL", "kl", small),
             ("rank", "rank_changed", share), ("equal", "same_bits", share),
             ("tokens/s", "tokens_per_s", number())]
CHOICES = [("precision", "name"), ("acc", "acc", share), ("from", "acc_low", share),
           ("to", "acc_high", share), ("acc_norm", "acc_norm", share), ("from", "acc_norm_low", share),
           ("to", "acc_norm_high", share), ("same", "same_answers", share),
           ("tokens/s", "tokens_per_s", number())]


def draw_agreement(page, report):
    way = "by the training forward pass" if report["exact"] else "with the key-value cache"
    page.title("Agreement of sampler and trainer",
               f"{report['texts']} texts of {report['tokens']} tokens, decoded {way}")
    page.table("Sampler and trainer", "Of tokens drawn at temperature 1, the difference of their "
               "log-probabilities in both, in nats; the mean KL divergence of the predictions; the share "
               "of tokens with another rank, and of predictions with the same bits.",
               report["precisions"], AGREEMENT)


def draw_choices(page, report):
    page.title("Multiple choice", f"{report['questions']}: {report['count']} questions, chance "
               f"{share(report['chance'])}")
    page.table("Accuracy", "Share of questions whose right choice has the largest log-likelihood, or in "
               "acc_norm the largest one per character, and the ends of its 95 % interval. same: the "
               "first row's answer.", report["precisions"], CHOICES)


KINDS = {"groups": draw_comparison, "tensors": draw_audit, "operands": draw_quantized_audit,
         "answers": draw_choices, "exact": draw_agreement}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE.json")
    parser.add_argument("--out", metavar="PAGE.html", help="default: report.html beside the first FILE")
    options = parser.parse_args()
    options.out = options.out or os.path.join(os.path.dirname(options.files[0]), "report.html")
    page = Page()
    for name in options.files:
        try:
            if stat.S_ISFIFO(os.stat(name).st_mode) and not name.startswith("/dev/"):
                raise ValueError("a named pipe")
            with open(name, encoding="utf-8", errors="replace") as file:
                report = json.load(file)
            page.parts.append("<section>")
            next(draw for key, draw in KINDS.items() if key in report)(page, report)
            page.parts.append("</section>")
        except OSError as error:
            sys.exit(f"report.py: {clean(name)}: {error.strerror}")
        except Exception as error:  # JSON of any other shape, which no list of exceptions covers
            sys.exit(f"report.py: {clean(name)}: this is no report of ./compare or ./train "
                     f"({clean(repr(error))})")
    staged = None
    try:
        folder = os.path.dirname(os.path.abspath(options.out))
        with tempfile.NamedTemporaryFile("w", dir=folder, encoding="utf-8", delete=False) as file:
            staged = file.name
            file.write(page.text("Report: " + ", ".join(map(os.path.basename, options.files))))
        os.chmod(staged, 0o644)
        os.replace(staged, options.out)
        print("written: " + clean(options.out))
    except OSError as error:
        if staged:
            os.unlink(staged)
        sys.exit(f"report.py: {clean(options.out)}: {error.strerror}")


if __name__ == "__main__":
    main()
