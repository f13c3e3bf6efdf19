#!/usr/bin/env python3
"""Checks that registers of a warp group's products are left alone until the wait for them.

    cubin_in_flight.py FILE.cubin ...

The products (HGMMA) run while the warp goes on: until WARPGROUP waits for their group, their sums
must be neither read nor written, and A in registers not written. The compiler promises that only if
it understands the waits. Instructions are followed in their order in memory, a loop once. One line
a kernel with products: mangled name, products, instructions that touch a register in flight. Exit
status 1 if there are any, or if the check would find none without the waits.
"""
import sys

import cubin

OF_A = 4  # registers of A in m64nNk16; the sums take N / 2
UNIFORM = range(0x80, 0xC0)  # operations on the registers of a warp as a whole
TO_UNIFORM = {0xCA, 0x1C2, 0x1C3}  # R2UR, S2UR: the destination is one of those
# with ELECT, SYNCS.EXCH, the bulk copies and reductions, the fence before them, and USETMAXREG
NO_REGISTERS = {cubin.BRA, cubin.WARPGROUP, 0x2F, 0x1B2, *range(0x1B4, 0x1BD), 0x1C6, 0x1C8}
MIDDLE = {0x0B, 0x0C, 0x1A7}  # FSETP, ISETP, SYNCS: no destination and no last register
REDG = 0x1A6  # a reduction of 1, 2 or 4 floats
STORES = {0x185, 0x186, 0x187, 0x188, cubin.STSM, 0x18E, REDG}  # ST, STG, STL, STS, RED
MEMORY = STORES | {0x180, 0x181, 0x182, 0x183, 0x184, cubin.LDSM}  # LD, LDG, LDC, LDL, LDS


def registers_of(i):
    """Number of registers that a load fills or a store empties."""
    if i.operation in (cubin.LDSM, cubin.STSM):
        return cubin.matrices(i)
    if i.operation == REDG:
        return {2: 2, 3: 4}.get(i.width, 1)
    return {5: 2, 6: 4}.get(i.width, 1) if i.operation in MEMORY else 1


def used(i):
    """Registers that an instruction writes, and those that it reads."""
    if i.operation in UNIFORM or i.operation in NO_REGISTERS:
        return set(), set()
    if i.operation in MIDDLE:
        return set(), set(i.registers[1:3]) - {0, 255}
    count = registers_of(i)
    to = set(range(i.registers[0], i.registers[0] + count))
    read = set(i.registers[1:])
    if i.operation in TO_UNIFORM:
        to = set()
    if i.operation in STORES:
        data = i.low >> 32 & 255
        to, read = set(), read | set(range(data, data + count))
    return to - {0, 255}, read - {0, 255}


def check(code):
    """Number of products, and the addresses of instructions that touch registers in flight."""
    groups, sums, of_a, products, touches = [], set(), set(), 0, []
    for i in code:
        if i.operation == cubin.HGMMA:
            products += 1
            sums |= set(range(i.registers[0], i.registers[0] + cubin.columns(i) // 2))
            if i.form == cubin.A_IN_REGISTERS:
                of_a |= set(range(i.registers[1], i.registers[1] + OF_A))
            if i.group:
                groups.append((sums, of_a))
                sums, of_a = set(), set()
        elif i.operation == cubin.WARPGROUP and i.group is not None:
            groups = groups[len(groups) - i.group:] if i.group < len(groups) else groups
            groups = groups if i.group else []
        else:
            running = groups + [(sums, of_a)]
            all_sums = set().union(*(g[0] for g in running))
            all_a = set().union(*(g[1] for g in running))
            to, read = used(i)
            if (to | read) & all_sums or to & all_a:
                touches.append(i.at)
    return products, touches


def main():
    found = False
    for path in sys.argv[1:]:
        for name, code, _ in cubin.kernels(path):
            products, touches = check(code)
            if not products:
                continue
            print(name, products, *(f"{at:#x}" for at in touches), sep="\t")
            without_waits = check([i for i in code if i.operation != cubin.WARPGROUP])[1]
            if not without_waits:
                print(f"{name}: the check does not see missing waits", file=sys.stderr)
            found = found or bool(touches) or not without_waits
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
