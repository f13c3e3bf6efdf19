#!/usr/bin/env python3
"""Reads the machine code of CUDA kernels (ELF files of nvcc -cubin), without the toolkit's tools.

    cubin.py FILE.cubin ...

counts instructions that move memory and multiply matrices. One line a kernel, fields parted by
tabs: mangled name, instructions, tensor-core products (HMMA, HGMMA), 128-bit global loads, 128-bit
global stores, ldmatrix, asynchronous copies of 16 bytes to shared memory, accesses to local memory,
the threads of a block by __launch_bounds__ (0: not given), and conversions of 16-bit floats to
integers.

An instruction of sm_70 and later has 16 bytes. As cuobjdump -sass shows them for sm_80 and sm_90:
bits 0..8 are the operation and 9..11 the form of its operands; 73..75 the width of a memory access
(0 and 1: 8 bits, 2 and 3: 16, 4: 32, 5: 64, 6: 128). F2I: bit 85 is set if it converts fp32.

Products of warp groups (HGMMA): 53..57 are N / 8 - 1 of m64nNk16; 84..86 are 7 unless the product
ends a group. WARPGROUP: if bit 80 is set, it waits until at most as many groups as in bits 72..79
are in flight. Matrices of 8 x 8 that LDSM and STSM move: 1, 2 or 4, as 72..73 count.

Registers: bits 16..23 are the destination, 24..31 the first operand, 64..71 the last one, and
32..39 the one between, if the form is 1; 255 is none, and so is mostly 0, which fields without a
use hold. Stores have their data in 32..39.
"""
import collections
import struct
import sys

Instruction = collections.namedtuple("Instruction", "at operation form width group registers"
                                     " low high")

HMMA, HGMMA, WARPGROUP, BRA, F2I = 0x03C, 0x1F0, 0x1C5, 0x147, 0x105
LDG, STG, LDSM, STSM, LDGSTS, LDL, STL = 0x181, 0x186, 0x03B, 0x044, 0x1AE, 0x183, 0x187
WIDTH_128 = 6
REGISTER_FORM = 1
A_IN_REGISTERS = 6  # the form of such a product of a warp group
MAX_THREADS = 0x05  # an attribute in .nv.info.KERNEL: three 32-bit numbers
SIZED = 0x04        # the format of attributes that have a size of their own


def sections(data):
    """Name, offset and bytes of each section of an ELF file."""
    table, = struct.unpack_from("<Q", data, 0x28)
    size, count, name_section = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
    names = headers[name_section][4]
    for header in headers:
        start = names + header[0]
        yield data[start:data.index(b"\0", start)].decode(), header[4], header[5]


def launch_bound(data, offset, size):
    """The threads of a block by __launch_bounds__; 0: not given."""
    at, end = offset, offset + size
    while at + 4 <= end:
        form, attribute, length = struct.unpack_from("<BBH", data, at)
        if form == SIZED and attribute == MAX_THREADS:
            x, y, z = struct.unpack_from("<III", data, at + 4)
            return x * y * z
        at += 4 + (length if form == SIZED else 0)
    return 0


def group_of(operation, high):
    """Product: True if it ends a group. Wait: groups that may stay in flight. Else None."""
    if operation == HGMMA:
        return high >> 20 & 7 != 7
    return high >> 8 & 0xFF if operation == WARPGROUP and high >> 16 & 1 else None


def columns(product):
    """N of an HGMMA, which is m64nNk16."""
    return ((product.low >> 53 & 31) + 1) * 8


def matrices(instruction):
    """Number of 8 x 8 matrices of 16-bit values that LDSM or STSM moves."""
    return (1, 2, 4, 4)[instruction.high >> 8 & 3]


def converts_half(instruction):
    """True if an F2I converts a 16-bit float. No kernel means to: nvcc 13.0 has compiled the copy of
    a rounded value's low byte to that."""
    return instruction.operation == F2I and not instruction.high >> 21 & 1


def decode(code):
    """The instructions of a kernel."""
    decoded = []
    for at in range(0, len(code) - 15, 16):
        low, high = struct.unpack_from("<QQ", code, at)
        operation, form = low & 0x1FF, low >> 9 & 7
        between = low >> 32 & 255 if form == REGISTER_FORM else 255
        registers = low >> 16 & 255, low >> 24 & 255, between, high & 255
        decoded.append(Instruction(at, operation, form, high >> 9 & 7,
                                   group_of(operation, high), registers, low, high))
    return decoded


def kernels(path):
    """Mangled name, instructions, and the threads of __launch_bounds__, of each kernel."""
    with open(path, "rb") as file:
        data = file.read()
    parts = {name: (offset, size) for name, offset, size in sections(data)}
    for name, (offset, size) in parts.items():
        if name.startswith(".text."):
            kernel = name[len(".text."):]
            yield (kernel, decode(data[offset:offset + size]),
                   launch_bound(data, *parts.get(".nv.info." + kernel, (0, 0))))


def main():
    for path in sys.argv[1:]:
        for name, code, bound in kernels(path):
            seen = collections.Counter(i.operation for i in code)
            wide = collections.Counter(i.operation for i in code if i.width == WIDTH_128)
            print(name, len(code), seen[HMMA] + seen[HGMMA], wide[LDG], wide[STG], seen[LDSM],
                  wide[LDGSTS], seen[LDL] + seen[STL], bound, sum(map(converts_half, code)),
                  sep="\t")


if __name__ == "__main__":
    main()
