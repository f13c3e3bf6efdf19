#!/usr/bin/env python3
"""Estimates what kernels reach, from their machine code. NOT MEASUREMENTS: see cuda_estimates.md.

    cuda_replay.py FILE.cubin WARPS [IDLE [KB [PART_OF_NAME]]]   replays kernels on tensor cores

WARPS: warps that a multiprocessor holds. IDLE: warps of a block that do not run the loop, for
example because they only fetch. KB: kilobytes that these move in shared memory for each iteration
of the block.

check_estimates.py replays a folder that scripts/cuda_report.sh has made: NAME.sm_ARCH.cubin, .names
(mangled and short names) and sm_ARCH.warps (how many of a kernel a multiprocessor holds). Kernels
on tensor cores: their inner loop is replayed on one of the four schedulers of a multiprocessor.
Kernels that move memory: how many bytes they have in flight, and how many they move beside the
least possible.
"""
import collections
import sys

import cubin
from cubin import HGMMA, NEVER, UTMALDG
from cuda_loops import PRODUCTS, count, flops, hot_loop, round_of
from cuda_machine import MACHINES, SCHEDULERS, TENSOR_COPY, Unknown, group_cycles
from cuda_replay_memory import Memory, memory_figures
from cuda_scheduler import replay

# ---- kernels to replay

# On tensor cores: iterations of the inner loop per iteration of the outer one; 0: no outer loop.
# idle: warps of a block that do not run the loop; copies: KB that these fetch for an iteration.
Tensor = collections.namedtuple("Tensor", "file name inner idle copies", defaults=(0, 0, 0))

KERNELS = [
    Tensor("attention_mma_forward", "forward<bf16, 64, 3, false>"),
    Tensor("attention_mma_forward", "forward<bf16, 128, 3, false>"),
    # steps of 16 in tiles of 64, two of them unrolled
    Tensor("attention_mma_backward", "query_gradients<bf16, 64, false>", 2),
    Tensor("attention_mma_backward", "query_gradients<bf16, 128, false>", 2),
    Tensor("attention_mma_backward", "key_gradients<bf16, 64, false>", 4),
    Tensor("attention_mma_backward", "key_gradients<bf16, 128, false>", 4),
    Tensor("attention_wgmma_forward", "forward<bf16, 64, false>"),
    Tensor("attention_wgmma_forward", "forward<bf16, 128, false>"),
    # one kernel with five products; on Hopper a group of warps fetches 32 KB for a step
    Tensor("attention_wgmma_backward", "gradients<bf16, 64, false>", idle=4, copies=32),
    Tensor("attention_wgmma_backward", "gradients<bf16, 128, false>", idle=4, copies=32),
    # a branch of 16 bits and a stream of 32 in, both out; 768 columns
    Memory("layernorm_forward", "forward<bf16, bf16, fp32>", 2 + 4 + 4 + 2, 2 + 4 + 4 + 2, 4 + 2,
           threads=96),
    # the same with the gradient of the stream, and three fp32 sums for each 32 rows at 32 x 1024
    Memory("layernorm_backward", "backward<bf16, fp32>", 2 + 4 + 4 + 4 + 2 + 3 * 4 * 2 / 32,
           2 + 4 + 4 + 4 + 2, 4 + 2, threads=192, block=32 * 768),
    Memory("cross_entropy", "kept_cross_entropy<bf16, 8, 512>", 2 + 2, 2 + 2, 2),
    # upper half and remainder of the master, two moments in and out; an fp32 gradient in
    Memory("adamw", "adamw<fp32, upper_bits, bf16_copy, fp32>", 2 * (2 + 2 + 4 + 4) + 4,
           2 * (2 + 2 + 4 + 4) + 4, 2 + 2 + 4 + 4, rounds=(4,)),
    Memory("gelu_backward", "summed<false, bf16, bf16>", 2 + 2 + 2, 2 + 2 + 2, 2),
    Memory("quantize", "round<bf16, 4, 0>", 2 + 1, 2 + 1, 1),
]

# ---- figures

