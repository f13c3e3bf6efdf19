"""Operands in blocks that share a scale: fp8's recipe "block", and NVFP4 with its whole recipe."""
import numpy as np
import torch
import torch.nn.functional as F

import fp8

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
KINDS = {"x": 0, "w": 1, "d": 2}
LINEARS = {"attn.c_attn": 0, "attn.c_proj": 1, "mlp.c_fc": 2, "mlp.c_proj": 3,
           "qkv": 0, "o": 1, "fc": 2, "down": 3}
FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, MATMULS = 0, 1, 2, 3


def cut(matrix, rows, columns):
    """Blocks [R, rows, S, columns] of a matrix, filled with zeros at its edges."""
    padded = F.pad(matrix, (0, -matrix.shape[1] % columns, 0, -matrix.shape[0] % rows))
    return padded.view(padded.shape[0] // rows, rows, -1, columns)


def join(blocks, like):
    """The matrix that was cut."""
    return blocks.flatten(2).flatten(0, 1)[:like.shape[0], :like.shape[1]]


class Blocks(fp8.Recipe):
    """1 x 128 elements, 128 x 128 of weights, with scales that are powers of two, rounded up."""

    def __init__(self):
        super().__init__("block", gradient=torch.float8_e4m3fn)

    def rounded(self, key, tensor, dtype, dim):
        shape = (128, 128) if key[1] == "w" else (1, 128) if dim == fp8.ROWS else (128, 1)
        blocks = cut(tensor.float(), *shape)
        largest = blocks.abs().amax((1, 3), keepdim=True) / torch.tensor(448.0)
        fraction, exponent = torch.frexp(largest)
        scale = torch.ldexp(torch.ones_like(largest), exponent - (fraction == 0.5).int())
        codes = (blocks / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        return join(codes.float() * scale, tensor), torch.ones(1, 1)


# ---------------------------------------------------------------- random bits, as in data/util/random.c

U64 = np.uint64
GOLDEN = U64(0x9e3779b97f4a7c15)


def mix(x):
    x = (x ^ (x >> U64(30))) * U64(0xbf58476d1ce4e5b9)
    x = (x ^ (x >> U64(27))) * U64(0x94d049bb133111eb)
    return x ^ (x >> U64(31))


def random_bits(seed, stream, counter):
    with np.errstate(over="ignore"):
        key = mix(mix(U64(seed) + GOLDEN) ^ (U64(stream) * GOLDEN + U64(1)))
        return mix(key + (U64(counter) + U64(1)) * GOLDEN)


def rounding_bits(first, second, index):
    """As in kernels/rounding.h; arguments are arrays of uint64 below 2^32."""
    mask = U64(0xffffffff)
    x = index ^ first
    x = (x ^ (x >> U64(16))) * U64(0x7feb352d) & mask
    x = ((x ^ (x >> U64(15))) + second & mask) * U64(0x846ca68b) & mask
    return x ^ (x >> U64(16))


def draws(key, first_row, rows, columns):
    """Numbers in 0 .. 1 of a matrix."""
    first, second = U64(key & U64(0xffffffff)), U64(key >> U64(32))
    row = (np.arange(rows, dtype=np.uint64) + U64(first_row))[:, None]
    column = np.arange(columns, dtype=np.uint64)[None]
    bits = rounding_bits(rounding_bits(first, second, row), rounding_bits(second, first, row), column)
    return torch.from_numpy((bits >> U64(16)).astype(np.float64) / 65536)


# ---------------------------------------------------------------- NVFP4


def hadamard(matrix, signs):
    """Each 16 rows times H diag(signs) / 4, rounded to bf16."""
    assert matrix.shape[0] % 16 == 0
    factors = torch.tensor([-0.25 if signs >> k & 1 else 0.25 for k in range(16)])
    rows = list((matrix.float().view(-1, 16, matrix.shape[1]) * factors[:, None]).unbind(1))
    for distance in 1, 2, 4, 8:
        for k in range(16):
            if not k & distance:
                a, b = rows[k], rows[k + distance]
                rows[k], rows[k + distance] = a + b, a - b
    return torch.stack(rows, 1).view(matrix.shape).bfloat16().float()


def nearest(values):
    """Ties go to the even code."""
    halves = (E2M1[1:] + E2M1[:-1]) / 2
    codes = torch.bucketize(values.abs(), halves)
    tie = (values.abs().unsqueeze(-1) == halves).any(-1)
    return E2M1[codes + (tie & (codes % 2 == 1)).int()].copysign(values)


def stochastic(values, draw):
    codes = (torch.bucketize(values.abs(), E2M1, right=True) - 1).clamp(max=6)
    low, high = E2M1[codes].double(), E2M1[codes + 1].double()
    up = (values.abs().double() - low) / (high - low) + draw >= 1
    return torch.where(up, high, low).float().copysign(values)


class NVFP4(fp8.Recipe):
    SEED = 1

    def __init__(self):
        super().__init__("nvfp4")

    def bits(self, stream, key, matmul):
        (layer, name), kind = key
        place = (layer * 4 + LINEARS[name]) * 3 + KINDS[kind]
        return random_bits(self.SEED, stream, place * MATMULS + matmul)

    def rounded(self, key, tensor, dtype, dim):
        layer, kind = key
        matmul = (WEIGHT_GRADIENT if dim == fp8.COLUMNS else
                  INPUT_GRADIENT if kind == "d" else FORWARD)
        shape = (16, 16) if kind == "w" else (1, 16) if dim == fp8.ROWS else (16, 1)
        values = tensor.float()
        if kind != "w" and matmul == WEIGHT_GRADIENT:
            values = hadamard(values, int(self.bits(0x68616461, (layer, "x"), matmul)) & 0xffff)
        amax = values.abs().max()
        tensor_scale = amax / torch.tensor(2688.0) if amax > 0 else torch.tensor(1.0)
        blocks = cut(values, *shape)
        scale = blocks.abs().amax((1, 3), keepdim=True) / torch.tensor(6.0) / tensor_scale
        scale = scale.clamp(min=2.0**-6).to(torch.float8_e4m3fn).float()
        scaled = blocks * ((1 / tensor_scale) / scale)
        if kind == "d":
            draw = draws(self.bits(0x726f756e, key, matmul), self.first_row, *values.shape)
            elements = stochastic(scaled, cut(draw, *shape))
        else:
            elements = nearest(scaled)
        return join(elements * scale, values), tensor_scale.view(1, 1)
