#!/usr/bin/env python3
"""Tests the estimates by replay on made-up machine code with known cycles, the check of registers in
flight, and the check of figures that have become worse."""
import contextlib
import io
import os
import struct
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
import check_estimates  # noqa: E402
import cubin  # noqa: E402
import cubin_in_flight  # noqa: E402
import cuda_replay  # noqa: E402
from cubin import BRA, HGMMA, HMMA, LDG, WARPGROUP  # noqa: E402

FADD, MUFU = 0x21, 0x108
failures = []


def expect(what, got, wanted, tolerance=0.0):
    if abs(got - wanted) > tolerance:
        failures.append("%s: %s, not %s" % (what, got, wanted))


def instruction(operation, stall=1, write=7, read=7, wait=0, width=0, predicate=7, low=0, high=0):
    control = stall | 1 << 4 | write << 5 | read << 8 | wait << 11
    return struct.pack("<QQ", operation | predicate << 12 | low, control << 41 | width << 9 | high)


def group_product(ends=False, registers=False):
    return instruction(HGMMA, low=(6 if registers else 4) << 9, high=0 if ends else 7 << 20)


def group_wait(pending):
    return instruction(WARPGROUP, high=1 << 16 | pending << 8)


def branch(distance, arch):
    """A branch to this many bytes after itself."""
    field = distance // 4 & (1 << (56 if arch >= 90 else 48)) - 1
    word = field << 34 if arch < 90 else (field & 0xFF) << 16 | (field >> 8) << 34
    low, high = word & (1 << 64) - 1, word >> 64
    return struct.pack("<QQ", BRA | 7 << 12 | low, high | (5 | 7 << 5 | 7 << 8) << 41)


def registers_in_flight():
    """Sums in 24..55 and A in 120..123; what follows writes, reads, or waits before it does."""
    product = instruction(HGMMA, low=6 << 9 | 24 << 16 | 120 << 24)
    def add(to, first, second):
        return instruction(FADD, low=1 << 9 | to << 16 | first << 24 | second << 32)
    def store(data):
        return instruction(0x186, width=6, low=1 << 9 | 10 << 24 | data << 32)
    for what, code, wanted in (
            ("other registers", add(56, 23, 119), 0),
            ("a sum written", add(24, 8, 8), 1),
            ("a sum read", add(60, 8, 55), 1),
            ("a sum stored, of four", store(52), 1),
            ("A read", add(60, 120, 123), 0),
            ("A written", add(123, 8, 8), 1),
            ("after the wait", group_wait(0) + add(24, 8, 8), 0),
            ("after a wait that leaves it", group_wait(1) + add(24, 8, 8), 1)):
        products, touches = cubin_in_flight.check(cubin.decode(product + code, 90))
        expect("products before " + what, products, 1)
        expect("in flight: " + what, len(touches), wanted)


def decoding():
    for arch in (80, 90):
        code = (instruction(LDG, stall=3, write=2, read=5, wait=9, width=6, predicate=15) +
                branch(32, arch) + branch(-48, arch))
        load, ahead, back = cubin.decode(code, arch)
        expect("operation", load.operation, LDG)
        expect("stall", load.stall, 3)
        expect("barriers", load.write * 10 + load.read, 25)
        expect("wait", load.wait, 9)
        expect("width", load.width, 6)
        expect("predicate", load.predicate, 15)
        expect("target ahead, sm_%d" % arch, ahead.target, 16 + 16 + 32)
        expect("target back, sm_%d" % arch, back.target, 32 + 16 - 48)


def cycles(code, warps, arch):
    decoded = cubin.decode(code, arch)
    return cuda_replay.replay(decoded, warps, cuda_replay.MACHINES[arch], rounds=400)[0]


def replaying():
    for arch in (80, 90):
        hmma = cuda_replay.MACHINES[arch].hmma
        expect("a full tensor pipe", cycles(instruction(HMMA) * 16, 2, arch), 16 * hmma, 0.5)
    adds = instruction(FADD, stall=4) * 16
    expect("one warp waits for each sum", cycles(adds, 1, 90), 64, 1)
    expect("four warps hide that", cycles(adds, 4, 90), 16, 1)
    expect("eight cycles for each exponential", cycles(instruction(MUFU) * 8, 4, 90), 64, 1)
    waits = instruction(MUFU, write=0) + instruction(FADD, wait=1)
    expect("a sum that waits for an exponential", cycles(waits, 1, 90), 23, 2)


def replaying_groups():
    """Products of warp groups run beside the warp, until it waits for them."""
    inner, last, in_registers, waits = cubin.decode(
        group_product() + group_product(ends=True) + group_product(registers=True) + group_wait(3),
        90)
    expect("a product within a group", inner.group, False)
    expect("a product that ends a group", last.group, True)
    expect("A in registers", in_registers.form, cuda_replay.A_IN_REGISTERS)
    expect("a wait for groups", waits.group, 3)
    hgmma, latency = cuda_replay.MACHINES[90].hgmma, cuda_replay.GROUP_LATENCY
    exponentials = instruction(MUFU) * 8  # 64 cycles
    one = group_product(ends=True)
    expect("a product, a wait", cycles(one + group_wait(0), 1, 90), hgmma + latency, 2)
    expect("exponentials behind it", cycles(one + group_wait(0) + exponentials, 1, 90),
           hgmma + latency + 64, 9)
    expect("exponentials beside it", cycles(one + exponentials + group_wait(0), 1, 90), 64, 9)
    expect("a wait that lets one group go on", cycles(one + group_wait(1) + exponentials, 1, 90),
           64, 9)
    full = group_product() * 7 + one + group_wait(0)
    expect("two warps fill the tensor cores", cycles(full, 2, 90), 8 * hgmma, 1)


def choosing():
    """The hot loop has the fewest instructions per product; rare branches are skipped."""
    product, other = instruction(HMMA), instruction(FADD)
    hot = product * 4 + branch(32, 90) + other * 2 + product
    masked = product * 4 + other * 20
    code = cubin.decode(other * 3 + masked + branch(-16 * 25, 90) +
                        hot + branch(-16 * 9, 90), 90)
    first, last = cuda_replay.hot_loop(code)
    expect("first of the hot loop", first, 28)
    expect("last of the hot loop", last, 36)
    expect("a round of it", len(cuda_replay.path(code, first, last)), 7)
    try:
        cuda_replay.replay(cubin.decode(instruction(0x1FF), 90), 1, cuda_replay.MACHINES[90])
        failures.append("an operation that is not known was replayed")
    except cuda_replay.Unknown:
        pass


def comparing():
    with tempfile.TemporaryDirectory() as folder:
        expected = os.path.join(folder, "expected")

        def status(share, compiler):
            figures = check_estimates.watched("sm_90", {"a/b<c>": {"share": share, "kind": "x"}})
            with contextlib.redirect_stdout(io.StringIO()):
                return check_estimates.check(expected, compiler, figures)

        check_estimates.write(expected, "13.0.1", {"sm_90 a/b<c>: share": 0.8})
        expect("as expected", status(0.8, "13.0.1"), 0)
        expect("better", status(0.9, "13.0.1"), 0)
        expect("a little worse", status(0.79, "13.0.1"), 0)
        expect("worse", status(0.7, "13.0.1"), 1)
        expect("worse, by another compiler", status(0.7, "13.1.0"), 0)


for test in (decoding, registers_in_flight, replaying, replaying_groups, choosing, comparing):
    test()
for failure in failures:
    print("FAIL: " + failure)
print("test_estimates.py: %s" % ("failed" if failures else "decoding, replaying, comparing: ok"))
sys.exit(bool(failures))
