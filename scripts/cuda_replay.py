#!/usr/bin/env python3
"""Estimates what kernels reach, from their machine code. NOT MEASUREMENTS: see cuda_estimates.md.

    cuda_replay.py FILE.cubin WARPS [IDLE [KB [PART_OF_NAME]]]   replays kernels on tensor cores

WARPS: warps that a multiprocessor holds. IDLE: warps of a block that do not run the loop, for
example because they only fetch. KB: kilobytes that these move in shared memory for each iteration
of the block.

check_estimates.py replays a folder that scripts/cuda_report.sh has made: NAME.sm_ARCH.cubin, .names
(mangled and short names) and sm_ARCH.warps (how many of a kernel a multiprocessor holds). Kernels
on tensor cores: their inner loop is replayed on one of the four schedulers of a multiprocessor.
Kernels that move memory: how many bytes they have in flight, and how many they move beside the
least possible.
"""
import collections
import random
import sys

import cubin
from cubin import BAR, BYTES, HGMMA, LDG, MEMBAR, NEVER, SYNCS, UTMALDG, WARPGROUP
from cuda_loops import PRODUCTS, count, flops, hot_loop, round_of
from cuda_machine import (FENCE_LATENCY, MACHINES, SCHEDULERS, SHARED_BYTES, TENSOR_COPY, Unknown,
                          group_cycles, operand_cycles, operation, pipe_cycles)

# ---- kernels to replay

# On tensor cores: iterations of the inner loop per iteration of the outer one; 0: no outer loop.
# idle: warps of a block that do not run the loop; copies: KB that these fetch for an iteration.
Tensor = collections.namedtuple("Tensor", "file name inner idle copies", defaults=(0, 0, 0))
# Moving memory: bytes of an element (or a parameter, or a logit) that are moved, and the least.
Memory = collections.namedtuple("Memory", "file name moved least")

