#!/usr/bin/env python3
"""Tests the reader of machine code, and the check of registers in flight, on made-up instructions."""
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
import cubin  # noqa: E402
import cubin_in_flight  # noqa: E402
from cubin import F2I, HGMMA, LDG, STSM, WARPGROUP  # noqa: E402

FADD, REDG = 0x21, 0x1A6
failures = []


def expect(what, got, wanted, tolerance=0.0):
    if abs(got - wanted) > tolerance:
        failures.append("%s: %s, not %s" % (what, got, wanted))


def instruction(operation, width=0, low=0, high=0):
    return struct.pack("<QQ", operation | low, width << 9 | high)


def group_product(ends=False, registers=False, n=64, sums=0):
    return instruction(HGMMA, low=(6 if registers else 4) << 9 | sums << 16 | n // 8 - 1 << 53,
                       high=0 if ends else 7 << 20)


def group_wait(pending):
    return instruction(WARPGROUP, high=1 << 16 | pending << 8)


def decoding():
    load, half, single = cubin.decode(
        instruction(LDG, width=6) + instruction(F2I, high=0x10F000) + instruction(F2I, high=0x20F000))
    expect("operation", load.operation, LDG)
    expect("width", load.width, 6)
    expect("a load that converts", cubin.converts_half(load), False)
    expect("a conversion of fp16", cubin.converts_half(half), True)
    expect("a conversion of fp32", cubin.converts_half(single), False)


def decoding_for_groups():
    for n in (8, 32, 64, 128, 256):
        product, = cubin.decode(group_product(n=n))
        expect("N of a product", cubin.columns(product), n)
    for matrices in (1, 2, 4):
        store, = cubin.decode(instruction(STSM, high=matrices // 2 << 8))
        expect("stored matrices", cubin.matrices(store), matrices)


def registers_in_flight():
    """Sums in 24..55 and A in 120..123; what follows writes, reads, or waits before it does."""
    product = instruction(HGMMA, low=6 << 9 | 24 << 16 | 120 << 24 | 7 << 53)
    wide = instruction(HGMMA, low=6 << 9 | 24 << 16 | 120 << 24 | 15 << 53)  # sums in 24..87
    def add(to, first, second):
        return instruction(FADD, low=1 << 9 | to << 16 | first << 24 | second << 32)
    def store(data):
        return instruction(0x186, width=6, low=1 << 9 | 10 << 24 | data << 32)
    for what, code, wanted in (
            ("other registers", add(56, 23, 119), 0),
            ("a sum written", add(24, 8, 8), 1),
            ("a sum read", add(60, 8, 55), 1),
            ("a sum stored, of four", store(52), 1),
            ("a sum stored as matrices",
             instruction(STSM, low=4 << 9 | 10 << 24 | 52 << 32, high=2 << 8), 1),
            ("a sum reduced, of four floats", instruction(REDG, width=3, low=4 << 9 | 52 << 32), 1),
            ("a float reduced, not a sum", instruction(REDG, width=1, low=4 << 9 | 56 << 32), 0),
            ("A read", add(60, 120, 123), 0),
            ("A written", add(123, 8, 8), 1),
            ("after the wait", group_wait(0) + add(24, 8, 8), 0),
            ("after a wait that leaves it", group_wait(1) + add(24, 8, 8), 1)):
        products, touches = cubin_in_flight.check(cubin.decode(product + code))
        expect("products before " + what, products, 1)
        expect("in flight: " + what, len(touches), wanted)
    for to, wanted in ((87, 1), (88, 0)):
        expect("in flight, N = 128: %d" % to,
               len(cubin_in_flight.check(cubin.decode(wide + add(to, 8, 8)))[1]), wanted)


for test in (decoding, decoding_for_groups, registers_in_flight):
    test()
for failure in failures:
    print("FAIL: " + failure)
print("test_cubin.py: %s" % ("failed" if failures else "decoding, registers in flight: ok"))
sys.exit(bool(failures))