def warps_of(held, threads, idle):
    """Warps of a scheduler that run the loop, and those of one block among them."""
    of_block = threads // 32 or held
    groups = max((of_block - idle) // SCHEDULERS, 1)
    return max(held // of_block, 1) * groups, groups


def tensor_figures(kernel, code, held, threads, machine):
    """held: warps of a multiprocessor; threads: of a block."""
    body = round_of(code, kernel.inner)
    first, last = hot_loop(code)
    warps, groups = warps_of(held, threads, kernel.idle)
    copies = count(code[first:last + 1], UTMALDG) + kernel.copies * 1024 / TENSOR_COPY
    cycles, pipes = replay(body, warps, machine, groups=groups,
                           copies=copies / groups)  # a tile is fetched for the block
    cost = sum(group_cycles(i, machine) if i.operation == HGMMA else machine.hmma
               for i in body if i.operation in PRODUCTS and i.predicate != NEVER)
    products = flops(body) / (2 * 16 * 64 * 16 if count(body, HGMMA) else 2 * 16 * 8 * 16)
    busiest = max((p for p in pipes if p != "control"), key=pipes.get)
    second = 1e9 * machine.clock * machine.multiprocessors * SCHEDULERS
    return {"kind": "tensor", "instructions": len(body) / products, "busiest": busiest,
            "share": min(cost / cycles, 1), "tflops": flops(body) / cycles * second / 1e12}


def read_table(path_):
    with open(path_) as file:
        return [line.rstrip("\n").split("\t") for line in file]


def print_figure(file, name, held, figure):
    tensor = figure["kind"] == "tensor"
    print("%-23s %-36s %5d %6s %-8s %5.2f %7s %6s"
          % (file, name, held, "%.2f" % figure["instructions"] if tensor else "-",
             figure["busiest"], figure["share"], "%.0f" % figure["tflops"] if tensor else "-",
             "-" if tensor else "%.2f" % figure["moved_to_least"]))


def estimate(folder, arch):
    """Prints the table of an architecture; returns the figures of each kernel."""
    machine = MACHINES[arch]
    warps = {(file, name): int(n) for file, name, n in read_table("%s/sm_%d.warps" % (folder, arch))
             if n.isdigit()}
    print("ESTIMATES by replay of machine code, not measured: sm_%d, %s" % (arch, machine.name))
    print("%-23s %-36s %5s %6s %-8s %5s %7s %6s" % ("file", "kernel", "warps", "instr", "busiest",
                                                    "share", "TFLOP/s", "bytes"))
    figures = {}
    for kernel in KERNELS:
        if arch < 90 and "wgmma" in kernel.file:
            continue
        base = "%s/%s.sm_%d" % (folder, kernel.file, arch)
        names = {mangled: short for mangled, short in read_table(base + ".names")}
        found = [(code, threads) for name, code, threads in cubin.kernels(base + ".cubin")
                 if names.get(name) == kernel.name]
        held = warps.get((kernel.file, kernel.name))
        if not found or not held:
            if "gradients<" in kernel.name:  # one of two ways to compute them
                continue
            sys.exit("cuda_replay: %s has no kernel %s" % (kernel.file, kernel.name))
        code, threads = found[0]
        try:
            if isinstance(kernel, Tensor):
                figure = tensor_figures(kernel, code, held, threads, machine)
            else:
                figure = memory_figures(kernel, code, held, threads, machine)
        except Unknown as problem:
            sys.exit("cuda_replay: %s, %s: %s" % (kernel.file, kernel.name, problem))
        figures["%s/%s" % (kernel.file, kernel.name)] = figure
        print_figure(kernel.file, kernel.name, held, figure)
    return figures


def main():
    path, held, *options = sys.argv[1:]
    with open(path, "rb") as file:
        machine = MACHINES[90 if cubin.architecture(file.read(64)) >= 90 else 80]
    kernel = Tensor("", "", 0, *(int(number) for number in options[:2]))
    for name, code, threads in cubin.kernels(path):
        if count(code, *PRODUCTS) and (len(options) < 3 or options[2] in name):
            figure = tensor_figures(kernel, code, int(held), threads, machine)
            print("%s\tshare %.3f\tTFLOP/s %.0f\tinstructions %.2f\tbusiest %s"
                  % (name, figure["share"], figure["tflops"], figure["instructions"],
                     figure["busiest"]))


if __name__ == "__main__":
    main()
