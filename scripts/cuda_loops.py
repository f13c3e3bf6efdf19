"""Finds the loop of a kernel that its time depends on, in its machine code."""
from cubin import (BAR, HGMMA, HMMA, LDG, LDGSTS, NEVER, STG, STSM, always_taken,
                   is_exponential)
from cuda_machine import Unknown, flop

PRODUCTS = (HMMA, HGMMA)
# RED, REDG, ATOMG and STS beside those with names
MOVES = (LDG, STG, LDGSTS, STSM, BAR, 0x188, 0x18E, 0x1A6, 0x1A8) + PRODUCTS


def count(code, *wanted):
    return sum(i.operation in wanted and i.predicate != NEVER for i in code)


def flops(code):
    return sum(flop(i) for i in code if i.predicate != NEVER)


def loops(code):
    """First and last index of each loop: a branch back. A branch from the end of the kernel into
    the middle of a loop is no loop: a thread waits there if it found a barrier unfinished."""
    index = {i.at: n for n, i in enumerate(code)}
    back = [(index[i.target], n) for n, i in enumerate(code)
            if i.target is not None and i.target < i.at and i.target in index]
    return [(a, b) for a, b in back if not any(c < a <= d < b for c, d in back)]


def innermost(found):
    return [(a, b) for a, b in found
            if not any((c, d) != (a, b) and a <= c and d <= b for c, d in found)]


def hot_loop(code):
    """The innermost loop on tensor cores with the fewest instructions for its products: the one for
    tiles that need no mask. It has exponentials if a loop with products has some; there may be
    loops without them in it. A loop that only waits for a barrier or a flag has no products."""
    found = [(a, b) for a, b in loops(code) if count(code[a:b + 1], *PRODUCTS)]
    if not found:
        raise Unknown("there is no loop with tensor-core products")
    exponential = [(a, b) for a, b in found if any(map(is_exponential, code[a:b + 1]))]
    return min(innermost(exponential or found),
               key=lambda at: (at[1] - at[0] + 1) / flops(code[at[0]:at[1] + 1]))


def of_two_ways(code, n, ahead, last, index):
    """A conditional branch ahead, with a branch without a predicate before its target, chooses one of
    two ways. Returns True if the second one is taken: the one with more products, or else the
    shorter one, because rare cases are longer. None: the branch does not choose so."""
    end = index.get(code[ahead - 1].target, -1) if always_taken(code[ahead - 1]) else -1
    if not ahead < end <= last:
        return None
    ways = code[n + 1:ahead - 1], code[ahead:end]
    products = [count(way, *PRODUCTS) for way in ways]
    if products[0] != products[1]:
        return products[1] > products[0]
    return len(ways[1]) < len(ways[0])


def path(code, first, last):
    """Instructions of one iteration. Forward branches are taken if they have no predicate, or if they
    skip no product, barrier or memory access, because these skip rare cases (a new maximum, an
    end). Branches back within it are not: a loop that waits for a flag passes once."""
    index = {i.at: n for n, i in enumerate(code)}
    done, n = [], first
    while n <= last:
        now = code[n]
        done.append(now)
        ahead = index.get(now.target, -1) if now.target is not None else -1
        if n < ahead <= last:
            second = of_two_ways(code, n, ahead, last, index)
            rare = not count(code[n + 1:ahead], *MOVES) if second is None else second
            if always_taken(now) or rare:
                n = ahead
                continue
        n += 1
    return done


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
