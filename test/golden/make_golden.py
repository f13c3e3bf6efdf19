"""Writes the golden fixtures: what PyTorch computes, for tests to compare with.

    python test/golden/make_golden.py [FOLDER]

See README.md beside this file for how to get an environment, and fixtures.md for the tensors.
Everything is seeded and runs on one CPU thread: the same versions on the same kind of processor
give the same files.
"""

import copy
import math
import pathlib
import re
import sys

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file

import blocks
import delta_rule
import distillation
import fp8
import gguf_blocks
import mx
import nf4
import optimizers
import preference_losses
import rope
from models import EPSILON, MODELS, POSITIONS, VOCABULARY

FOLDER = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)


def normal(generator, *shape, scale=1.0):
    return torch.randn(*shape, generator=generator) * scale


def leaf(tensor):
    return tensor.clone().requires_grad_(True)


# ---------------------------------------------------------------- single operations

B, T, C, H, V = 2, 13, 40, 4, 37
N = B * T


def make_embedding(g):
    tokens = torch.randint(0, V, (B, T), generator=g)
    token_table, position_table = leaf(normal(g, V, C)), leaf(normal(g, T + 3, C))
    dout = normal(g, B, T, C)
    out = F.embedding(tokens, token_table) + F.embedding(torch.arange(T), position_table)
    out.backward(dout)
    return {
        "tokens": tokens.int(), "token_table": token_table, "position_table": position_table,
        "out": out, "dout": dout, "dtoken_table": token_table.grad,
        "dposition_table": position_table.grad,
    }


def make_layernorm(g, with_residual):
    """`sum` is what is normalized; its own gradient arrives as dresidual."""
    given = {"in": normal(g, N, C) + 0.5, "weight": normal(g, C) + 1, "bias": normal(g, C),
             "dout": normal(g, N, C)}
    if with_residual:
        given |= {"residual": normal(g, N, C, scale=2.0), "dresidual": normal(g, N, C)}
    total = leaf(given["in"] + given["residual"] if with_residual else given["in"])
    weight, bias = leaf(given["weight"]), leaf(given["bias"])
    out, mean, rstd = torch.native_layer_norm(total, (C,), weight, bias, EPSILON)
    out.backward(given["dout"])
    din = total.grad + given["dresidual"] if with_residual else total.grad
    return given | {"sum": total, "out": out, "mean": mean.flatten(), "rstd": rstd.flatten(),
                    "din": din, "dweight": weight.grad, "dbias": bias.grad}


def make_linear(g):
    """out = a b + bias with b as GPT-2 stores it, [in, out]; then gelu of it."""
    a, b, bias = leaf(normal(g, N, C)), leaf(normal(g, C, V, scale=0.3)), leaf(normal(g, V))
    dout = normal(g, N, V)
    out = a @ b + bias
    out.backward(dout)
    linear = {"a": a, "b": b, "bias": bias, "out": out, "dout": dout,
              "da": a.grad, "db": b.grad, "dbias": bias.grad}
    before = leaf(out.detach())
    after = F.gelu(before, approximate="tanh")
    after.backward(dout)
    return linear | {"gelu_out": after, "dgelu_in": before.grad}


def make_gelu(g):
    given = torch.cat([normal(g, N * C, scale=2.0), torch.linspace(-12, 12, 49)])
    x, dout = leaf(given), normal(g, given.numel())
    out = F.gelu(x, approximate="tanh")
    out.backward(dout)
    return {"in": x, "out": out, "dout": dout, "din": x.grad}


