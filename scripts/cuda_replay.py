"""Estimates what kernels reach, from their machine code. NOT MEASUREMENTS: see cuda_estimates.md.

The folder is what scripts/cuda_report.sh has made: NAME.sm_ARCH.cubin, .names (mangled and short names)
and sm_ARCH.warps (how many of a kernel a multiprocessor holds). Kernels on tensor cores: their
inner loop is replayed on one of the four schedulers of a multiprocessor. Kernels that move memory:
how many bytes they have in flight, and how many they move beside the least possible.
"""
import collections
import random
import sys

import cubin
from cubin import HGMMA, HMMA, LDG, LDGSTS, STG, WARPGROUP

# ---- kernels to replay

# On tensor cores: iterations of the inner loop per iteration of the outer one; 0: no outer loop.
Tensor = collections.namedtuple("Tensor", "file name inner")
# Moving memory: bytes of an element (or a parameter, or a logit) that are moved, and the least.
Memory = collections.namedtuple("Memory", "file name moved least")

KERNELS = [
    Tensor("attention_mma_forward", "forward<bf16, 64, 3, false>", 0),
    Tensor("attention_mma_forward", "forward<bf16, 128, 3, false>", 0),
    # steps of 16 in tiles of 64, two of them unrolled
    Tensor("attention_mma_backward", "query_gradients<bf16, 64, false>", 2),
    Tensor("attention_mma_backward", "query_gradients<bf16, 128, false>", 2),
    Tensor("attention_mma_backward", "key_gradients<bf16, 64, false>", 4),
    Tensor("attention_mma_backward", "key_gradients<bf16, 128, false>", 4),
    Tensor("attention_wgmma_forward", "forward<bf16, 64, false>", 0),
    Tensor("attention_wgmma_forward", "forward<bf16, 128, false>", 0),
    Tensor("attention_wgmma_backward", "query_gradients<bf16, 64, false>", 0),
    Tensor("attention_wgmma_backward", "query_gradients<bf16, 128, false>", 0),
    Tensor("attention_wgmma_backward", "key_gradients<bf16, 64, false>", 0),
    Tensor("attention_wgmma_backward", "key_gradients<bf16, 128, false>", 0),
    # a branch of 16 bits and a stream of 32 in, both out
    Memory("layernorm_forward", "forward<bf16, bf16, fp32>", 2 + 4 + 4 + 2, 2 + 4 + 4 + 2),
    # the same with the gradient of the stream, and three fp32 sums for each 32 rows at 32 x 1024
    Memory("layernorm_backward", "backward<bf16, fp32>", 2 + 4 + 4 + 4 + 2 + 3 * 4 * 2 / 32,
           2 + 4 + 4 + 4 + 2),
    Memory("cross_entropy", "cross_entropy<bf16, 8, 512>", 2 + 2, 2 + 2),
    # upper half and remainder of the master, two moments in and out; an fp32 gradient in
    Memory("adamw", "adamw<fp32, upper_bits, bf16_copy, fp32>", 2 * (2 + 2 + 4 + 4) + 4,
           2 * (2 + 2 + 4 + 4) + 4),
    Memory("gelu_backward", "summed<false, bf16, bf16>", 2 + 2 + 2, 2 + 2 + 2),
]

# ---- the machine: multiprocessors, clock under load in GHz, memory in bytes a nanosecond, cycles
# that a scheduler's tensor core needs for an HMMA, and for its part of an HGMMA. Assumptions: see
# cuda_estimates.md.

Machine = collections.namedtuple("Machine", "name multiprocessors clock memory hmma hgmma")
MACHINES = {80: Machine("A100 SXM 80 GB", 108, 1.41, 2039, 8, 0),
            90: Machine("H100 SXM", 132, 1.70, 3350, 6, 32)}
LATENCY = 800      # cycles of a load from busy memory
SCHEDULERS = 4
STARTS = (300, 500, 700, 900, 1100, 1300)  # cycles from one warp's start to the next one's
QUEUE = 32          # cycles of work that the queues to memory and to HGMMA take in advance
GROUP_LATENCY = 30  # cycles from the last product of a group to its end
JITTER = 64         # cycles that a barrier in shared memory may take longer, at random

# ---- operations: name, pipe, cycles of the pipe for a warp, cycles until the result is there

FIXED = {}


def operations(pipe, cycles, latency, table):
    for code, name in table.items():
        FIXED[code] = (name, pipe, cycles, latency)


