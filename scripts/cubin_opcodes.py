#!/usr/bin/env python3
"""Counts the instructions that tell how a CUDA kernel moves memory and multiplies.

    cubin_opcodes.py FILE.cubin ...

For machines whose toolkit lacks cuobjdump and nvdisasm. One line a kernel, fields parted by tabs:
mangled name, instructions, tensor-core products (HMMA, HGMMA), 128-bit global loads, 128-bit global
stores, ldmatrix, asynchronous copies of 16 bytes to shared memory, accesses to local memory, and
the threads of a block by __launch_bounds__ (0: not given).

An instruction of sm_70 and later has 16 bytes: its low 12 bits are the opcode, and bits 73..75 the
width of a memory access (4: 32 bits, 5: 64, 6: 128).
"""
import struct
import sys

HMMA, HGMMA = 0x23C, 0x7F0
LDG, STG, LDSM, LDGSTS = 0x981, 0x986, 0x83B, 0xFAE
LDL, STL = 0x983, 0x387
WIDTH_128 = 6
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


def count(data, offset, size):
    seen = {}
    for at in range(offset, offset + size, 16):
        low, high = struct.unpack_from("<QQ", data, at)
        opcode, wide = low & 0xFFF, high >> 9 & 7 == WIDTH_128
        for key in (opcode, (opcode, wide)):
            seen[key] = seen.get(key, 0) + 1

    def of(*keys):
        return sum(seen.get(key, 0) for key in keys)

    return (size // 16, of(HMMA, HGMMA), of((LDG, True)), of((STG, True)), of(LDSM),
            of((LDGSTS, True)), of(LDL, STL))


def launch_bound(data, offset, size):
    at, end = offset, offset + size
    while at + 4 <= end:
        form, attribute, length = struct.unpack_from("<BBH", data, at)
        if form == SIZED and attribute == MAX_THREADS:
            x, y, z = struct.unpack_from("<III", data, at + 4)
            return x * y * z
        at += 4 + (length if form == SIZED else 0)
    return 0


def main():
    for path in sys.argv[1:]:
        with open(path, "rb") as file:
            data = file.read()
        parts = {name: (offset, size) for name, offset, size in sections(data)}
        for name, place in parts.items():
            if name.startswith(".text."):
                kernel = name[len(".text."):]
                bound = launch_bound(data, *parts.get(".nv.info." + kernel, (0, 0)))
                print(kernel, *count(data, *place), bound, sep="\t")


if __name__ == "__main__":
    main()