def make_attention(g):
    qkv, dout = leaf(normal(g, B, T, 3 * C, scale=1.5)), normal(g, B, T, C)
    q, k, v = (x.view(B, T, H, C // H).transpose(1, 2) for x in qkv.split(C, dim=2))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    out = out.transpose(1, 2).reshape(B, T, C)
    out.backward(dout)
    scores = q @ k.transpose(2, 3) / math.sqrt(C // H)
    scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)
    return {"qkv": qkv, "out": out, "lse": scores.logsumexp(-1), "dout": dout, "dqkv": qkv.grad}


# Of the paths of a CPU that multiplies bf16, whose heads have multiples of 32 columns: two heads
# that share keys and values, and isolated documents of these lengths.
ROWS, COLUMNS, WINDOW, DOCUMENTS = 77, 32, 20, (9, 1, 43, 24)


def make_attention_bf16(g):
    """Inputs in bf16, all else in float64, rounded to bf16 (lse to float32)."""
    qkv, dout = (normal(g, ROWS, heads * COLUMNS).bfloat16() for heads in (4, 2))
    index = torch.arange(ROWS)
    document = torch.arange(len(DOCUMENTS)).repeat_interleave(torch.tensor(DOCUMENTS))
    first = torch.searchsorted(document, document)
    causal = index[:, None] >= index
    masks = {"all": causal, "window": causal & (index[:, None] - index < WINDOW),
             "isolated": causal & (document[:, None] == document)}
    result = {"qkv": qkv, "dout": dout, "first_keys": first.int()}
    for name, mask in masks.items():
        exact = leaf(qkv.detach().double())
        q, k, v = (x.view(ROWS, -1, COLUMNS).transpose(0, 1)
                   for x in exact.split([2 * COLUMNS, COLUMNS, COLUMNS], dim=1))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        out = out.transpose(0, 1).reshape(ROWS, 2 * COLUMNS)
        out.backward(dout.double())
        scores = (q @ k.transpose(1, 2) / math.sqrt(COLUMNS)).masked_fill(~mask, -math.inf)
        result |= {f"{name}.out": out.bfloat16(), f"{name}.lse": scores.logsumexp(-1).float(),
                   f"{name}.dqkv": exact.grad.bfloat16()}
    return result


def make_cross_entropy(g):
    """The gradient is that of the mean loss times a loss scale of 1024."""
    logits, targets = leaf(normal(g, N, V, scale=3.0)), torch.randint(0, V, (N,), generator=g)
    losses = F.cross_entropy(logits, targets, reduction="none")
    (losses.mean() * 1024).backward()
    return {"logits": logits, "targets": targets.int(), "losses": losses, "dlogits": logits.grad}


def make_clip(g, scale):
    gradients = leaf(torch.zeros(N * C))
    given = normal(g, N * C, scale=scale)
    gradients.grad = given.clone()
    norm = torch.nn.utils.clip_grad_norm_([gradients], 1.0)
    return {"gradients": given, "norm": norm.view(1), "clipped": gradients.grad}


ADAMW_STEPS = 5


def make_adamw(g, weight_decay):
    """Gradients that vanish and that span many magnitudes, so that eps shows."""
    master = leaf(normal(g, C))
    gradients = normal(g, ADAMW_STEPS, C) * 10.0 ** torch.linspace(-10, 1, C)
    gradients[:, 0] = 0
    optimizer = torch.optim.AdamW([master], lr=1e-2, betas=(0.9, 0.95), eps=1e-8,
                                  weight_decay=weight_decay, foreach=False, fused=False)
    result = {"initial": master.detach().clone(), "gradients": gradients}
    history = {"master": [], "moment1": [], "moment2": []}
    for gradient in gradients:
        master.grad = gradient.clone()
        optimizer.step()
        state = optimizer.state[master]
        for name, value in (("master", master), ("moment1", state["exp_avg"]),
                            ("moment2", state["exp_avg_sq"])):
            history[name].append(value.detach().clone())
    return result | {name: torch.stack(values) for name, values in history.items()}


def make_scaler():
    """growth 2, backoff 1/2, interval 3: the scale and the tracker after each step."""
    overflow = [0, 0, 0, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1]
    scale, tracker = torch.full((), 1024.0), torch.zeros((), dtype=torch.int32)
    scales, trackers = [], []
    for found_inf in overflow:
        torch._amp_update_scale_(scale, tracker, torch.tensor(float(found_inf)), 2.0, 0.5, 3)
        scales.append(scale.item())
        trackers.append(tracker.item())
    return {"found_inf": torch.tensor(overflow, dtype=torch.int32), "scale": torch.tensor(scales),
            "tracker": torch.tensor(trackers, dtype=torch.int32)}


def make_operations():
    g = torch.Generator().manual_seed(1)
    groups = {
        "embedding": make_embedding(g),
        "layernorm": make_layernorm(g, False),
        "layernorm_residual": make_layernorm(g, True),
        "linear": make_linear(g),
        "gelu": make_gelu(g),
        "attention": make_attention(g),
        "cross_entropy": make_cross_entropy(g),
        "clip": make_clip(g, 1.0),
        "clip_inactive": make_clip(g, 1e-3),
        "adamw": make_adamw(g, 0.1),
        "adamw_no_decay": make_adamw(g, 0.0),
        "scaler": make_scaler(),
        "distillation": distillation.make_operation(torch.Generator().manual_seed(7), N, V, 0.5, 1),
        "distillation_soft": distillation.make_operation(torch.Generator().manual_seed(8), N, V,
                                                         0.7, 2),
        "preference": preference_losses.make_operation(),
        "attention_bf16": make_attention_bf16(torch.Generator().manual_seed(9)),
    }
    return {f"{group}.{name}": value for group, tensors in groups.items()
            for name, value in tensors.items()}


# ---------------------------------------------------------------- ten steps of a whole model

STEPS, MICRO_BATCHES, BATCH = 10, 2, 2
GRAD_CLIP = 1.0

# From 2^13 the scale grows by 2^10 after three good steps, to where the gradients of the logits
# overflow for certain (2^23 / 64 tokens > 65504), and falls back by the same factor: three good
# steps, growth, a skipped step, backoff, three good steps, and again.
INIT_SCALE, GROWTH, BACKOFF, GROWTH_INTERVAL = 2.0**13, 2.0**10, 2.0**-10, 3


# Adapters on a model with odd sizes: three heads of keys and values, a rank of 5, 77 tokens.
LORA_POSITIONS = 77
LORA_SIZES = dict(num_attention_heads=9, num_key_value_heads=3, head_dim=4, hidden_size=36,
                  max_position_embeddings=LORA_POSITIONS)
LORA_TARGETS = {"gpt": ["c_attn", "c_fc", "c_proj"], "llama": "all-linear",
                "qwen2": ["v_proj", "k_proj", "up_proj", "down_proj"]}


def lora_base(family):
    return make_model(family, **(dict(n_positions=LORA_POSITIONS) if family == "gpt" else LORA_SIZES))


def lora_config(family):
    return LoraConfig(r=5, lora_alpha=8, target_modules=LORA_TARGETS[family], task_type="CAUSAL_LM",
                      fan_in_fan_out=family == "gpt")


def make_lora(family):
    """B is not zero, as it is after some steps, so that all gradients count."""
    model = get_peft_model(lora_base(family), lora_config(family))
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(normal(g, *parameter.shape, scale=0.15))
    return model


def make_model(family, **sizes):
    model = MODELS[family](**sizes)
    g = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(normal(g, *parameter.shape, scale=0.1))
            elif parameter.dim() == 1:  # Gemma's and Qwen3.5's factors are 1 + the weights
                zero = family.startswith(("gemma", "qwen3_5", "deltanet"))
                centre = 0 if zero and "linear_attn.norm" not in name else 1
                parameter.copy_(centre + normal(g, *parameter.shape, scale=0.1))
            else:
                parameter.copy_(normal(g, *parameter.shape, scale=0.15))
    tied = model.lm_head.weight is model.get_input_embeddings().weight
    assert tied == (family not in ("llama", "mistral", "hyperclovax", "olmo3", "phi3"))
    return model


def check_dtypes(model, dtype):
    """The fixtures must follow PyTorch's autocast lists for CUDA, and CPU autocast has its own: for
    one, it does not name layer_norm and cross_entropy as float32. For this model both come to the
    same, because norms read the float32 residual stream (those of heads what a linear layer gave,
    and give float32 as their weights are), embeddings and additions keep float32, everything else is a linear layer, attention, or GELU or SiLU after one, and the
    loss is given float32 by hand. This stops the script should that ever differ."""
    seen = {}

    def note(name):
        def hook(_, inputs, output):
            seen[name] = (inputs[0].dtype, output[0].dtype if isinstance(output, tuple)
                          else output.dtype)
        return hook

    hooks = [module.register_forward_hook(note(name)) for name, module in model.named_modules()
             if name and not list(module.children())]
    gpt2 = hasattr(model, "transformer")
    block = model.transformer.h[0] if gpt2 else model.model.layers[0]
    hooks.append(block.register_forward_hook(note("block")))
    sdpa, attention = F.scaled_dot_product_attention, []

    def noting_sdpa(q, *rest, **options):
        out = sdpa(q, *rest, **options)
        attention.append((q.dtype, out.dtype))
        return out

    F.scaled_dot_product_attention = noting_sdpa
    try:
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            model(torch.zeros(1, 4, dtype=torch.long))
    finally:
        F.scaled_dot_product_attention = sdpa
    for hook in hooks:
        hook.remove()
    # Llama's q and k come from the rotation in float32, and are cast by the attention itself.
    kinds = getattr(model.config, "layer_types", None) or ()
    layers = model.config.num_hidden_layers - kinds.count("linear_attention")
    capped = getattr(model.config, "attn_logit_softcapping", None)
    assert capped or len(attention) == layers and {out for _, out in attention} == {dtype}, attention
    assert not gpt2 or {q for q, _ in attention} == {dtype}, attention
    gemma = model.config.model_type.startswith(("gemma", "olmo"))
    branches = "[qk]_norm" + (r"|post_\w+_layernorm" if gemma else "")
    branches += r"|linear_attn\.norm"
    gemma |= model.config.model_type == "qwen3_5_text"
    for name, (given, got) in seen.items():
        if gemma and re.search(branches, name):  # these, and round as Gemma's do
            assert (given, got) == (dtype, dtype), (name, given, got)
        elif re.search("[qk]_norm|post_norm", name):  # reads what a linear layer gave
            assert (given, got) == (dtype, torch.float32), (name, given, got)
        elif "ln_" in name or "norm" in name or name == "block":
            assert (given, got) == (torch.float32, torch.float32), (name, given, got)
        elif "rotary" in name:
            assert got == torch.float32, (name, got)
        elif "wte" in name or "wpe" in name or "embed_tokens" in name:
            assert got == torch.float32, (name, got)
        elif "drop" not in name:
            assert got == dtype, (name, got)


def isolation_of(starts, window=None):
    """The mask and the positions of documents that begin at these tokens; with a window a mask for
    each kind of layer."""
    index = torch.arange(POSITIONS)
    first = torch.where(starts[:, :-1] > 0, index, 0).cummax(1).values
    same = first[:, :, None] == first[:, None, :]
    mask = (same & (index[:, None] >= index))[:, None]
    if window:
        mask = {"full_attention": mask,
                "sliding_attention": mask & (index[:, None] - index < window)}
    return {"attention_mask": mask, "position_ids": index - first}


def loss_of(model, tokens, dtype, counts=None, starts=None):
    """The mean; with counts, the sum over the targets that count; with starts, of documents."""
    window = getattr(model.config, "sliding_window", None)
    isolation = {} if starts is None else isolation_of(starts, window)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype not in (torch.float32, torch.float64)):
        logits = model(tokens[:, :-1], **isolation).logits
    targets = tokens[:, 1:]
    if counts is not None:
        targets = targets.masked_fill(counts[:, 1:] == 0, -100)
    loss = F.cross_entropy((logits.float() if dtype != torch.float64 else logits).flatten(0, 1),
                           targets.flatten(), reduction="mean" if counts is None else "sum")
    return logits, loss


def loss_in_float64(model, micro_batches, counts, starts, parts):
    """Without autocast, from the same weights: how far 16 bit may move a loss."""
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        return sum(loss_of(exact, tokens, torch.float64, counted, begun)[1].item()
                   for tokens, counted, begun in zip(micro_batches, counts, starts)) / parts


def make_counts():
    """Which tokens count: of most sequences the end, of some nothing or all. The micro-batches of a
    step have different numbers, the second of step 1 none."""
    g = torch.Generator().manual_seed(4)
    begins = torch.randint(0, POSITIONS + 2, (STEPS, MICRO_BATCHES, BATCH, 1), generator=g)
    begins[1, 1] = POSITIONS + 1
    return (torch.arange(POSITIONS + 1) >= begins).int()


def make_starts():
    """Where documents begin: often, one after the other, or not in the whole sequence."""
    g = torch.Generator().manual_seed(5)
    often = torch.tensor([0.0, 0.1, 0.3, 0.6])[torch.randint(0, 4, (STEPS, MICRO_BATCHES, BATCH, 1),
                                                            generator=g)]
    return (torch.rand(STEPS, MICRO_BATCHES, BATCH, POSITIONS + 1, generator=g) < often).int()


def unconverted(family, model):
    """The same weights in layers as they were."""
    plain = make_model(family)
    plain.load_state_dict(model.state_dict())
    return plain


def name_of(name):
    """A parameter's name without what PEFT adds to it."""
    return name.removeprefix("base_model.model.").replace(".base_layer", "").replace(".default", "")


def trained(model):
    return {name_of(name): p for name, p in model.named_parameters() if p.requires_grad}


def weights_of(model, prefix, only_trained=False):
    return {f"{prefix}.{name_of(name)}": value.detach().clone()
            for name, value in model.named_parameters() if value.requires_grad or not only_trained}


def make_gpt(family, dtype, masked=False, isolated=False, recipe=None, lora=False, optimizer="adamw",
             **sizes):
    model = make_lora(family) if lora else make_model(family, **sizes)
    check_dtypes(model.base_model.model if lora else model, dtype)
    positions = LORA_POSITIONS if lora else POSITIONS
    if recipe:
        fp8.convert(model, recipe)
    tokens = torch.randint(0, VOCABULARY, (STEPS, MICRO_BATCHES, BATCH, positions + 1),
                           generator=torch.Generator().manual_seed(3))
    optimizer = optimizers.make_optimizer(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=INIT_SCALE, growth_factor=GROWTH,
                                  backoff_factor=BACKOFF, growth_interval=GROWTH_INTERVAL,
                                  enabled=dtype == torch.float16)
    result = {"tokens": tokens.int()} | weights_of(model, "initial")
    counts = [[None] * MICRO_BATCHES] * STEPS
    if masked:
        counts = make_counts()
        result["counts"] = counts
    starts = [[None] * MICRO_BATCHES] * STEPS
    if isolated:
        starts = make_starts()
        result["starts"] = starts
    records = {"loss": [], "loss_float64": [], "gradient_norm": [], "loss_scale": [], "skipped": []}
    for step in range(STEPS):
        parts = int(counts[step][..., 1:].sum()) if masked else MICRO_BATCHES
        exact = unconverted(family, model) if recipe else model
        records["loss_float64"].append(loss_in_float64(exact, tokens[step], counts[step],
                                                       starts[step], parts))
        optimizer.zero_grad(set_to_none=True)
        total, scale = 0.0, scaler.get_scale()
        for micro_batch in range(MICRO_BATCHES):
            if recipe:
                recipe.first_row = (step * MICRO_BATCHES + micro_batch) * BATCH * positions
            logits, loss = loss_of(model, tokens[step, micro_batch], dtype,
                                   counts[step][micro_batch], starts[step][micro_batch])
            scaler.scale(loss / parts).backward()
            total += loss.item() / parts
            if step == 0 and micro_batch == 0:
                result["logits"] = logits.float()
        scaler.unscale_(optimizer)
        if step == 0:
            result |= {f"gradient.{name}": p.grad.clone() for name, p in trained(model).items()}
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
        scaler.step(optimizer)
        scaler.update()
        if recipe:
            recipe.end_step()
        records["loss"].append(total)
        records["gradient_norm"].append(norm.item())
        records["loss_scale"].append(scaler.get_scale())
        records["skipped"].append(int(scaler.get_scale() < scale))
    result |= weights_of(model, "final", only_trained=True)
    print_records(dtype, records)
    check_records(dtype, records, four_bits=recipe and recipe.name in ("mxfp4", "nvfp4"))
    skipped = torch.tensor(records.pop("skipped"), dtype=torch.int32)
    return result | {"skipped": skipped} | {k: torch.tensor(v) for k, v in records.items()}


def print_records(dtype, records):
    print(dtype)
    for step, values in enumerate(zip(*records.values())):
        print(f"  {step}", " ".join(f"{name} {value:.7g}" for name, value in zip(records, values)))


def check_overflows(dtype, records):
    if dtype == torch.float16:
        assert records["skipped"] == [0, 0, 0, 1, 0, 0, 0, 1, 0, 0], records["skipped"]
        assert records["loss_scale"] == [2.0**n for n in (13, 13, 23, 13, 13, 13, 23, 13, 13, 13)]
    else:
        assert not any(records["skipped"]) and set(records["loss_scale"]) == {1.0}
    assert all(math.isfinite(n) != s for n, s in zip(records["gradient_norm"], records["skipped"]))


def check_records(dtype, records, four_bits):
    check_overflows(dtype, records)
    bound = 1e-5 if dtype == torch.float32 else 0.15 if four_bits else 0.05  # fp8 included
    for loss, exact in zip(records["loss"], records["loss_float64"]):
        assert abs(loss - exact) < bound, (loss, exact)


# ---------------------------------------------------------------- files


def save(name, tensors):
    path = FOLDER / f"{name}.safetensors"
    plain = {k: v.detach().clone().contiguous() for k, v in tensors.items()}
    save_file(plain, path, metadata={"format": "pt"})
    path.chmod(0o644)
    print(f"{path.name}: {len(plain)} tensors, {path.stat().st_size} bytes")


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FIXTURES = {"gpt": DTYPES, "llama": DTYPES, "qwen2": {"fp32": torch.float32}, "qwen3": DTYPES,
            "gemma2": {"fp32": torch.float32}, "gemma3": {"fp32": torch.float32},
            "olmo3": {"fp32": torch.float32}}


LORA_FIXTURES = {"gpt": {"fp32": torch.float32}, "llama": DTYPES, "qwen2": DTYPES}
E4M3 = torch.float8_e4m3fn
RECIPES = {"gpt": {"tensor": lambda: fp8.Recipe("tensor"),
                   "e4m3": lambda: fp8.Recipe("tensor", gradient=E4M3, power_of_two=True),
                   "delayed": lambda: fp8.Recipe("delayed", length=3, margin=1),
                   "row": lambda: fp8.Recipe("row"),
                   "block": blocks.Blocks},
           "llama": {"tensor": lambda: fp8.Recipe("tensor"),
                     "delayed": lambda: fp8.Recipe("delayed", length=3, margin=1),
                     "row": lambda: fp8.Recipe("row", gradient=E4M3)}}


# The same model and data as FAMILY_fp32, with other optimizers.
OPTIMIZERS = [("gpt", "muon"), ("gpt", "muon_bf16"), ("gpt", "lion"), ("gpt", "sgd"),
              ("llama", "muon")]

# Other ropes of llama_fp32, whose sequences have twice the original positions.
ROPES = {"linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.5}},
         "dynamic": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 2.5},
                     "max_position_embeddings": POSITIONS // 2},
         "yarn": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 2.5,
                                      "original_max_position_embeddings": POSITIONS // 2}}}

MX_PRECISIONS = {"mxfp8": E4M3, "mxfp4": torch.float4_e2m1fn_x2}  # the elements


def without_initial(tensors):
    """Without the initial weights and the tokens, which are in FAMILY_fp32 or FAMILY_lora_fp32."""
    return {name: value for name, value in tensors.items()
            if not name.startswith(("initial.", "tokens"))}


def make_fixture(family, dtype, lora=False):
    tensors = make_gpt(family, dtype, lora=lora)
    return tensors if dtype == torch.float32 else without_initial(tensors)


def without_base(tensors):
    """Without what is in FAMILY_fp32 as well, and without the final weights."""
    return {name: value for name, value in tensors.items()
            if not name.startswith(("initial.", "final.", "tokens"))}


def with_final(tensors):
    """Without what is in FAMILY_fp32 as well, but the final weights."""
    return {name: value for name, value in tensors.items()
            if not name.startswith(("initial.", "tokens", "gradient.", "logits"))}


def make_fp8(family, recipe):
    with fp8.attention_in_float32():
        return without_base(make_gpt(family, torch.bfloat16, recipe=recipe))


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    save("ops", make_operations())
    save("nf4", nf4.make_nf4())
    save("mx", mx.make_mx())
    save("gguf", gguf_blocks.make_gguf())
    save("rope", rope.make_rope())
    save("delta_rule", delta_rule.make_delta_rule())
    for family, dtypes in FIXTURES.items():
        for name, dtype in dtypes.items():
            save(f"{family}_{name}", make_fixture(family, dtype))
    for family, dtypes in LORA_FIXTURES.items():
        for name, dtype in dtypes.items():
            save(f"{family}_lora_{name}", make_fixture(family, dtype, lora=True))
    for family in "gemma2", "gemma3", "olmo3":
        for name in "bf16", "fp16":
            save(f"{family}_{name}", without_base(make_gpt(family, DTYPES[name])))
    save("llama_masked_fp32", without_initial(make_gpt("llama", torch.float32, masked=True)))
    for name in "gpt", "llama", "gemma3":
        save(f"{name}_isolated_fp32", without_base(make_gpt(name, torch.float32, isolated=True)))
    for name, sizes in ROPES.items():
        save(f"llama_{name}_fp32", without_base(make_gpt("llama", torch.float32, **sizes)))
    for family in "hyperclovax", "qwen3_5", "deltanet", "exaone4", "phi3":
        for name in ("fp32",) if family in ("exaone4", "phi3") else ("fp32", "bf16"):
            tensors = make_gpt(family, DTYPES[name])
            save(f"{family}_{name}", without_base(tensors) if name == "bf16" else
                 {key: value for key, value in tensors.items() if not key.startswith("final.")})
    save("gpt_distilled", distillation.make_steps(lambda: make_model("gpt"), VOCABULARY,
                                                  (STEPS, MICRO_BATCHES, BATCH, POSITIONS)))
    for family, name in OPTIMIZERS:
        save(f"{family}_{name}", with_final(make_gpt(family, torch.float32, optimizer=name)))
    save("mistral_window_fp32", without_base(make_gpt("mistral", torch.float32)))
    for family, recipes in RECIPES.items():
        for name, recipe in recipes.items():
            save(f"{family}_fp8_{name}", make_fp8(family, recipe()))
    for family in "gpt", "llama":
        for name, element in MX_PRECISIONS.items():
            save(f"{family}_{name}", make_fp8(family, fp8.Microscaling(name, element)))
        save(f"{family}_nvfp4", make_fp8(family, blocks.NVFP4()))


if __name__ == "__main__":
    main()