KERNELS = [
    Tensor("attention_mma_forward", "forward<bf16, 64, 3, false>"),
    Tensor("attention_mma_forward", "forward<bf16, 128, 3, false>"),
    # steps of 16 in tiles of 64, two of them unrolled
    Tensor("attention_mma_backward", "query_gradients<bf16, 64, false>", 2),
    Tensor("attention_mma_backward", "query_gradients<bf16, 128, false>", 2),
    Tensor("attention_mma_backward", "key_gradients<bf16, 64, false>", 4),
    Tensor("attention_mma_backward", "key_gradients<bf16, 128, false>", 4),
    Tensor("attention_wgmma_forward", "forward<bf16, 64, false>"),
    Tensor("attention_wgmma_forward", "forward<bf16, 128, false>"),
    Tensor("attention_wgmma_backward", "query_gradients<bf16, 64, false>"),
    Tensor("attention_wgmma_backward", "query_gradients<bf16, 128, false>"),
    Tensor("attention_wgmma_backward", "key_gradients<bf16, 64, false>"),
    Tensor("attention_wgmma_backward", "key_gradients<bf16, 128, false>"),
    # one kernel with five products, instead of the two above
    Tensor("attention_mma_backward", "gradients<bf16, 64, false>"),
    Tensor("attention_mma_backward", "gradients<bf16, 128, false>"),
    Tensor("attention_wgmma_backward", "gradients<bf16, 64, false>"),
    Tensor("attention_wgmma_backward", "gradients<bf16, 128, false>"),
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

LATENCY = 800      # cycles of a load from busy memory
STARTS = range(300, 1400, 110)  # cycles from one warp's start to the next one's
QUEUE = 32          # cycles of work that the queues to memory and to HGMMA take in advance
GROUP_LATENCY = 30  # cycles from the last product of a group to its end
JITTER = 64         # cycles that a barrier in shared memory may take longer, at random
BARRIER_LATENCY = 20  # cycles from a block's barrier's end until its warps go on
STUCK = 100000      # cycles without an instruction: the loop waits for something outside it
NO_BARRIER = 7

# ---- a scheduler

# instructions; cycles of shared memory for tensor copies that come with each product
Body = collections.namedtuple("Body", "code copies turns")


class Warp:
    def __init__(self, start, block, group):
        self.place = 0
        self.ready = start
        self.block, self.group = block, group
        self.waits = False       # at a barrier of the block
        self.barriers = [0] * 6  # when each was last released
        self.groups = []         # when each group of products is done


class BlockBarriers:
    """Barriers of blocks (BAR). A block has `groups` warps on this scheduler, one of each warp
    group, so that a barrier of 128 threads concerns one of them. The other warps of a group, on
    other schedulers, are assumed to arrive at the same time.

    If a register holds the barrier's number, it is one barrier for all. But if warps arrive at such
    barriers as often as they wait, these give turns: a warp waits for its own barrier, and arrives
    at that of the next group."""

    def __init__(self, groups, turns):
        self.groups, self.turns = groups, turns
        self.arrived, self.waiting = collections.Counter(), collections.defaultdict(list)

    def arrive(self, warp, instruction, now):
        barrier = cubin.barrier_of(instruction)
        wanted = (barrier.threads or 128 * self.groups) // 128
        wanted, key = max(min(wanted, self.groups), 1), barrier.id
        if key is None and self.turns and wanted > 1:
            wanted, key = 2, "turn %d" % ((warp.group + barrier.arrives) % self.groups)
            if key == "turn 0" and not self.arrived[warp.block, "given"]:
                self.arrived[warp.block, "given"] = 1  # before the loop
                self.arrived[warp.block, key] += 1
        key = warp.block, key
        self.arrived[key] += 1
        if not barrier.arrives:
            warp.waits = True
            self.waiting[key].append(warp)
        if self.arrived[key] >= wanted:
            self.arrived[key] -= wanted
            for other in self.waiting.pop(key, []):
                other.waits = False
                other.ready = max(other.ready, now + BARRIER_LATENCY)


def may_issue(warp, instruction, now):
    if warp.waits or warp.ready > now or any(
            instruction.wait >> b & 1 and warp.barriers[b] > now for b in range(6)):
        return False
    if instruction.operation != WARPGROUP or instruction.group is None:
        return True
    awaited = warp.groups[:len(warp.groups) - instruction.group]
    return not awaited or awaited[-1] <= now


def start_group_product(warp, instruction, now, free, busy, machine, copies):
    """A product of a warp group is queued and runs beside the warp. It does not end before shared
    memory has brought its operands. Loads and stores of warps come before those in shared memory,
    and take its time from them."""
    if free["tensor"] - now > QUEUE:
        return None
    start, cycles = max(now, free["tensor"]), group_cycles(instruction, machine)
    reads = operand_cycles(instruction) + copies
    free["operands"] = max(now, free["operands"]) + reads
    free["tensor"] = max(start + cycles, free["operands"])
    busy["tensor"] += cycles
    busy["memory"] += reads
    if instruction.group:
        warp.groups = warp.groups[-8:] + [free["tensor"] + GROUP_LATENCY]
    return start


def delay_after(name, instruction, chance):
    """Cycles that a warp waits beyond the stall that the compiler has written."""
    if name == "SYNCS":
        return chance.randrange(JITTER)
    if instruction.operation == MEMBAR:
        return FENCE_LATENCY if cubin.fences_gpu(instruction) else BARRIER_LATENCY
    return 0


def issue(warp, instruction, now, free, busy, machine, copies=0.0):
    """Returns whether the pipe took it."""
    name, pipe, _, latency = operation(instruction)
    cycles, start = pipe_cycles(instruction, machine), now
    if instruction.predicate == NEVER:
        pipe, cycles = "alu", 1
    if name == "HGMMA":
        start = start_group_product(warp, instruction, now, free, busy, machine, copies)
        if start is None:
            return False
        pipe, cycles = "control", 0
    elif pipe == "memory":
        if free[pipe] - now > QUEUE:
            return False
        start = max(free[pipe], now)
        free[pipe] = start + cycles
        free["operands"] = max(free["operands"], start) + cycles
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
    warp.ready = now + max(instruction.stall, 1)
    return True


def body_of(code, copies=0):
    """copies: tensor copies that a round of one warp needs."""
    named = [cubin.barrier_of(i) for i in code if i.operation == BAR and i.predicate != NEVER]
    in_registers = [b.arrives for b in named if b.id is None]
    products = count(code, *PRODUCTS)
    return Body(code, copies * TENSOR_COPY / SHARED_BYTES / products if copies else 0,
                sum(in_registers) * 2 == len(in_registers))


def replay_from(start, body, warps, machine, rounds, groups):
    """Cycles of a scheduler for a round of one warp, where all are at it, and those that each pipe
    is busy; the warp that issued last goes first. groups: warps of a block."""
    all_warps = [Warp(i * start, i // groups, i % groups) for i in range(warps)]
    chance = random.Random(start)
    free, busy, ends = collections.Counter(), collections.Counter(), []
    blocks = BlockBarriers(groups, body.turns)
    now, last, issued = 0, all_warps[0], 0
    while len(ends) < rounds * warps:
        for warp in [last] + [w for w in all_warps if w is not last]:
            instruction = body.code[warp.place]
            if not may_issue(warp, instruction, now):
                continue
            if not issue(warp, instruction, now, free, busy, machine, body.copies):
                continue
            if instruction.operation == BAR and instruction.predicate != NEVER:
                blocks.arrive(warp, instruction, now)
            warp.ready += delay_after(operation(instruction)[0], instruction, chance)
            last, issued = warp, now
            warp.place += 1
            if warp.place == len(body.code):
                warp.place = 0
                ends.append(now)
            break
        now += 1
        if now - issued > STUCK:
            raise Unknown("its warps wait for something outside of the loop")
    begin, end = len(ends) // 4, len(ends) * 3 // 4
    pipes = {p: busy[p] / len(ends) for p in busy}
    return max((ends[end] - ends[begin]) / (end - begin), *pipes.values()), pipes


def replay(code, warps, machine, rounds=24, groups=1, copies=0):
    """Mean over several starts, because the start affects how warps interleave."""
    body = body_of(code, copies)
    results = [replay_from(start, body, warps, machine, rounds, groups) for start in STARTS]
    return sum(cycles for cycles, _ in results) / len(results), results[0][1]


# ---- figures

def warps_of(held, threads, idle):
    """Warps of a scheduler that run the loop, and those of one block among them."""
    of_block = threads // 32 or held
    groups = max((of_block - idle) // SCHEDULERS, 1)
    return max(held // of_block, 1) * groups, groups


def tensor_figures(kernel, code, held, threads, machine):
    """held: warps of a multiprocessor; threads: of a block."""
    body = round_of(code, kernel.inner)
    first, last = hot_loop(code)
    warps, groups = warps_of(held, threads, kernel.idle)
    copies = count(code[first:last + 1], UTMALDG) + kernel.copies * 1024 / TENSOR_COPY
    cycles, pipes = replay(body, warps, machine, groups=groups,
                           copies=copies / groups)  # a tile is fetched for the block
    cost = sum(group_cycles(i, machine) if i.operation == HGMMA else machine.hmma
               for i in body if i.operation in PRODUCTS and i.predicate != NEVER)
    products = flops(body) / (2 * 16 * 64 * 16 if count(body, HGMMA) else 2 * 16 * 8 * 16)
    busiest = max((p for p in pipes if p != "control"), key=pipes.get)
    second = 1e9 * machine.clock * machine.multiprocessors * SCHEDULERS
    return {"kind": "tensor", "instructions": len(body) / products, "busiest": busiest,
            "share": min(cost / cycles, 1), "tflops": flops(body) / cycles * second / 1e12}


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
        found = [(code, threads) for name, code, threads in cubin.kernels(base + ".cubin")
                 if names.get(name) == kernel.name]
        held = warps.get((kernel.file, kernel.name))
        if not found or not held:
            if "gradients<" in kernel.name:  # one of two ways to compute them
                continue
            sys.exit("cuda_replay: %s has no kernel %s" % (kernel.file, kernel.name))
        code, threads = found[0]
        try:
            if isinstance(kernel, Tensor):
                figure = tensor_figures(kernel, code, held, threads, machine)
            else:
                figure = memory_figures(kernel, code, held, machine)
        except Unknown as problem:
            sys.exit("cuda_replay: %s, %s: %s" % (kernel.file, kernel.name, problem))
        figures["%s/%s" % (kernel.file, kernel.name)] = figure
        print_figure(kernel.file, kernel.name, held, figure)
    return figures


def main():
    path, held, *options = sys.argv[1:]
    with open(path, "rb") as file:
        machine = MACHINES[90 if cubin.architecture(file.read(64)) >= 90 else 80]
    kernel = Tensor("", "", 0, *(int(number) for number in options[:2]))
    for name, code, threads in cubin.kernels(path):
        if count(code, *PRODUCTS) and (len(options) < 3 or options[2] in name):
            figure = tensor_figures(kernel, code, int(held), threads, machine)
            print("%s\tshare %.3f\tTFLOP/s %.0f\tinstructions %.2f\tbusiest %s"
                  % (name, figure["share"], figure["tflops"], figure["instructions"],
                     figure["busiest"]))


if __name__ == "__main__":
    main()
