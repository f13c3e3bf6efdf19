#!/usr/bin/env python3
"""Compares the machine code of ptx.h and ptx_hopper.h with that of CUTLASS and libcu++.

    check_instructions.py NVCC CUTLASS_INCLUDE

instructions.cu is compiled twice for sm_90a, without a GPU. The code of each of its kernels, around
one instruction each, has to be the same byte for byte. Run from the root of the project.
"""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, "scripts")
import cubin  # noqa: E402

SOURCE = "test/cute_oracle/instructions.cu"


def machine_code(options):
    """The bytes of each kernel, by its name."""
    with tempfile.TemporaryDirectory() as folder:
        to = os.path.join(folder, "instructions.cubin")
        # -I. would find the program ./compare where libstdc++ includes <compare>.
        done = subprocess.run(options + ["-std=c++17", "-arch=sm_90a", "-w", "-cubin", "-Xcompiler",
                                         "-iquote,.", "-o", to, SOURCE], capture_output=True)
        if done.returncode:
            sys.exit((done.stdout + done.stderr).decode(errors="replace"))
        with open(to, "rb") as file:
            data = file.read()
    return {name[len(".text."):]: data[offset:offset + size]
            for name, offset, size in cubin.sections(data) if name.startswith(".text.")}


def main():
    nvcc, cutlass = sys.argv[1:]
    ours, theirs = machine_code([nvcc]), machine_code([nvcc, "-DNVIDIA", "-I" + cutlass])
    different = [name for name in ours if ours[name] != theirs.get(name)]
    for name in different:
        print("%s: other machine code than CUTLASS's" % name)
    print("%d instructions compared, %d different" % (len(ours), len(different)))
    sys.exit(1 if different or not ours else 0)


main()
