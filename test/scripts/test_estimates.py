#!/usr/bin/env python3
"""Tests the estimates by replay on made-up machine code with known cycles, the check of registers
in flight, and the check of figures that have become worse."""
import contextlib
import io
import os
import random
import struct
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
import check_estimates  # noqa: E402
import cubin  # noqa: E402
import cubin_in_flight  # noqa: E402
import cuda_loops  # noqa: E402
import cuda_machine  # noqa: E402
import cuda_replay_memory  # noqa: E402
import cuda_scheduler  # noqa: E402
import cuda_step_model  # noqa: E402
import cuda_turns  # noqa: E402
from cubin import (BAR, BRA, HGMMA, HMMA, LDG, LDGSTS, MEMBAR, MUFU, STG, STSM, SYNCS,  # noqa: E402
                   WARPGROUP)

FADD, LDS, STS, REDG = 0x21, 0x184, 0x188, 0x1A6
HOPPER = cuda_machine.MACHINES[90]
failures = []


def expect(what, got, wanted, tolerance=0.0):
    if abs(got - wanted) > tolerance:
        failures.append("%s: %s, not %s" % (what, got, wanted))


def instruction(operation, stall=1, write=7, read=7, wait=0, width=0, predicate=7, low=0, high=0):
    control = stall | 1 << 4 | write << 5 | read << 8 | wait << 11
    return struct.pack("<QQ", operation | predicate << 12 | low, control << 41 | width << 9 | high)


def group_product(ends=False, registers=False, n=64, sums=0):
    return instruction(HGMMA, low=(6 if registers else 4) << 9 | sums << 16 | n // 8 - 1 << 53,
                       high=0 if ends else 7 << 20)


def barrier(number, threads, arrives=False):
    """A barrier of a block; number None: a register holds it."""
    form, low = (2, 0) if number is None else (5, number << 54)
    return instruction(BAR, low=form << 9 | low | threads << 42, high=arrives << 13)


def exponential():
    return instruction(MUFU, high=2 << 10)


def group_wait(pending):
    return instruction(WARPGROUP, high=1 << 16 | pending << 8)


def branch(distance, arch):
    """A branch to this many bytes after itself."""
    field = distance // 4 & (1 << (56 if arch >= 90 else 48)) - 1
    word = field << 34 if arch < 90 else (field & 0xFF) << 16 | (field >> 8) << 34
    low, high = word & (1 << 64) - 1, word >> 64
    return struct.pack("<QQ", BRA | 7 << 12 | low, high | (5 | 7 << 5 | 7 << 8) << 41)


def branch_if(distance):
    """The same, if a predicate says so."""
    low, high = struct.unpack("<QQ", branch(distance, 90))
    return struct.pack("<QQ", low ^ 7 << 12, high | 7 << 23)


def jump(distance):
    low, high = struct.unpack("<QQ", branch(distance, 90))
    return struct.pack("<QQ", low | 4 << 9, high | 7 << 23)


def copies(commits):
    """Asynchronous copies of 16 bytes a lane, as groups, and a wait that leaves all but one."""
    group = instruction(LDGSTS, width=6) * 2 + instruction(0x1AF)
    return group * commits + instruction(0x11A, low=commits - 1 << 38)


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
        products, touches = cubin_in_flight.check(cubin.decode(product + code, 90))
        expect("products before " + what, products, 1)
        expect("in flight: " + what, len(touches), wanted)
    for to, wanted in ((87, 1), (88, 0)):
        expect("in flight, N = 128: %d" % to,
               len(cubin_in_flight.check(cubin.decode(wide + add(to, 8, 8), 90))[1]), wanted)


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


