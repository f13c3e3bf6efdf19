"""Estimates what share of memory's rate a kernel reaches, from its machine code. NOT MEASUREMENTS:
see cuda_estimates.md.

The warps of a scheduler run the kernel's path again and again, as blocks follow one another. Loads
come back after the latency of memory and in the order of a queue that moves the scheduler's share
of the memory's rate. So the result falls with few warps (few bytes in flight), with barriers and
loads that wait for loads, and with many or slow instructions for the bytes (issue slots and pipes).
"""
import collections
import math
import random

import cubin
from cubin import ALWAYS, BRA, BYTES, LDG, LDGSTS, NEVER, STG, always_taken
from cuda_loops import MOVES, count
from cuda_machine import SCHEDULERS, operation
from cuda_scheduler import NO_BARRIER, BlockBarriers, Warp, delay_after, issue, may_issue

# moved, least: bytes of an element (or a parameter, or a logit) that are moved, in whole sectors of
# 32 bytes, and the least possible; stored: those of moved that are written. rounds: of each loop
# that moves arrays; none: one such loop takes most of the kernel's time, and nothing else counts.
# threads: of a block, 0: those of __launch_bounds__. block: elements of a block, 0: of the path.
Memory = collections.namedtuple("Memory", "file name moved least stored rounds threads block",
                                defaults=((), 0, 0))

LATENCY = range(600, 1000)  # cycles of a load from memory, at random, without the queue
READ_LIMIT = 0.93           # of the memory's rate that loads alone reach
TURN_COST = 0.06            # less, if half of the bytes are written: memory turns between the two
CHANNELS = 3                # queues to memory, of which each access takes one at random
SMALLEST = 64               # bytes of an access to memory, if a warp's request needs fewer
INSTRUCTIONS = 4000         # of each warp, in 4 to 24 passes through the path
STARTS = (150, 400)         # cycles from one warp's start to the next one's
EXIT, LDS = 0x14D, 0x184
COMMIT, AWAIT = 0x1AF, 0x11A  # LDGDEPBAR ends a group of asynchronous copies, DEPBAR waits for some
LOADS = (LDG, LDGSTS)


# ---- the path

def is_access(i):
    return i.operation in (LDG, LDGSTS, STG) and i.predicate != NEVER


def copies_left(i):
    """Number of groups of asynchronous copies that may still run after a DEPBAR."""
    return i.low >> 38 & 63


def widest(code):
    return max((BYTES.get(i.width, 0) for i in code if is_access(i)), default=0)


def streams(i, width):
    """True if an access moves the arrays: one of a quarter of the widest accesses' width or less
    reads a value for all lanes, from a cache."""
    return is_access(i) and BYTES.get(i.width, 0) * 4 > width


def skips(code, n, ahead, index, width):
    """True if a branch ahead is taken: always, or if it skips rare cases, or accesses that are all
    narrower than those elsewhere, for elements at an end, or loads of what shared memory has."""
    between = code[n + 1:ahead]
    if always_taken(code[n]):
        return True
    accesses = [i for i in between if is_access(i)]
    if not accesses:
        return not count(between, *MOVES)
    if not any(streams(i, width) for i in accesses):
        return True
    join = index.get(between[-1].target, -1) if always_taken(between[-1]) else -1
    return not count(between, STG) and ahead < join and count(code[ahead:join], LDS) > 0


def stream_path(code, rounds):
    """Instructions of a warp from the kernel's begin to its end, with the rounds of each loop that
    moves arrays. Without rounds, one iteration of the first such loop, if there is one."""
    index, width = {i.at: n for n, i in enumerate(code)}, widest(code)
    path, n, began, left = [], 0, {}, list(rounds)
    while n < len(code) and not (code[n].operation == EXIT and code[n].predicate == ALWAYS):
        now, began[n] = code[n], len(path)
        path.append(now)
        to = index.get(now.target, -1) if now.operation == BRA else -1
        if n < to and skips(code, n, to, index, width):
            n = to
            continue
        if 0 <= to < n and to in began:
            body = path[began[to]:]
            if any(streams(i, width) for i in body):
                if not rounds:
                    return body
                path += body * ((left.pop(0) if left else 1) - 1)
        n += 1
    return path


# ---- memory

