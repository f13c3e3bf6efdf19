"""GPUs and their instructions, as the estimates model them: see cuda_estimates.md for the source of
each figure. NOT MEASUREMENTS.
"""
import collections

import cubin
from cubin import BYTES, HMMA, LDSM, MUFU, STSM

# multiprocessors, clock under load in GHz, memory in bytes a nanosecond, cycles that a scheduler's
# tensor core needs for an HMMA, and for its part of an HGMMA m64n64k16
Machine = collections.namedtuple("Machine", "name multiprocessors clock memory hmma hgmma")
MACHINES = {80: Machine("A100 SXM 80 GB", 108, 1.41, 2039, 8, 0),
            90: Machine("H100 SXM", 132, 1.70, 3350, 6, 32)}
SCHEDULERS = 4
SHARED_BYTES = 128   # that shared memory moves in a cycle of a multiprocessor
TENSOR_COPY = 8192   # bytes that one tensor copy (UTMALDG) is assumed to fetch
L2_LATENCY = 270     # cycles of a load that the L2 cache answers
FENCE_LATENCY = 500  # cycles of a fence beyond the block

# ---- operations: name, pipe, cycles of the pipe for a warp, cycles until the result is there

FIXED = {}


def operations(pipe, cycles, latency, table):
    for code, name in table.items():
        FIXED[code] = (name, pipe, cycles, latency)


operations("fma", 1, 4, {0x20: "FMUL", 0x21: "FADD", 0x23: "FFMA", 0x24: "IMAD", 0x25: "IMAD.WIDE",
                         0x26: "IDP", 0x27: "IMAD.HI", 0x30: "HADD2", 0x31: "HFMA2",
                         0x32: "HMUL2", 0x35: "HFMA2"})
operations("alu", 2, 6, {0x02: "MOV", 0x03: "P2R", 0x04: "R2P", 0x05: "CS2R", 0x07: "SEL",
                         0x08: "FSEL", 0x09: "FMNMX", 0x0A: "FSET", 0x0B: "FSETP", 0x0C: "ISETP",
                         0x0F: "VIMNMX3", 0x10: "IADD3", 0x11: "LEA", 0x12: "LOP3", 0x13: "IABS",
                         0x16: "PRMT", 0x17: "IMNMX", 0x19: "SHF", 0x1C: "PLOP3", 0x34: "HSETP2",
                         0x36: "VIADD", 0x3E: "F2FP", 0x40: "HMNMX2", 0x45: "I2FP",
                         0x46: "VIADDMNMX", 0x48: "VIMNMX", 0x06: "VOTE", 0x2F: "ELECT"})
operations("uniform", 2, 10, {0x82: "UMOV", 0x83: "UP2UR", 0x84: "UR2UP", 0x86: "VOTEU",
                              0x87: "USEL", 0x8C: "UISETP", 0x90: "UIADD3", 0x91: "ULEA",
                              0x92: "ULOP3", 0x96: "UPRMT", 0x97: "UIADD3.64", 0x99: "USHF",
                              0x9C: "UPLOP3", 0xA4: "UIMAD", 0xA5: "UIMAD.WIDE", 0xB9: "ULDC",
                              0xBD: "UFLO", 0xBE: "UBREV", 0xBF: "UPOPC", 0xCA: "R2UR",
                              0x1C2: "R2UR", 0x1C3: "S2UR"})
operations("special", 8, 22, {0x100: "FLO", 0x101: "BREV", 0x102: "FCHK", 0x104: "F2F",
                              0x105: "F2I", 0x106: "I2F", 0x107: "FRND", MUFU: "MUFU",
                              0x109: "POPC", 0x110: "F2F.64", 0x111: "F2I.64", 0x112: "I2F.64"})
operations("double", 32, 60, {0x28: "DMUL", 0x29: "DADD", 0x2A: "DSETP", 0x2B: "DFMA"})
operations("tensor", 0, 18, {HMMA: "HMMA", 0x1F0: "HGMMA"})  # cycles: the machine's
operations("memory", 4, 24, {0x182: "LDC", 0x119: "S2R", 0x1A7: "SYNCS", 0x1B1: "SYNCS.CCTL",
                             0x1B2: "SYNCS.EXCH", 0x1BD: "STAS", 0x1C4: "REDUX", 0x1A1: "MATCH",
                             0x1AA: "QSPC"})
