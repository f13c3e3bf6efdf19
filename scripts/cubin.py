#!/usr/bin/env python3
"""Reads the machine code of CUDA kernels (ELF files of nvcc -cubin), without the toolkit's tools.

    cubin.py FILE.cubin ...

counts instructions that move memory and multiply matrices. One line a kernel, fields parted by
tabs: mangled name, instructions, tensor-core products (HMMA, HGMMA), 128-bit global loads, 128-bit
global stores, ldmatrix, asynchronous copies of 16 bytes to shared memory, accesses to local memory,
and the threads of a block by __launch_bounds__ (0: not given).

An instruction of sm_70 and later has 16 bytes. As cuobjdump -sass shows them for sm_80 and sm_90:
bits 0..8 are the operation and 9..11 the form of its operands; 12..15 the predicate, of which 7 is
"always" and 15 "never"; 73..75 the width of a memory access (0 and 1: 8 bits, 2 and 3: 16, 4: 32,
5: 64, 6: 128). The bits from 105 on are the compiler's scheduling: cycles until the next
instruction may be issued, a yield flag, the barriers that are released when the result is ready and
when operands have been read (7: none), and the barriers that the instruction waits for.

Products of warp groups (HGMMA): 53..57 are N / 8 - 1 of m64nNk16; 84..86 are 7 unless the product
ends a group. WARPGROUP: if bit 80 is set, it waits until at most as many groups as in bits 72..79
are in flight. Barriers of a block (BAR): 77..79 are 1 if it only arrives; 54..57 are the barrier,
unless the form is 1 or 2 (then a register holds it), and 42..53 the threads, 0 for the whole block,
unless the form is 1 or 4. Fences (MEMBAR): 76..77 are 0 for the block, 2 for the GPU, 3 for the
system. Matrices of 8 x 8 that LDSM and STSM move: 1, 2 or 4, as 72..73 count. MUFU: 74..77 are
the function, 2 for a power of two.

Registers: bits 16..23 are the destination, 24..31 the first operand, 64..71 the last one, and
32..39 the one between, if the form is 1; 255 is none, and so is mostly 0, which fields without a
use hold. Stores have their data in 32..39.
"""
import collections
import struct
import sys

Instruction = collections.namedtuple(
    "Instruction", "at operation form predicate width stall write read wait target group registers"
    " low high")
# id: None if a register holds it; threads: 0 for the whole block, None if a register holds them
Barrier = collections.namedtuple("Barrier", "id threads arrives")

HMMA, HGMMA, WARPGROUP, BRA, MUFU = 0x03C, 0x1F0, 0x1C5, 0x147, 0x108
LDG, STG, LDSM, STSM, LDGSTS, LDL, STL = 0x181, 0x186, 0x03B, 0x044, 0x1AE, 0x183, 0x187
BAR, SYNCS, MEMBAR, UTMALDG = 0x11D, 0x1A7, 0x192, 0x1B4
BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 8, 6: 16}  # of a lane, by the width of an access
WIDTH_128 = 6
REGISTER_FORM = 1
A_IN_REGISTERS = 6  # the form of such a product of a warp group
ALWAYS, NEVER = 7, 15  # as predicates
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


def architecture(data):
    """90 for sm_90."""
    flags, = struct.unpack_from("<I", data, 0x30)
    return flags >> 8 & 0xFF


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


def branch_target(at, word, arch):
    """Target of a branch at byte `at` of its kernel."""
    distance = word >> 34 & (1 << 48) - 1
    if distance >> 47:
        distance -= 1 << 48
    if arch >= 90:
        distance = distance << 8 | word >> 16 & 0xFF
    return at + 16 + 4 * distance


def group_of(operation, high):
    """Product: True if it ends a group. Wait: groups that may stay in flight. Else None."""
    if operation == HGMMA:
        return high >> 20 & 7 != 7
    return high >> 8 & 0xFF if operation == WARPGROUP and high >> 16 & 1 else None


def columns(product):
    """N of an HGMMA, which is m64nNk16."""
    return ((product.low >> 53 & 31) + 1) * 8


def barrier_of(instruction):
    """The barrier of a BAR."""
    return Barrier(None if instruction.form in (1, 2) else instruction.low >> 54 & 15,
                   None if instruction.form in (1, 4) else instruction.low >> 42 & 0xFFF,
                   instruction.high >> 13 & 7 == 1)


def matrices(instruction):
    """Number of 8 x 8 matrices of 16-bit values that LDSM or STSM moves."""
    return (1, 2, 4, 4)[instruction.high >> 8 & 3]


def fences_gpu(instruction):
    """True if a MEMBAR orders accesses beyond those of the block."""
    return instruction.high >> 12 & 3 >= 2


def is_exponential(instruction):
    return instruction.operation == MUFU and instruction.high >> 10 & 15 == 2


def decode(code, arch):
    """The instructions of a kernel."""
    decoded = []
    for at in range(0, len(code) - 15, 16):
        low, high = struct.unpack_from("<QQ", code, at)
        operation, control = low & 0x1FF, high >> 41
        target = branch_target(at, low | high << 64, arch) if operation == BRA else None
        between = low >> 32 & 255 if low >> 9 & 7 == REGISTER_FORM else 255
        registers = low >> 16 & 255, low >> 24 & 255, between, high & 255
        decoded.append(Instruction(at, operation, low >> 9 & 7, low >> 12 & 15, high >> 9 & 7,
                                   control & 15, control >> 5 & 7, control >> 8 & 7,
                                   control >> 11 & 63, target, group_of(operation, high), registers,
                                   low, high))
    return decoded


def always_taken(instruction):
    """True for a branch without a predicate: neither the usual one, in the bits from 87 on a second
    one, nor that of a warp (another form)."""
    return (instruction.operation == BRA and instruction.predicate == ALWAYS and
            instruction.form == 4 and instruction.high >> 23 & 7 == ALWAYS)


def kernels(path):
    """Mangled name, instructions, and the threads of __launch_bounds__, of each kernel."""
    with open(path, "rb") as file:
        data = file.read()
    parts = {name: (offset, size) for name, offset, size in sections(data)}
    for name, (offset, size) in parts.items():
        if name.startswith(".text."):
            kernel = name[len(".text."):]
            yield (kernel, decode(data[offset:offset + size], architecture(data)),
                   launch_bound(data, *parts.get(".nv.info." + kernel, (0, 0))))


def main():
    for path in sys.argv[1:]:
        for name, code, bound in kernels(path):
            seen = collections.Counter(i.operation for i in code)
            wide = collections.Counter(i.operation for i in code if i.width == WIDTH_128)
            print(name, len(code), seen[HMMA] + seen[HGMMA], wide[LDG], wide[STG], seen[LDSM],
                  wide[LDGSTS], seen[LDL] + seen[STL], bound, sep="\t")


if __name__ == "__main__":
    main()
