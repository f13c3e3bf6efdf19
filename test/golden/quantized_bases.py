"""Fixture of weights in fewer bits, as transformers, compressed-tensors and bitsandbytes store them, and
their values after those programs' own dequantization."""
import os

import bitsandbytes.functional as bnb
import torch
from compressed_tensors.compressors.mxfp4 import MXFP4PackedCompressor
from compressed_tensors.compressors.naive_quantized import NaiveQuantizationCompressor
from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

ROWS, COLUMNS, BLOCK = 13, 48, [8, 32]  # blocks are cut off at both edges
E4M3 = torch.float8_e4m3fn
random = torch.Generator().manual_seed(66)


def normal(rows=ROWS, columns=COLUMNS):
    return torch.randn(rows, columns, generator=random) * 0.02


def codes(rows=ROWS, columns=COLUMNS):
    return (torch.randn(rows, columns, generator=random) * 50).to(E4M3)


def scales(*shape):
    return torch.rand(*shape, generator=random) * 0.01


def compressed(compressor, tensors, **arguments):
    scheme = QuantizationScheme(targets=["Linear"],
                                weights=QuantizationArgs(symmetric=True, **arguments))
    return tensors | {"values": compressor.decompress(tensors, scheme)["weight"]}


def naive(weight, scale, strategy, type="float", **arguments):
    return compressed(NaiveQuantizationCompressor, {"weight": weight, "weight_scale": scale},
                      num_bits=8, type=type, strategy=strategy, **arguments)


def inverse(case):
    """The name that transformers gives the scales."""
    return {"weight_scale_inv" if name == "weight_scale" else name: tensor
            for name, tensor in case.items()}


def fine_grained(weight, scale):
    values = Fp8Dequantize(None)._dequantize_one(weight, scale, torch.float32)
    return {"weight": weight, "weight_scale_inv": scale, "values": values}


def four_bits(weight, kind, nested):
    """bitsandbytes 0.50.2 on a CPU is right only if columns are a multiple of 64, or elements are not:
    the error says so."""
    packed, state = bnb.quantize_4bit(weight, quant_type=kind, compress_statistics=nested)
    values = bnb.dequantize_4bit(packed, state)
    assert (values - weight).abs().max() < 0.2 * weight.abs().max()
    named = {f"weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()}
    return {"weight": packed, "values": values} | named


def make_cases():
    signs = torch.randint(-127, 128, (ROWS, COLUMNS), generator=random, dtype=torch.int8)
    halves = torch.randint(0, 256, (ROWS, COLUMNS // 2), generator=random, dtype=torch.uint8)
    pairs = torch.randint(0, 256, (ROWS, 32), generator=random, dtype=torch.uint8)
    eight, absmax, _ = bnb.int8_vectorwise_quant(normal().half())
    blocks = {"strategy": "block", "block_structure": BLOCK}
    exponents = torch.randint(90, 140, (ROWS, 2), generator=random, dtype=torch.uint8)
    return {
        "fp8": inverse(naive(codes(), scales(2, 2), **blocks)),
        "fp8_whole": fine_grained(codes(16, 64), scales(2, 2).bfloat16()),
        "fp8_tensor": fine_grained(codes(), scales(1, 1).reshape(())),
        "mxfp8": fine_grained(codes(ROWS, 64), exponents),
        "fbgemm": naive(codes(), scales(ROWS, 1), "channel"),
        "rows_bf16": naive(codes(), scales(ROWS, 1).bfloat16(), "channel"),
        "rows_fp16": naive(codes(), scales(ROWS, 1).half(), "channel"),
        "tensor": naive(codes(), scales(1), "tensor"),
        "blocks": naive(codes(), scales(2, 2).bfloat16(), **blocks),
        "int8": naive(signs, scales(ROWS, 1).bfloat16(), "channel", "int"),
        "nvfp4": compressed(NVFP4PackedCompressor, {
            "weight_packed": halves,
            "weight_scale": (torch.rand(ROWS, 3, generator=random) * 400).to(E4M3),
            "weight_global_scale": torch.tensor([713.3])},
            num_bits=4, type="float", strategy="tensor_group", group_size=16),
        "mxfp4": compressed(MXFP4PackedCompressor,
                            {"weight_packed": pairs, "weight_scale": exponents},
                            num_bits=4, type="float", strategy="group", group_size=32),
        "nf4": four_bits(normal(7, 2 * 23).bfloat16(), "nf4", True),
        "nf4_large": four_bits(normal(257, 2 * 33).half(), "nf4", True),
        "fp4": four_bits(normal(5, 64), "fp4", False),
        "llm_int8": {"weight": eight, "SCB": absmax,
                     "values": bnb.int8_vectorwise_dequant(eight, absmax)},
    }


if __name__ == "__main__":
    tensors = {f"{case}:{name}": tensor.clone()
               for case, named in make_cases().items() for name, tensor in named.items()}
    save_file(tensors, os.path.join(os.path.dirname(__file__), "quantized_bases.safetensors"))