class Stream:
    """The queue to memory of a scheduler. Of the loads only those count that the elements need:
    others, as of weights, come from a cache."""

    def __init__(self, kernel, path, machine, start):
        self.width = widest(path)
        stored = sum(32 * BYTES[i.width] for i in path if i.operation == STG and
                     streams(i, self.width))
        loaded = sum(32 * BYTES[i.width] for i in path if i.operation in LOADS and
                     streams(i, self.width))
        self.elements = stored / kernel.stored if kernel.stored else loaded / kernel.moved
        wanted = self.elements * (kernel.moved - kernel.stored)
        self.of_loads = wanted / loaded if loaded else 0
        self.rate = machine.memory / machine.clock / machine.multiprocessors / SCHEDULERS
        written = kernel.stored / kernel.moved
        self.limit = READ_LIMIT - TURN_COST * 4 * written * (1 - written)
        self.chance, self.free = random.Random(start), [0.0] * CHANNELS
        self.copies = collections.defaultdict(int)  # when a warp's copies without a group arrive

    def access(self, warp, i, now):
        if i.operation == COMMIT:
            warp.groups = warp.groups[-8:] + [self.copies.pop(warp, now)]
        if not streams(i, self.width):
            return
        size = max(32 * BYTES[i.width], SMALLEST) * (self.of_loads if i.operation in LOADS else 1)
        channel = self.chance.randrange(CHANNELS)
        self.free[channel] = (max(self.free[channel], now) +
                              size * CHANNELS / (self.rate * self.limit))
        done = self.free[channel] + self.chance.choice(LATENCY)
        if i.operation == LDG and i.write < len(warp.barriers):
            warp.barriers[i.write] = max(warp.barriers[i.write], done)
        if i.operation == LDGSTS:
            self.copies[warp] = max(self.copies[warp], done)


def awaits_copies(warp, i, now):
    if i.operation != AWAIT:
        return False
    awaited = warp.groups[:len(warp.groups) - copies_left(i)]
    return bool(awaited) and max(awaited) > now


def next_event(warps, path, now):
    """The first cycle after `now` at which a warp may go on."""
    times = [max([w.ready] + [w.barriers[b] for b in range(6) if path[w.place].wait >> b & 1])
             for w in warps if not w.waits]
    later = [t for t in times if t > now]
    return math.ceil(min(later)) if len(later) == len(times) else now + 1


def passes(path, stream, warps, groups, machine, start):
    """Cycles in which each warp passes the path once, on average, and those of the busiest pipe."""
    running = [Warp(i * start, i // groups, i % groups) for i in range(warps)]
    free, busy, ends = collections.Counter(), collections.Counter(), []
    blocks, now, last = BlockBarriers(groups, False), 0, running[0]
    rounds = min(max(INSTRUCTIONS // len(path), 4), 24)
    while len(ends) < rounds * warps:
        for warp in [last] + [w for w in running if w is not last]:
            i = path[warp.place]
            if not may_issue(warp, i, now) or awaits_copies(warp, i, now) or not issue(
                    warp, i, now, free, busy, machine):
                continue
            if i.operation == cubin.BAR and i.predicate != NEVER:
                blocks.arrive(warp, i, now)
            warp.ready += delay_after(operation(i)[0], i, stream.chance)
            stream.access(warp, i, now)
            busy["issue"] += 1
            last, warp.place = warp, (warp.place + 1) % len(path)
            if not warp.place:
                ends.append(now)
            break
        now = next_event(running, path, now) if last.ready > now + 1 else now + 1
    begin, end = len(ends) // 4, len(ends) - 1
    pipes = {p: busy[p] / len(ends) for p in busy if p != "control"}
    return (ends[end] - ends[begin]) / (end - begin), pipes


def in_flight(path, width):
    """Bytes of a warp's loads that are issued before it waits for one of them, with those of
    asynchronous copies that it does not wait for."""
    flying = most = pending = copied = 0
    groups = []
    for i in path * 4:  # copies for later iterations are in flight from the second one on
        if i.wait & pending:
            flying = pending = 0
        if i.operation == LDG and streams(i, width):
            flying += 32 * BYTES[i.width]
            if i.write != NO_BARRIER:
                pending |= 1 << i.write
        if i.operation == LDGSTS and streams(i, width):
            copied += 32 * BYTES[i.width]
        if i.operation == COMMIT:
            groups, copied = groups + [copied], 0
        if i.operation == AWAIT:
            groups = groups[max(len(groups) - copies_left(i), 0):]
        most = max(most, flying + copied + sum(groups))
    return most


def memory_figures(kernel, code, held, threads, machine):
    """held: warps of a multiprocessor; threads: of a block by __launch_bounds__. tail: nanoseconds
    at a kernel's end in which half of a block's work is left and memory is no longer the limit."""
    path = stream_path(code, kernel.rounds)
    of_block = (kernel.threads or threads) // 32 or held
    groups = max(of_block // SCHEDULERS, 1)
    warps = max(held // SCHEDULERS // groups, 1) * groups
    stream, cycles, pipes = None, 0, {}
    for start in STARTS:
        stream = Stream(kernel, path, machine, start)
        one, pipes = passes(path, stream, warps, groups, machine, start)
        cycles += one / len(STARTS)
    alone, _ = passes(path, Stream(kernel, path, machine, 0), groups, groups, machine, 0)
    paths = kernel.block / (stream.elements * of_block) if kernel.block else 1
    needed = stream.elements * kernel.moved / stream.rate
    busiest = max(pipes, key=pipes.get)
    if needed > pipes[busiest]:
        busiest = "memory" if needed / cycles > 0.9 * stream.limit else "latency"
    return {"kind": "memory", "busiest": busiest, "share": min(needed / cycles, stream.limit),
            "in_flight": in_flight(path, stream.width) * warps * SCHEDULERS, "moved": kernel.moved,
            "moved_to_least": kernel.moved / kernel.least,
            "tail": alone * groups * paths / 2 / machine.clock}
