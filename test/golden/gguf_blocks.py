"""Rows rounded to llama.cpp's blocks of integers by gguf, for gguf.safetensors."""
import gguf
import numpy
import torch

BLOCK = 32


def rows(generator):
    normal = torch.randn(40, BLOCK, generator=generator)
    wide = normal[:24] * torch.exp2(torch.randint(-100, 20, (24, 1), generator=generator).float())
    # Ties of Q8_0, whose scale is 1 in the first 4 rows, and of Q4_0, whose scale is 1 or -1.
    halves = torch.randint(-127, 127, (8, BLOCK), generator=generator).float() + 0.5
    halves[4:] = torch.randint(-32, 32, (4, BLOCK), generator=generator).float() / 4
    halves[:4, 7], halves[4:6, 9], halves[6:, 3] = 127, -8, 8
    largest = torch.ones(2, BLOCK)  # magnitudes that are equal: the first decides the sign
    largest[0, ::2], largest[1, 1::2] = -1, -1
    return torch.cat((normal, wide, halves, largest, torch.zeros(1, BLOCK)))


def make_gguf():
    values = rows(torch.Generator().manual_seed(17))
    tensors = {"values": values}
    for name in "Q8_0", "Q4_0":
        codes = gguf.quants.quantize(values.numpy(), gguf.GGMLQuantizationType[name])
        tensors[name] = torch.from_numpy(numpy.array(codes))
    return tensors