def decoding_for_groups():
    for n in (8, 32, 64, 128, 256):
        product, = cubin.decode(group_product(n=n), 90)
        expect("N of a product", cubin.columns(product), n)
        expect("its FLOP", cuda_machine.flop(product), 2 * 16 * n * 16)
        expect("its cycles", cuda_machine.group_cycles(product, HOPPER), n / 2)
        expect("cycles of its operands", cuda_machine.operand_cycles(product), 16 + n / 4)
    for given, wanted in ((barrier(3, 128), (3, 128, False)), (barrier(0, 0), (0, 0, False)),
                          (barrier(4, 256, True), (4, 256, True)),
                          (barrier(None, 160, True), (None, 160, True))):
        found = tuple(cubin.barrier_of(cubin.decode(given, 90)[0]))
        if found != wanted:
            failures.append("barrier: %s, not %s" % (found, wanted))
    for high, wanted in ((0x8000, False), (0xA000, True), (0x3000, True)):
        fence, = cubin.decode(instruction(MEMBAR, high=high), 90)
        expect("a fence beyond the block", cubin.fences_gpu(fence), wanted)
    for matrices in (1, 2, 4):
        store, = cubin.decode(instruction(STSM, high=matrices // 2 << 8), 90)
        expect("stored matrices", cubin.matrices(store), matrices)


def cycles(code, warps, arch, groups=1, copies=0):
    decoded = cubin.decode(code, arch)
    return cuda_scheduler.replay(decoded, warps, cuda_machine.MACHINES[arch], 60, groups, copies)[0]


def replaying():
    for arch in (80, 90):
        hmma = cuda_machine.MACHINES[arch].hmma
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
    expect("A in registers", in_registers.form, cubin.A_IN_REGISTERS)
    expect("a wait for groups", waits.group, 3)
    hgmma, latency = HOPPER.hgmma, cuda_scheduler.GROUP_LATENCY
    exponentials = instruction(MUFU) * 8  # 64 cycles
    one = group_product(ends=True)
    expect("a product, a wait", cycles(one + group_wait(0), 1, 90), hgmma + latency, 2)
    expect("exponentials behind it", cycles(one + group_wait(0) + exponentials, 1, 90),
           hgmma + latency + 64, 9)
    expect("exponentials beside it", cycles(one + exponentials + group_wait(0), 1, 90), 64, 9)
    expect("a wait that lets one group go on", cycles(one + group_wait(1) + exponentials, 1, 90),
           64, 9)
    full = group_product() * 7 + one + group_wait(0)
    expect("two warps fill the tensor cores", cycles(full, 2, 90), 8 * hgmma, 4)
    wide = group_product(n=128) * 7 + group_product(n=128, ends=True) + group_wait(0)
    expect("products of 128 columns", cycles(wide, 2, 90), 16 * hgmma, 4)


def sharing_memory():
    """Shared memory moves 128 bytes a cycle, for products, for warps and for tensor copies."""
    narrow = group_product(n=32) * 7 + group_product(n=32, ends=True) + group_wait(0)
    expect("operands bind products of 32 columns", cycles(narrow, 2, 90), 8 * 24, 4)
    registers = (group_product(n=32, registers=True) * 7 +
                 group_product(n=32, registers=True, ends=True) + group_wait(0))
    expect("not if registers hold A", cycles(registers, 2, 90), 8 * 16, 4)
    full = group_product() * 7 + group_product(ends=True) + group_wait(0)
    stores = instruction(STS, width=6) * 8
    expect("stores take time from operands", cycles(full + stores, 2, 90), 8 * 32 + 8 * 16, 16)
    expect("so do tensor copies", cycles(full, 2, 90, copies=1), 8 * 32 + 64, 8)
    expect("matrices stored", cycles(instruction(STSM, high=2 << 8) * 8, 4, 90), 8 * 16, 1)
    expect("values of rows", cycles(instruction(LDS, width=5) * 8, 4, 90), 8 * 4, 1)


def meeting():
    """Warps of a block wait for one another at barriers, those of one group or block do not."""
    def work(n):
        return instruction(FADD, stall=4) * n
    both = instruction(MUFU) * 8 + work(16)  # 64 cycles of a pipe, then 64 beside it
    latency = cuda_scheduler.BARRIER_LATENCY
    apart, together = 64 + latency / 2, (3 * 64 + latency) / 2
    for what, threads, groups, wanted in (
            ("of one group", 128, 2, apart), ("of two", 256, 2, together),
            ("of the block", 0, 2, together), ("of other blocks", 0, 1, apart),
            ("of a group and a warp that fetches", 160, 2, apart)):
        expect("a barrier " + what, cycles(both + barrier(1, threads), 2, 90, groups), wanted, 8)
    turns = barrier(None, 256) + work(50) + barrier(None, 256, True)
    expect("turns exclude each other", cycles(turns, 2, 90, 2), 50 * 4 + latency, 4)
    expect("work beside another's turn", cycles(turns + work(50), 2, 90, 2), 50 * 4 + latency, 4)
    fence = instruction(MEMBAR, high=0xA000)
    expect("a fence of the GPU", cycles(fence + work(1), 1, 90), cuda_machine.FENCE_LATENCY + 5, 2)


def choosing():
    """The hot loop has the fewest instructions per product; rare branches are skipped."""
    product, other = instruction(HMMA), instruction(FADD)
    hot = product * 4 + branch(32, 90) + other * 2 + product
    masked = product * 4 + other * 20
    code = cubin.decode(other * 3 + masked + branch(-16 * 25, 90) +
                        hot + branch(-16 * 9, 90), 90)
    first, last = cuda_loops.hot_loop(code)
    expect("first of the hot loop", first, 28)
    expect("last of the hot loop", last, 36)
    expect("a round of it", len(cuda_loops.path(code, first, last)), 7)
    try:
        cuda_scheduler.replay(cubin.decode(instruction(0x1FF), 90), 1, HOPPER)
        failures.append("an operation that is not known was replayed")
    except cuda_machine.Unknown:
        pass


def choosing_exponentials():
    """A loop without exponentials is not the hot one, nor is a loop that waits for something."""
    product, other = instruction(HMMA), instruction(FADD)
    flag = instruction(LDG, width=4, write=0) + instruction(FADD, wait=1) + branch(-16 * 3, 90)
    phase = instruction(SYNCS, write=0) + branch(-16 * 2, 90)
    plain = product * 8 + branch(-16 * 9, 90)
    hot = flag + phase + product * 4 + exponential() * 4 + other * 20
    hot += branch(-(len(hot) + 16), 90)
    # a wait behind the kernel's end that returns into the middle of the loop
    end = instruction(SYNCS) + branch(-(len(hot) + 16), 90)
    code = cubin.decode(plain + hot + end, 90)
    first, last = cuda_loops.hot_loop(code)
    expect("first of the loop with exponentials", first, 9)
    expect("last of the loop with exponentials", last, 9 + len(hot) // 16 - 1)
    body = cuda_loops.path(code, first, last)
    expect("a round passes its waits once", len(body), len(hot) // 16)
    store = instruction(STG)
    code = cubin.decode(branch_if(48) + store * 2 + jump(32) + store * 2 + product, 90)
    expect("one of two ways with stores", len(cuda_loops.path(code, 0, len(code) - 1)), 5)
    if not cuda_scheduler.replay(body, 2, HOPPER)[0] > 0:
        failures.append("a loop with waits was not replayed")


def memory_share(code, held=32, moved=6, stored=2, least=6, threads=256):
    """The share of the memory's rate at which useful bytes move."""
    kernel = cuda_replay_memory.Memory("", "", moved, least, stored)
    decoded = cubin.decode(code, 90)
    figure = cuda_replay_memory.memory_figures(kernel, decoded, held, threads, HOPPER)
    return figure["share"] / figure["moved_to_least"], figure


def loop_of(code):
    return code + branch(-len(code) - 16, 90) + instruction(0x14D)


def judging_memory():
    """The judge of kernels that move memory tells good ones from bad ones."""
    add = instruction(FADD, stall=4)

    def kernel(width, loads, work=4):
        code = b"".join(instruction(LDG, width=width, write=n) for n in range(loads))
        return loop_of(code + instruction(FADD, wait=(1 << loads) - 1) + add * work +
                       instruction(STG, width=width) * (loads // 2))
    good, of_good = memory_share(kernel(6, 4))
    expect("wide loads of many warps", good, 0.87, 0.03)
    expect("bytes in flight", of_good["in_flight"], 32 * 4 * 512)
    if of_good["busiest"] != "memory":
        failures.append("wide loads are bound by " + of_good["busiest"])
    one_block = memory_share(kernel(2, 2), held=4, threads=128)[0]
    planted = memory_share(kernel(2, 2), held=4, threads=128, moved=12, stored=4)[0]
    shares = [("wide loads", good), ("one load at a time", memory_share(kernel(4, 2), held=8)[0]),
              ("scalar loads of 16 bits", memory_share(kernel(2, 2), held=8)[0]),
              ("one block of them", one_block), ("half of each sector", planted)]
    for (better, high), (worse, low) in zip(shares, shares[1:]):
        if not low < 0.8 * high:
            failures.append("%s: %.3f, %s: %.3f" % (better, high, worse, low))
    busy, of_busy = memory_share(kernel(6, 4, work=0)[:-32] + instruction(MUFU) * 400 +
                                 kernel(6, 4, work=0)[-32:])
    if of_busy["busiest"] != "special" or not busy < good:
        failures.append("exponentials for each byte: %s, %.3f" % (of_busy["busiest"], busy))
    copied, of_copies = memory_share(loop_of(copies(1) + add * 4 + instruction(STG, width=6)))
    ahead, of_ahead = memory_share(loop_of(copies(3) + add * 4 + instruction(STG, width=6) * 3),
                                   held=8)
    late, _ = memory_share(loop_of(copies(1) + add * 4 + instruction(STG, width=6)), held=8)
    expect("copies in flight", of_copies["in_flight"], 32 * 2 * 512)
    expect("copies for later rounds in flight", of_ahead["in_flight"], 8 * 5 * 2 * 512)
    expect("copies of many warps", copied, 0.83, 0.03)
    expect("copies that are not awaited at once hide the latency", ahead > 1.5 * late, True)
    few = memory_share(kernel(6, 4), held=4, threads=128)[0]
    expect("an eighth of the warps is too few", few < 0.8 * good, True)


def choosing_paths():
    """The path of a kernel that moves memory leaves out elements at an end and reads shared memory
    instead of loading again."""
    wide, narrow = instruction(LDG, width=6, write=0), instruction(LDG, width=2, write=0)
    store, end = instruction(STG, width=6), instruction(0x14D)
    code = branch_if(16 * 4) + narrow * 4 + wide * 2 + store + end
    path = cuda_replay_memory.stream_path(cubin.decode(code, 90), ())
    expect("elements at an end are left out", cuda_loops.count(path, LDG), 2)
    kept = branch_if(16 * 2) + wide + jump(16) + instruction(LDS, width=6)
    code = loop_of(kept + instruction(STG, width=6))
    path = cuda_replay_memory.stream_path(cubin.decode(code, 90), ())
    expect("values in shared memory are not loaded", cuda_loops.count(path, LDG), 0)
    code = loop_of(wide)[:-16] + loop_of(instruction(STG, width=6))
    path = cuda_replay_memory.stream_path(cubin.decode(code, 90), (3, 5))
    expect("rounds of the first loop", cuda_loops.count(path, LDG), 3)
    expect("rounds of the second loop", cuda_loops.count(path, STG), 5)


def adding_up():
    """A step's parts, with both ways to compute the gradients of attention."""
    memory = {"kind": "memory", "share": 0.8, "moved": 10, "tail": 1000}
    figures = {name: memory for name in cuda_step_model.JUDGED}
    for kind, slots in (("mma", ", 3"), ("wgmma", "")):
        figures["attention_%s_forward/forward<bf16, 64%s, false>" % (kind, slots)] = {"tflops": 600}
        for name in ("query_gradients", "key_gradients"):
            figures["attention_%s_backward/%s<bf16, 64, false>" % (kind, name)] = {"tflops": 600}
    card, model = cuda_step_model.CARDS[1], cuda_step_model.MODELS[0]
    ranges = cuda_step_model.RANGES
    steps = [sum(cuda_step_model.parts_of(model, card, figures, a).values()) for a in ranges]
    if not steps[0] > steps[1] > steps[2]:
        failures.append("a step's range: %s" % steps)
    two = cuda_step_model.attention_parts(model, card, figures, ranges[1])["backward"]
    figures["attention_wgmma_backward/gradients<bf16, 64, false>"] = {"tflops": 600}
    one = cuda_step_model.attention_parts(model, card, figures, ranges[1])["backward"]
    expect("five products instead of seven", one / two, 5 / 7, 0.05)


def taking_turns():
    """Blocks that begin at any time never wait for each other, and add in the order of the keys."""
    shape = cuda_turns.Shape("", 5, 6, 2, 128)
    for seed in range(20):
        chance = random.Random(seed)
        _, added = cuda_turns.simulate(shape, 1 + seed % 5, 1 + seed % 7,
                                       lambda: chance.random() * 30)
        for (_, (query, _)), tiles in added.items():
            expect("order of a sum", tiles == list(range(query // 2 + 1)), True)
    expect("work for each sum", len(added), 5 * 12 * 2)
    in_order = cuda_turns.work_of
    cuda_turns.work_of = lambda *of: in_order(*of)[::-1]  # later keys first
    try:
        cuda_turns.simulate(shape, 5, 4)
        failures.append("blocks that wait for each other were not noticed")
    except AssertionError:
        pass
    cuda_turns.work_of = in_order


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


for test in (decoding, decoding_for_groups, registers_in_flight, replaying, replaying_groups,
             sharing_memory, meeting, choosing, choosing_exponentials, judging_memory,
             choosing_paths, adding_up, taking_turns, comparing):
    test()
for failure in failures:
    print("FAIL: " + failure)
print("test_estimates.py: %s" % ("failed" if failures else "decoding, replaying, comparing: ok"))
sys.exit(bool(failures))
