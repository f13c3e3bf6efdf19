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

SUMS, OF_A = 32, 4  # registers of m64n64k16
A_IN_REGISTERS = 6  # the form of a product whose A is not a tile
UNIFORM = range(0x80, 0xC0)  # operations on the registers of a warp as a whole
TO_UNIFORM = {0xCA, 0x1C2, 0x1C3}  # R2UR, S2UR: the destination is one of those
NO_REGISTERS = {cubin.BRA, cubin.WARPGROUP}
MIDDLE = {0x0B, 0x0C, 0x1A7}  # FSETP, ISETP, SYNCS: no destination and no last register
STORES = {0x186, 0x187, 0x188}  # STG, STL, STS
WIDTHS = {5: 2, 6: 4}  # registers of an access of 64 and 128 bits
MEMORY = STORES | {0x181, 0x182, 0x183, 0x184}  # LDG, LDC, LDL, LDS


def used(i):
    """Registers that an instruction writes, and those that it reads."""
    if i.operation in UNIFORM or i.operation in NO_REGISTERS:
        return set(), set()
    if i.operation in MIDDLE:
        return set(), set(i.registers[1:3]) - {0, 255}
    count = WIDTHS.get(i.width, 1) if i.operation in MEMORY else 1
    to = set(range(i.registers[0], i.registers[0] + count))
    read = set(i.registers[1:])
    if i.operation in TO_UNIFORM:
        to = set()
    if i.operation in STORES:
        to, read = set(), read | set(range(i.registers[2], i.registers[2] + count))
    return to - {0, 255}, read - {0, 255}


def check(code):
    """Number of products, and the addresses of instructions that touch registers in flight."""
    groups, sums, of_a, products, touches = [], set(), set(), 0, []
    for i in code:
        if i.operation == cubin.HGMMA:
            products += 1
            sums |= set(range(i.registers[0], i.registers[0] + SUMS))
            if i.form == A_IN_REGISTERS:
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
