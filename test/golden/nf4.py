"""Matrices in NF4 by bitsandbytes, for make_golden.py."""

import bitsandbytes.functional
import torch


def make_weights():
    """Odd sizes, blocks of zeros and of one value, and more than one block of scales. Values of bf16,
    as in most models: then PyTorch's sum of the scales is exact, in any order."""
    g = torch.Generator().manual_seed(11)
    weights = {
        "one": torch.randn(1, 1, generator=g),
        "short": torch.randn(3, 21, generator=g) * 0.02,
        "whole": torch.randn(8, 64, generator=g) * 0.02,
        "odd": torch.randn(5, 13, generator=g) * 0.02,
        "zeros": torch.zeros(2, 40),
        "planted": torch.randn(6, 128, generator=g) * 0.02,
        "large": torch.randn(133, 131, generator=g) * 0.02,
    }
    weights["planted"][1] = 0
    weights["planted"][2] = -0.25
    weights["planted"][3, ::3] = 0
    weights["planted"][4, 5] = 100
    return {name: value.to(torch.bfloat16) for name, value in weights.items()}


def make_nf4():
    tensors = {"dynamic8": bitsandbytes.functional.create_dynamic_map()}
    for name, weight in make_weights().items():
        codes, state = bitsandbytes.functional.quantize_4bit(
            weight.float(), quant_type="nf4", compress_statistics=True)
        values = bitsandbytes.functional.dequantize_4bit(codes, state)
        tensors |= {f"{name}.weight": weight, f"{name}.codes": codes.flatten(),
                    f"{name}.scales": state.absmax, f"{name}.second_scales": state.state2.absmax,
                    f"{name}.mean": state.offset.reshape(1), f"{name}.values": values}
    return tensors