operations("memory", 8, 24, {0x189: "SHFL", 0x18C: "ATOMS", 0x18D: "ATOMS.CAST"})
# by the bytes that they move: see pipe_cycles
operations("memory", 4, 24, {0x184: "LDS", 0x188: "STS", 0x183: "LDL", 0x187: "STL"})
operations("memory", 4, 30, {LDSM: "LDSM", STSM: "STSM"})
operations("memory", 8, 30, {0x1AE: "LDGSTS"})
operations("memory", 8, 24, {0x186: "STG", 0x185: "ST", 0x18E: "RED", 0x1A6: "REDG"})
operations("memory", 8, L2_LATENCY, {0x181: "LDG", 0x180: "LD"})
operations("memory", 8, 2 * L2_LATENCY, {0x1A2: "ATOM", 0x1A8: "ATOMG", 0x1A9: "ATOMG.CAS"})
operations("control", 0, 0, {0x118: "NOP", 0x11A: "DEPBAR", 0x11B: "ENDCOLLECTIVE", 0x11C: "B2R",
                             0x11D: "BAR", 0x141: "BSYNC", 0x142: "BREAK", 0x144: "CALL",
                             0x145: "BSSY", 0x146: "YIELD", 0x147: "BRA", 0x148: "WARPSYNC",
                             0x149: "BRX", 0x14D: "EXIT", 0x150: "RET", 0x15D: "NANOSLEEP",
                             0x18F: "CCTL", 0x192: "MEMBAR", 0x1AB: "ERRBAR", 0x1AF: "LDGDEPBAR",
                             0x1C5: "WARPGROUP", 0x1C6: "FENCE", 0x1C7: "UCGABAR",
                             0x1C8: "USETMAXREG", 0x2D: "PREEXIT", 0x2E: "ACQBULK"})
# bulk copies and reductions, which one thread starts
operations("control", 0, 0, {0x1B4: "UTMALDG", 0x1B5: "UTMASTG", 0x1B6: "UTMAREDG",
                             0x1B7: "UTMACMDFLUSH", 0x1B8: "UTMAPF", 0x1B9: "UTMACCTL",
                             0x1BA: "UBLKCP", 0x1BB: "UBLKRED", 0x1BC: "UBLKPF"})
BY_WIDTH = {0x180, 0x181, 0x183, 0x185, 0x186, 0x187, 0x188, 0x1AE}
FLOAT_VECTORS = {2: 8, 3: 16}  # bytes of a lane, by the width of a REDG


class Unknown(Exception):
    pass


def operation(instruction):
    try:
        return FIXED[instruction.operation]
    except KeyError:
        raise Unknown("operation %#x at %#x is not in the table of cuda_machine.py"
                      % (instruction.operation, instruction.at)) from None


def pipe_cycles(instruction, machine):
    """Cycles of a scheduler for which a warp's instruction occupies its pipe. The four schedulers
    share the memory pipe: 128 bytes take one of its cycles, which is four of each scheduler's."""
    code = instruction.operation
    if code == HMMA:
        return machine.hmma
    least = FIXED[code][2]
    if code in (LDSM, STSM):
        return least * cubin.matrices(instruction)
    if code == 0x184:  # several lanes read the same values of a row
        return max(least, BYTES.get(instruction.width, 4) // 2)
    if code in BY_WIDTH:
        return max(least, BYTES.get(instruction.width, 4))
    return max(least, FLOAT_VECTORS.get(instruction.width, 4)) if code == 0x1A6 else least


def group_cycles(product, machine):
    """Cycles of a scheduler's tensor core for its part of a warp group's product."""
    return machine.hgmma * cubin.columns(product) / 64


def operand_cycles(product):
    """Cycles of shared memory for the operands of a warp group's product: B [16, N] always, A
    [64, 16] unless registers hold it."""
    bytes_of_a = 0 if product.form == cubin.A_IN_REGISTERS else 64 * 16 * 2
    return (bytes_of_a + cubin.columns(product) * 16 * 2) / SHARED_BYTES


def flop(instruction):
    """Of a warp: m16n8k16, or a quarter of m64nNk16."""
    if instruction.operation == HMMA:
        return 2 * 16 * 8 * 16
    return 2 * 16 * cubin.columns(instruction) * 16 if instruction.operation == cubin.HGMMA else 0
