#!/usr/bin/env python3
"""Counts the instructions of a CUDA kernel that move memory and multiply matrices.

    cubin_opcodes.py FILE.cubin ...

For machines whose toolkit lacks cuobjdump and nvdisasm. One line a kernel, fields parted by tabs:
mangled name, instructions, tensor-core products (HMMA, HGMMA), 128-bit global loads, 128-bit global
stores, ldmatrix, asynchronous copies of 16 bytes to shared memory, accesses to local memory, and
the threads of a block by __launch_bounds__ (0: not given).
"""
import collections
import sys

import cubin

HMMA, HGMMA = 0x03C, 0x1F0
LDG, STG, LDSM, LDGSTS = 0x181, 0x186, 0x03B, 0x1AE
LDL, STL = 0x183, 0x187
WIDTH_128 = 6


def main():
    for path in sys.argv[1:]:
        for name, code, bound in cubin.kernels(path):
            seen = collections.Counter(i.operation for i in code)
            wide = collections.Counter(i.operation for i in code if i.width == WIDTH_128)
            print(name, len(code), seen[HMMA] + seen[HGMMA], wide[LDG], wide[STG], seen[LDSM],
                  wide[LDGSTS], seen[LDL] + seen[STL], bound, sep="\t")


if __name__ == "__main__":
    main()