operations("fma", 1, 4, {0x20: "FMUL", 0x21: "FADD", 0x23: "FFMA", 0x24: "IMAD", 0x25: "IMAD.WIDE",
                         0x27: "IMAD.HI", 0x30: "HADD2", 0x31: "HFMA2", 0x32: "HMUL2",
                         0x35: "HFMA2"})
operations("alu", 2, 6, {0x02: "MOV", 0x03: "P2R", 0x04: "R2P", 0x05: "CS2R", 0x07: "SEL",
                         0x08: "FSEL", 0x09: "FMNMX", 0x0B: "FSETP", 0x0C: "ISETP", 0x0F: "VIMNMX3",
                         0x10: "IADD3", 0x11: "LEA", 0x12: "LOP3", 0x13: "IABS", 0x16: "PRMT",
                         0x17: "IMNMX", 0x19: "SHF", 0x1C: "PLOP3", 0x36: "VIADD", 0x3E: "F2FP",
                         0x45: "I2FP", 0x46: "VIADDMNMX", 0x48: "VIMNMX", 0x06: "VOTE"})
operations("uniform", 2, 10, {0x82: "UMOV", 0x86: "VOTEU", 0x87: "USEL", 0x8C: "UISETP",
                              0x90: "UIADD3", 0x91: "ULEA", 0x92: "ULOP3", 0x96: "UPRMT",
                              0x97: "UIADD3.64", 0x99: "USHF", 0xA4: "UIMAD",
                              0xA5: "UIMAD.WIDE", 0xB9: "ULDC", 0xCA: "R2UR", 0x1C2: "R2UR", 0x1C3: "S2UR"})
operations("special", 8, 22, {0x102: "FCHK", 0x104: "F2F", 0x105: "F2I", 0x106: "I2F",
                              0x108: "MUFU", 0x110: "F2F.64", 0x111: "F2I.64", 0x112: "I2F.64"})
operations("double", 32, 60, {0x28: "DMUL", 0x29: "DADD", 0x2A: "DSETP", 0x2B: "DFMA"})
operations("tensor", 0, 18, {0x3C: "HMMA", 0x1F0: "HGMMA"})  # cycles: the machine's
operations("memory", 4, 24, {0x182: "LDC", 0x184: "LDS", 0x188: "STS", 0x119: "S2R",
                             0x1A7: "SYNCS"})
operations("memory", 8, 24, {0x189: "SHFL", 0x181: "LDG", 0x186: "STG", 0x18E: "RED",
                             0x1A8: "ATOMG", 0x18C: "ATOMS"})
operations("memory", 16, 30, {0x3B: "LDSM", 0x1AE: "LDGSTS"})  # 128 bits a lane
operations("control", 0, 0, {0x118: "NOP", 0x11A: "DEPBAR", 0x11B: "ENDCOLLECTIVE", 0x11D: "BAR",
                             0x141: "BSYNC", 0x142: "BREAK", 0x144: "CALL", 0x145: "BSSY",
                             0x146: "YIELD", 0x147: "BRA", 0x148: "WARPSYNC", 0x149: "BRX",
                             0x14D: "EXIT", 0x150: "RET", 0x1AF: "LDGDEPBAR", 0x192: "MEMBAR",
                             0x1C5: "WARPGROUP"})
SYNCS, BAR = 0x1A7, 0x11D
PRODUCTS = (HMMA, HGMMA)
MOVES = (LDG, STG, LDGSTS, BAR) + PRODUCTS
FLOP = {HMMA: 2 * 16 * 8 * 16, HGMMA: 2 * 16 * 64 * 16}  # of a warp: m16n8k16, m64n64k16
A_IN_REGISTERS = 6  # the form of such a product
NEVER, NO_BARRIER = 15, 7
BYTES = {4: 4, 5: 8, 6: 16}  # of a lane, by the width of an access


class Unknown(Exception):
    pass


def operation(instruction):
    try:
        return FIXED[instruction.operation]
    except KeyError:
        raise Unknown("operation %#x at %#x is not in the table of cuda_replay.py"
                      % (instruction.operation, instruction.at)) from None


# ---- loops

def loops(code):
    """First and last index of each loop: a branch back."""
    index = {i.at: n for n, i in enumerate(code)}
    return [(index[i.target], n) for n, i in enumerate(code)
            if i.target is not None and i.target < i.at and i.target in index]


def count(code, *wanted):
    return sum(i.operation in wanted and i.predicate != NEVER for i in code)


