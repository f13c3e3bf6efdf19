"""Fixture of AdamW with moments in 8 bits: steps of torchao's AdamW8bit."""
import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # the steps as written, not compiled

import torch
from safetensors.torch import save_file
from torchao.optim import AdamW8bit
from torchao.optim.quant_utils import create_dynamic_map

COUNT, STEPS = 4096, 4


def gradients(step):
    """Gradients over many magnitudes, so that all codes occur; a block of zeros; one large value."""
    random = torch.Generator().manual_seed(step)
    values = torch.randn(COUNT, generator=random)
    values *= 10 ** (-4 * torch.rand(COUNT, generator=random))
    values[256:512] = 0
    values[700] = 1e3
    return values.bfloat16()


def main():
    weight = torch.nn.Parameter(torch.randn(COUNT, generator=torch.Generator().manual_seed(77)))
    optimizer = AdamW8bit([weight], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    tensors = {"signed": torch.tensor(create_dynamic_map(signed=True)),
               "unsigned": torch.tensor(create_dynamic_map(signed=False)),
               "initial": weight.detach().clone()}
    for step in range(STEPS):
        weight.grad = gradients(step).float()
        optimizer.step()
        state = optimizer.state[weight]
        tensors[f"{step}.gradient"] = gradients(step)
        tensors[f"{step}.weight"] = weight.detach().clone()
        for moment, name in enumerate(("exp_avg", "exp_avg_sq")):
            tensors[f"{step}.codes{moment}"] = state[name].codes.clone()
            tensors[f"{step}.scales{moment}"] = state[name].scale.clone()
    save_file(tensors, os.path.join(os.path.dirname(__file__), "moments.safetensors"))


if __name__ == "__main__":
    main()
