"""Optimizers of the fixtures: AdamW, or another for the matrices of a model's blocks or for all.

Muon is torch.optim.Muon. Its iteration is in bfloat16, and for fixtures of the iteration in float32
the same source with that dtype. GPT-2's attention matrix is three, q, k and v, and its matrices are
[in, out], so that Muon gets their transposes.
"""
import inspect

import torch
import torch.optim._muon as muon

LR, BETA1, BETA2, EPS, WEIGHT_DECAY, MOMENTUM = 1e-3, 0.9, 0.95, 1e-8, 0.1, 0.95


def newton_schulz_in(dtype):
    source = inspect.getsource(muon._zeropower_via_newtonschulz)
    assert source.count("torch.bfloat16") == 1
    scope = dict(vars(muon))
    exec(source.replace("torch.bfloat16", str(dtype)), scope)
    return scope["_zeropower_via_newtonschulz"]


def groups_of(parameters):
    parameters = list(parameters)
    return [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]


def adamw(parameters):
    return torch.optim.AdamW(groups_of(parameters), lr=LR, betas=(BETA1, BETA2), eps=EPS,
                             foreach=False, fused=False)


def is_of_block(name, parameter):
    return parameter.dim() == 2 and (".h." in name or ".layers." in name)


class Muon:
    """Copies matrices to parameters of Muon's own, and back after its step."""

    def __init__(self, model, dtype, scale):
        named = dict(model.named_parameters())
        matrices = {name: p for name, p in named.items() if is_of_block(name, p)}
        self.rest = adamw(p for name, p in named.items() if name not in matrices)
        self.newton_schulz, self.parts = newton_schulz_in(dtype), []
        for name, p in matrices.items():
            conv1d = ".h." in name
            width = p.shape[1] // 3 if "c_attn" in name else p.shape[1]
            for first in range(0, p.shape[1], width):
                columns = slice(first, first + width)
                self.parts.append((p, columns, conv1d, torch.nn.Parameter(
                    self.view(p.detach(), columns, conv1d).clone())))
        self.muon = torch.optim.Muon([part for *_, part in self.parts], lr=LR,
                                     weight_decay=WEIGHT_DECAY, momentum=MOMENTUM, nesterov=True,
                                     ns_steps=5, adjust_lr_fn=scale)

    @staticmethod
    def view(matrix, columns, conv1d):
        return matrix[:, columns].T if conv1d else matrix[:, columns]

    def zero_grad(self, set_to_none):
        self.rest.zero_grad(set_to_none=set_to_none)
        for p, *_ in self.parts:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p, columns, conv1d, part in self.parts:
            part.grad = self.view(p.grad, columns, conv1d).contiguous()
        original = muon._zeropower_via_newtonschulz
        muon._zeropower_via_newtonschulz = self.newton_schulz
        self.muon.step()
        muon._zeropower_via_newtonschulz = original
        for p, columns, conv1d, part in self.parts:
            self.view(p, columns, conv1d).copy_(part)
        self.rest.step()


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al. 2023 (arXiv 2302.06675)."""

    def __init__(self, parameters):
        super().__init__(groups_of(parameters), {"lr": LR})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                direction = (m * BETA1 + p.grad * (1 - BETA1)).sign()
                p.mul_(1 - LR * group["weight_decay"]).sub_(direction, alpha=LR)
                m.mul_(BETA2).add_(p.grad, alpha=1 - BETA2)


def make_optimizer(model, name):
    if name == "muon":
        return Muon(model, torch.float32, "match_rms_adamw")
    if name == "muon_bf16":
        return Muon(model, torch.bfloat16, "original")
    if name == "lion":
        return Lion(model.parameters())
    if name == "sgd":
        return torch.optim.SGD(groups_of(model.parameters()), lr=LR, momentum=MOMENTUM,
                               nesterov=True)
    return adamw(model.parameters())
