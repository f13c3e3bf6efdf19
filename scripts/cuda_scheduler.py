"""A model of one of the four schedulers of a multiprocessor: an issue slot, pipes, queues to memory
and to the tensor cores, and barriers. The compiler writes into each instruction how long to wait
and for what, so that registers need not be known. NOT MEASUREMENTS: see cuda_estimates.md.
"""
import collections
import random

import cubin
from cubin import BAR, MEMBAR, NEVER, WARPGROUP
from cuda_loops import PRODUCTS, count
from cuda_machine import (FENCE_LATENCY, SHARED_BYTES, TENSOR_COPY, Unknown, group_cycles,
                          operand_cycles, operation, pipe_cycles)

STARTS = range(300, 1400, 110)  # cycles from one warp's start to the next one's
QUEUE = 32          # cycles of work that the queues to memory and to HGMMA take in advance
GROUP_LATENCY = 30  # cycles from the last product of a group to its end
JITTER = 64         # cycles that a barrier in shared memory may take longer, at random
BARRIER_LATENCY = 20  # cycles from a block's barrier's end until its warps go on
STUCK = 100000      # cycles without an instruction: the loop waits for something outside it
NO_BARRIER = 7

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