def hot_loop(code):
    """The innermost loop on tensor cores with the fewest instructions for a product: the one for
    tiles that need no mask."""
    found = [(a, b) for a, b in loops(code) if count(code[a:b + 1], *PRODUCTS)]
    inner = [(a, b) for a, b in found
             if not any((c, d) != (a, b) and a <= c and d <= b for c, d in found)]
    if not inner:
        raise Unknown("there is no loop with tensor-core products")
    return min(inner, key=lambda at: (at[1] - at[0] + 1) / count(code[at[0]:at[1] + 1], *PRODUCTS))


def path(code, first, last):
    """Instructions of one iteration. Forward branches that skip no product, barrier or memory
    access are taken, because they skip rare cases (a new maximum, an end)."""
    index = {i.at: n for n, i in enumerate(code)}
    done, n = [], first
    while n <= last:
        now = code[n]
        done.append(now)
        ahead = index.get(now.target, -1) if now.target is not None else -1
        if n < ahead <= last and not count(code[n + 1:ahead], *MOVES):
            n = ahead
        else:
            n += 1
    return done


# ---- a scheduler

class Warp:
    def __init__(self, start):
        self.place = 0
        self.ready = start
        self.barriers = [0] * 6  # when each was last released
        self.groups = []         # when each group of products is done


def may_issue(warp, instruction, now):
    if warp.ready > now or any(instruction.wait >> b & 1 and warp.barriers[b] > now
                               for b in range(6)):
        return False
    if instruction.operation != WARPGROUP or instruction.group is None:
        return True
    awaited = warp.groups[:len(warp.groups) - instruction.group]
    return not awaited or awaited[-1] <= now


def start_group_product(warp, instruction, now, free, busy, machine):
    """A product of a warp group is queued and runs beside the warp. Each operand in shared memory
    is 2 KB of the 128 bytes a cycle that its four warps share; the time of the reads is not
    modelled."""
    if free["tensor"] - now > QUEUE:
        return None
    start = max(now, free["tensor"])
    free["tensor"] = start + machine.hgmma
    busy["tensor"] += machine.hgmma
    busy["memory"] += 16 if instruction.form == A_IN_REGISTERS else 32
    if instruction.group:
        warp.groups = warp.groups[-8:] + [start + machine.hgmma + GROUP_LATENCY]
    return start


def issue(warp, instruction, now, free, busy, machine):
    """Returns whether the pipe took it."""
    name, pipe, cycles, latency = operation(instruction)
    if pipe == "tensor":
        cycles = machine.hmma
    if instruction.predicate == NEVER:
        pipe, cycles = "alu", 1
    start = now
    if name == "HGMMA":
        start = start_group_product(warp, instruction, now, free, busy, machine)
        if start is None:
            return False
        pipe, cycles = "control", 0
    elif pipe == "memory":
        if free[pipe] - now > QUEUE:
            return False
        start = max(free[pipe], now)
        free[pipe] = start + cycles
    elif pipe != "control":
        if free[pipe] > now:
            return False
        free[pipe] = now + cycles
    busy[pipe] += cycles
    done = start + latency + (cycles if pipe == "memory" else 0)
    if instruction.write != NO_BARRIER:
        warp.barriers[instruction.write] = max(warp.barriers[instruction.write], done)
    if instruction.read != NO_BARRIER:
        warp.barriers[instruction.read] = max(warp.barriers[instruction.read], start + 12)
    warp.ready = now + max(instruction.stall, 1) + (20 if name == "BAR" else 0)
    return True


def replay_from(start, body, warps, machine, rounds):
    """Cycles of a scheduler for a round of one warp, where all are at it, and those that each pipe
    is busy; the warp that issued last goes first."""
    all_warps = [Warp(i * start) for i in range(warps)]
    chance = random.Random(start)
    free, busy, ends = collections.Counter(), collections.Counter(), []
    now, last = 0, all_warps[0]
    while len(ends) < rounds * warps:
        for warp in [last] + [w for w in all_warps if w is not last]:
            if not may_issue(warp, body[warp.place], now):
                continue
            if not issue(warp, body[warp.place], now, free, busy, machine):
                continue
            if body[warp.place].operation == SYNCS:
                warp.ready += chance.randrange(JITTER)
            last = warp
            warp.place += 1
            if warp.place == len(body):
                warp.place = 0
                ends.append(now)
            break
        now += 1
    begin, end = len(ends) // 4, len(ends) * 3 // 4
    pipes = {p: busy[p] / len(ends) for p in busy}
    return max((ends[end] - ends[begin]) / (end - begin), *pipes.values()), pipes


