"""A Gated DeltaNet layer between its projections, by transformers' functions for Qwen3.5."""
import torch
from transformers.models.qwen3_5.modeling_qwen3_5 import (Qwen3_5RMSNormGated, causal_conv1d_fn,
                                                          torch_chunk_gated_delta_rule)

T, KEY_HEADS, VALUE_HEADS, KEY_SIZE, VALUE_SIZE, KERNEL = 77, 1, 2, 24, 40, 4
DOCUMENTS = (0, 5, 70, T)  # where each begins
KEYS, VALUES = KEY_HEADS * KEY_SIZE, VALUE_HEADS * VALUE_SIZE


def layer(projection, conv_weight, A_log, dt_bias, norm):
    """projection [1, T, J]: rows of qkv | z | b | a."""
    qkv, z, b, a = projection.split((2 * KEYS + VALUES, VALUES, VALUE_HEADS, VALUE_HEADS), -1)
    qkv = causal_conv1d_fn(qkv.transpose(1, 2), conv_weight, activation="silu").transpose(1, 2)
    q, k, v = (x.unflatten(-1, (-1, size)) for x, size in
               zip(qkv.split((KEYS, KEYS, VALUES), -1), (KEY_SIZE, KEY_SIZE, VALUE_SIZE)))
    g = -A_log.exp() * torch.nn.functional.softplus(a + dt_bias)
    out = torch_chunk_gated_delta_rule(q, k, v, g=g, beta=b.sigmoid(),
                                       use_qk_l2norm_in_kernel=True)[0]
    gated = norm(out, z.unflatten(-1, (-1, VALUE_SIZE)))
    return qkv, out.flatten(-2), gated.flatten(-2)


def make_delta_rule():
    g = torch.Generator().manual_seed(20)
    columns = 2 * KEYS + VALUES
    inputs = {"projection": torch.randn(1, T, columns + VALUES + 2 * VALUE_HEADS, generator=g),
              "conv_weight": torch.randn(columns, KERNEL, generator=g) / 2,
              "A_log": torch.log(torch.rand(VALUE_HEADS, generator=g) * 4),
              "dt_bias": torch.randn(VALUE_HEADS, generator=g) - 1}
    norm = Qwen3_5RMSNormGated(VALUE_SIZE, eps=1e-6)
    norm.weight.data = torch.randn(VALUE_SIZE, generator=g)
    leaves = {name: x.clone().requires_grad_(True) for name, x in inputs.items()}
    documents = [layer(leaves["projection"][:, begin:end], leaves["conv_weight"], leaves["A_log"],
                       leaves["dt_bias"], norm) for begin, end in zip(DOCUMENTS, DOCUMENTS[1:])]
    results = dict(zip(("qkv", "delta_out", "out"), (torch.cat(x, 1) for x in zip(*documents))))
    dout = torch.randn(results["out"].shape, generator=g)
    results["out"].backward(dout)
    first_keys = [max(d for d in DOCUMENTS if d <= t) for t in range(T)]
    tensors = inputs | results | {"norm_weight": norm.weight, "dout": dout,
                                  "dnorm_weight": norm.weight.grad,
                                  "first_keys": torch.tensor(first_keys, dtype=torch.int32)}
    tensors |= {"d" + name: x.grad for name, x in leaves.items()}
    return {name: x.detach().contiguous() for name, x in tensors.items()}
