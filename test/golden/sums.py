"""Sums of fp8 products as tensor cores make them, by mmaemu, for sums.safetensors."""
import mmaemu
import torch

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
M, N, K = 6, 72, 300
PAIRS = {"e4m3.e4m3": (E4M3, E4M3), "e5m2.e4m3": (E5M2, E4M3), "e4m3.e5m2": (E4M3, E5M2)}
PROFILES = "hopper", "ada"


def operand(generator, rows, dtype):
    """Values of all sizes, some zero and some subnormal."""
    exponents = torch.randint(-12, 7, (rows, K), generator=generator)
    values = torch.randn(rows, K, generator=generator) * torch.exp2(exponents.float())
    values[torch.rand(rows, K, generator=generator) < 0.1] = 0
    return values.clamp(-400, 400).to(dtype)


def make_sums():
    generator, tensors = torch.Generator().manual_seed(17), {}
    for pair, (first, second) in PAIRS.items():
        a, b = operand(generator, M, first), operand(generator, N, second)
        tensors[f"{pair}.a"], tensors[f"{pair}.b"] = a.view(torch.uint8), b.view(torch.uint8)
        for profile in PROFILES:
            for fast in False, True:
                tensors[f"{pair}.{profile}.{'fast' if fast else 'slow'}"] = mmaemu.accumulate(
                    a, b, use_fast_accum=fast, profile=profile, splitk=1, backend="reference")
    return tensors
