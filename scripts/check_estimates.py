#!/usr/bin/env python3
"""Estimates the speed of kernels and steps from the machine code in FOLDER, which
scripts/cuda_report.sh has made, and compares it with what is expected. NOT MEASUREMENTS.

    check_estimates.py [--write] EXPECTED COMPILER FOLDER      exit status 1: one has become worse

COMPILER is the version of nvcc. The same compiler makes the same code, so the kernel is the cause
if a share falls by more than 3 %, or a step takes that much longer. Another compiler orders
instructions differently: then worse estimates are only reported, and the status is 0.
"""
import sys

import cuda_replay
import cuda_step_model

TOLERANCE = 0.03
# figure: True if more is better
WATCHED = {"share": True, "tflops": True, "in_flight": True, "instructions": False,
           "moved_to_least": False, "ms": False}


def watched(prefix, figures):
    return {"%s %s: %s" % (prefix, name, key): value for name, values in figures.items()
            for key, value in values.items() if key in WATCHED}


def estimate(folder):
    replayed, found = {}, {}
    for arch in (80, 90):
        print()
        replayed[arch] = cuda_replay.estimate(folder, arch)
        found |= watched("sm_%d" % arch, replayed[arch])
    print()
    return found | watched("step", cuda_step_model.estimate(replayed))


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


def check(path, compiler, found):
    """Prints worse estimates; returns the exit status."""
    worse, same = compare(path, compiler, found)
    for line in worse:
        print("! estimate: " + line)
    if worse and not same:
        print("(the expected ones are of another compiler: no failure)")
    return 1 if worse and same else 0


def main():
    *options, path, compiler, folder = sys.argv[1:]
    found = estimate(folder)
    if options == ["--write"]:
        return write(path, compiler, found)
    return check(path, compiler, found)


if __name__ == "__main__":
    sys.exit(main())