def replay(body, warps, machine, rounds=24):
    """Mean over several starts, because the start affects how warps interleave."""
    results = [replay_from(start, body, warps, machine, rounds) for start in STARTS]
    return sum(cycles for cycles, _ in results) / len(results), results[0][1]


# ---- figures

def round_of(code, inner_rounds):
    """Instructions of a warp per iteration of the loop around the hot one, else of that one."""
    first, last = hot_loop(code)
    hot = path(code, first, last)
    around = [(a, b) for a, b in loops(code)
              if a <= first and last <= b and (a, b) != (first, last)]
    if not inner_rounds or not around:
        return hot
    begin, end = min(around, key=lambda at: at[1] - at[0])
    others = [(a, b) for a, b in loops(code)
              if begin < a and b < end and count(code[a:b + 1], *PRODUCTS)]
    once = [i for n, i in enumerate(code[begin:end + 1], begin)
            if not any(a <= n <= b for a, b in others)]
    return once + hot * inner_rounds


def tensor_figures(kernel, code, warps, machine):
    body = round_of(code, kernel.inner)
    products = count(body, *PRODUCTS)
    each = machine.hgmma if count(body, HGMMA) else machine.hmma
    flop = sum(FLOP[i.operation] for i in body if i.operation in FLOP and i.predicate != NEVER)
    cycles, pipes = replay(body, max(warps // SCHEDULERS, 1), machine)
    busiest = max((p for p in pipes if p != "control"), key=pipes.get)
    second = 1e9 * machine.clock * machine.multiprocessors * SCHEDULERS
    return {"kind": "tensor", "instructions": len(body) / products, "busiest": busiest,
            "share": min(products * each / cycles, 1), "tflops": flop / cycles * second / 1e12}


def memory_figures(kernel, code, warps, machine):
    """Loads that are issued before the first wait are in flight together."""
    flying = most = pending = 0
    for i in code:
        if i.wait & pending:
            flying = pending = 0
        if i.predicate == NEVER or i.operation != LDG:
            continue
        flying += 32 * BYTES.get(i.width, 0)
        if i.write != NO_BARRIER:
            pending |= 1 << i.write
        most = max(most, flying)
    cycle = machine.memory / machine.clock / machine.multiprocessors  # bytes of a multiprocessor
    wanted = LATENCY * cycle
    return {"kind": "memory", "busiest": "memory" if most * warps >= wanted else "latency",
            "share": min(most * warps / wanted, 1), "in_flight": most * warps,
            "moved": kernel.moved, "moved_to_least": kernel.moved / kernel.least}


def read_table(path_):
    with open(path_) as file:
        return [line.rstrip("\n").split("\t") for line in file]


def print_figure(file, name, held, figure):
    tensor = figure["kind"] == "tensor"
    print("%-23s %-36s %5d %6s %-8s %5.2f %7s %6s"
          % (file, name, held, "%.2f" % figure["instructions"] if tensor else "-",
             figure["busiest"], figure["share"], "%.0f" % figure["tflops"] if tensor else "-",
             "-" if tensor else "%.2f" % figure["moved_to_least"]))


def estimate(folder, arch):
    """Prints the table of an architecture; returns the figures of each kernel."""
    machine = MACHINES[arch]
    warps = {(file, name): int(n) for file, name, n in read_table("%s/sm_%d.warps" % (folder, arch))
             if n.isdigit()}
    print("ESTIMATES by replay of machine code, not measured: sm_%d, %s" % (arch, machine.name))
    print("%-23s %-36s %5s %6s %-8s %5s %7s %6s" % ("file", "kernel", "warps", "instr", "busiest",
                                                    "share", "TFLOP/s", "bytes"))
    figures = {}
    for kernel in KERNELS:
        if arch < 90 and "wgmma" in kernel.file:
            continue
        base = "%s/%s.sm_%d" % (folder, kernel.file, arch)
        names = {mangled: short for mangled, short in read_table(base + ".names")}
        found = [code for name, code, _ in cubin.kernels(base + ".cubin")
                 if names.get(name) == kernel.name]
        held = warps.get((kernel.file, kernel.name))
        if not found or not held:
            sys.exit("cuda_replay: %s has no kernel %s" % (kernel.file, kernel.name))
        of = tensor_figures if isinstance(kernel, Tensor) else memory_figures
        try:
            figure = of(kernel, found[0], held, machine)
        except Unknown as problem:
            sys.exit("cuda_replay: %s, %s: %s" % (kernel.file, kernel.name, problem))
        figures["%s/%s" % (kernel.file, kernel.name)] = figure
        print_figure(kernel.file, kernel.name, held, figure)
    return figures
