#!/usr/bin/env python3
"""Compares the estimates of scripts/cuda_replay.py and scripts/cuda_step_model.py with the expected
ones.

    check_estimates.py EXPECTED COMPILER FIGURES.json ...      exit status 1: one has become worse
    check_estimates.py --write EXPECTED COMPILER FIGURES.json ...

COMPILER is the version of nvcc. The same compiler makes the same code, so the kernel is the cause
if a share falls by more than 3 %, or a step takes that much longer. Another compiler orders
instructions differently: then worse estimates are only reported, and the status is 0.
"""
import json
import sys

TOLERANCE = 0.03
# figure: True if more is better
WATCHED = {"share": True, "tflops": True, "in_flight": True, "instructions": False,
           "moved_to_least": False, "ms": False}


def figures(paths):
    found = {}
    for path in paths:
        with open(path) as file:
            read = json.load(file)
        prefix = "sm_%d " % read["arch"] if "arch" in read else "step "
        for name, values in read.get("kernels", read).items():
            for key, value in values.items():
                if key in WATCHED:
                    found["%s%s: %s" % (prefix, name, key)] = value
    return found


def write(path, compiler, found):
    with open(path, "w") as file:
        file.write("# Estimates, not measured, as check_estimates.py --write has found them.\n")
        file.write("compiler\t%s\n" % compiler)
        for name in sorted(found):
            file.write("%s\t%.4g\n" % (name, found[name]))


def compare(path, compiler, found):
    """Returns the worse or missing estimates, and True if the compiler is the same."""
    with open(path) as file:
        lines = [line.rstrip("\n").split("\t") for line in file if not line.startswith("#")]
    expected = dict(lines)
    same = expected.pop("compiler") == compiler
    worse, better = [], 0
    for name, wanted in expected.items():
        wanted, got = float(wanted), found.get(name)
        if got is None:
            worse.append("%s is missing" % name)
            continue
        gain = got / wanted - 1 if WATCHED[name.rsplit(" ", 1)[1]] else wanted / got - 1
        if gain < -TOLERANCE:
            worse.append("%s is %.4g, was %.4g" % (name, got, wanted))
        better += gain > TOLERANCE
    if better:
        print("%d estimates are better than expected: scripts/cuda_report.sh --write keeps them"
              % better)
    return worse, same


def main():
    arguments = sys.argv[1:]
    writes = arguments[0] == "--write"
    path, compiler, *paths = arguments[1:] if writes else arguments
    found = figures(paths)
    if writes:
        write(path, compiler, found)
        return 0
    worse, same = compare(path, compiler, found)
    for line in worse:
        print("! estimate: " + line)
    if worse and not same:
        print("(the expected ones are of another compiler: no failure)")
    return 1 if worse and same else 0


if __name__ == "__main__":
    sys.exit(main())
