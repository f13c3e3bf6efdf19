"""Matrices rounded to formats of blocks by torchao, for mx.safetensors."""
import torch
from torchao.prototype.mx_formats.kernels import f4_unpacked_to_f32, unpack_uint4
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale
from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_dtype, to_mx

BLOCK = 32
ELEMENTS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2,
            "e2m1": torch.float4_e2m1fn_x2}
ROUNDINGS = {"up": ScaleCalculationMode.RCEIL, "floor": ScaleCalculationMode.FLOOR}


def matrices(generator):
    normal = torch.randn(24, 96, generator=generator)
    wide = torch.randn(16, 64, generator=generator) * torch.exp2(
        torch.randint(-60, 60, (16, 64), generator=generator).float())
    halves = torch.randint(-96, 97, (8, 32), generator=generator).float() / 16  # with ties
    zeros = torch.zeros(2, 64)
    zeros[1, 40] = -3.0
    return {"normal": normal, "wide": wide, "ties": halves, "zeros": zeros}


def rounded(matrix, element, rounding):
    """The values of a matrix [N, C] in float32; C is a multiple of 32."""
    scales, codes = to_mx(matrix, element, BLOCK, ROUNDINGS[rounding])
    return to_dtype(codes, scales, element, BLOCK, torch.float32)


def rounded_nvfp4(matrix):
    """The values of a matrix [N, C] in units of its tensor scale, and that scale; C is a multiple of
    16."""
    scale = per_tensor_amax_to_scale(matrix.abs().amax())
    scales, codes = nvfp4_quantize(matrix, 16, scale)
    elements = f4_unpacked_to_f32(unpack_uint4(codes)).view(*scales.shape, 16)
    return (elements * scales.float().unsqueeze(-1)).view(matrix.shape), scale


def make_mx():
    tensors = {}
    for name, matrix in matrices(torch.Generator().manual_seed(11)).items():
        matrix = matrix.to(torch.bfloat16)
        tensors[name] = matrix
        for element, dtype in ELEMENTS.items():
            for rounding in ROUNDINGS:
                tensors[f"{name}.{element}.{rounding}"] = rounded(matrix, dtype, rounding)
        tensors[f"{name}.nvfp4"] = rounded_nvfp4(matrix)[0]
    return tensors
