#!/usr/bin/env python3
"""Simulates the turns in which blocks of attention's backward pass add to dQ, as in
kernels/cuda/attention_backward.h. NOT A MEASUREMENT: see cuda_estimates.md.

    cuda_turns.py       share of the multiprocessors' time that is work, for some shapes

Blocks take work by a counter. Each has a tile of keys, and passes over the tiles of queries that see
it, from the last to the diagonal, a step for each head that reads the keys. After a step it waits
until the block of the keys before has added to the same queries. Time is in steps.
"""
import collections
import heapq
import itertools
import math

# heads: of keys, of all sequences; tiles: of 128 keys; readers: query heads of a key head
Shape = collections.namedtuple("Shape", "name heads tiles readers width")
SHAPES = [Shape("124M, 32 x 1024", 384, 8, 1, 64), Shape("1.5B, 8 x 1024", 200, 8, 1, 64),
          Shape("124M, 8 x 4096", 96, 32, 1, 64), Shape("16 heads of 128, 8 x 1024", 128, 8, 1, 128),
          Shape("12 heads of 128, 4 x 4096", 48, 32, 1, 128),
          Shape("Llama 8B, 4 x 2048", 32, 16, 4, 128), Shape("Llama 8B, 1 x 8192", 8, 64, 4, 128)]
MULTIPROCESSORS = 132
EDGE = 1.0    # a block's begin and end
PASSED = 0.45  # from the end of a step until the next block sees its turn


def group_of(shape):
    """Heads whose keys and values stay in the L2 cache, as attention_group in attention_mma.h."""
    fitting = max(min((16 << 20) // (shape.tiles * 128 * shape.width * 4), shape.heads), 1)
    return math.ceil(shape.heads / math.ceil(shape.heads / fitting))


def work_of(shape, group):
    """Head and key tile of each piece of work, in the order of the counter."""
    return [(head, tile) for first in range(0, shape.heads, group) for tile in range(shape.tiles)
            for head in range(first, min(first + group, shape.heads))]


def steps_of(shape, tile):
    """Query tile and reader of each step; heads of 128 values have two steps for 128 queries."""
    halves = shape.width // 64
    return [(query, reader) for query in reversed(range(tile * halves, shape.tiles * halves))
            for reader in range(shape.readers)]


def simulate(shape, group, multiprocessors=MULTIPROCESSORS, edge=lambda: EDGE):
    """Returns the end of the last block, and the order in which key tiles were added to each sum."""
    work, events, order = iter(work_of(shape, group)), [], itertools.count()
    added, waiting, end = collections.defaultdict(list), {}, 0.0

    def at(time, what, block):
        heapq.heappush(events, (time, next(order), what, block))

    def start(time):
        piece = next(work, None)
        if piece:
            at(time + edge(), "step", (*piece, iter(steps_of(shape, piece[1])), None))

    def begin_step(time, block):
        head, tile, steps, _ = block
        step = next(steps, None)
        if step:
            at(time + 1, "step", (head, tile, steps, step))
        else:
            start(time)
        return step is None

    for _ in range(multiprocessors):
        start(0.0)
    while events:
        time, _, what, block = heapq.heappop(events)
        head, tile, steps, step = block
        if what == "pass":
            added[head, step].append(tile)
            block = waiting.pop((head, step, tile + 1), None)
            if not block:
                continue
        elif step and len(added[head, step]) < tile:
            waiting[head, step, tile] = block
            continue
        if block[3]:
            at(time + PASSED, "pass", block)
        if begin_step(time, block):
            end = max(end, time)
    assert not waiting, "blocks wait for each other"
    return end, added


def share(shape):
    steps = sum(len(steps_of(shape, tile)) + EDGE for _, tile in work_of(shape, 1))
    return steps / MULTIPROCESSORS / simulate(shape, group_of(shape))[0]


if __name__ == "__main__":
    for one in SHAPES:
        print("%-28s %.3f" % (one.name, share(one)))
