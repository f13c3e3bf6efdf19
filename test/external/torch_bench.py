#!/usr/bin/env python3
"""Measures PyTorch on the same model, for comparison in scripts/gpu_check.sh.

GPT-2 124M, or SmolLM2 135M with --family llama, written the way PyTorch is fast: torch.compile,
SDPA, autocast, fused AdamW, the vocabulary padded to 50304, the loss on 16-bit logits in fp32.
Prints tokens/s for fp32, tf32, fp16 and bf16, peak memory, and the speed of SDPA's flash attention
and of cuDNN's alone. --json writes the figures, one record a line. --device cpu measures the CPU,
with --eager as in the comparison of `make bench`. --tiny is a rehearsal on the CPU. --warm-up only
fills the cache of torch.compile.
"""
import argparse
import json
import statistics
import sys
import time

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as reason:
    sys.exit(f"torch_bench: no PyTorch here ({reason})")

ROUNDS = 5
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
LOWER = {"fp16": torch.float16, "bf16": torch.bfloat16}
KERNELS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
           "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}
# dtype, sequences, heads of queries, of keys and values, length, head size: those of gpu_bench.
SHAPES = [("bf16", 16, 12, 12, 1024, 64), ("bf16", 8, 12, 12, 2048, 64),
          ("bf16", 4, 12, 12, 4096, 64), ("bf16", 2, 12, 12, 8192, 64),
          ("bf16", 1, 12, 12, 16384, 64), ("fp16", 16, 12, 12, 1024, 64),
          ("bf16", 16, 6, 6, 1024, 128), ("bf16", 8, 6, 6, 2048, 128),
          ("bf16", 4, 6, 6, 4096, 128), ("bf16", 2, 6, 6, 8192, 128),
          ("bf16", 1, 6, 6, 16384, 128), ("bf16", 16, 9, 3, 1024, 64),
          ("bf16", 2, 32, 8, 4096, 128), ("bf16", 8, 4, 1, 4096, 256),
          ("fp32", 16, 12, 12, 1024, 64), ("fp32", 4, 6, 6, 4096, 128)]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


def rotate(x, cosines, sines):
    low, high = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-high, low), dim=-1) * sines


class LlamaBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, heads // 3, width // heads
        hidden = 8 * width // 3
        self.norm1, self.norm2 = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.qkv = nn.Linear(width, (heads + 2 * self.kv_heads) * self.size, bias=False)
        self.projection = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, turns):
        batch, length, width = x.shape
        rows = self.qkv(self.norm1(x)).view(batch, length, -1, self.size).transpose(1, 2)
        q, k, v = rows.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        q, k = (rotate(part, *turns).to(v.dtype) for part in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.projection(y.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.blocks = nn.ModuleList(
            LlamaBlock(sizes.width, sizes.heads) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width, 1e-5)
        size = sizes.width // sizes.heads
        waves = 1e5 ** (-torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(sizes.seq), waves).repeat(1, 2)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())
        finish(self, sizes)

    def forward(self, inputs, targets):
        x = self.tokens(inputs)
        for block in self.blocks:
            x = block(x, (self.cosines, self.sines))
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def finish(model, sizes):
    """Weights, and a head that is the embedding."""
    model.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    model.head.weight = model.tokens.weight


class GPT(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Embedding(sizes.seq, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes.width, sizes.heads) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)
        finish(self, sizes)

    def forward(self, inputs, targets):
        x = self.tokens(inputs) + self.positions.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


FAMILIES = {"gpt2": GPT, "llama": Llama}


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


class Training:
    """One model, its optimizer, one batch, in one precision."""

    def __init__(self, options, precision):
        device = options.device
        torch.manual_seed(1)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            # Newer releases warn about these two names and still honor them.
            torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
            torch.backends.cudnn.allow_tf32 = precision == "tf32"
        self.device, self.lower = device, LOWER.get(precision)
        self.model = FAMILIES[options.family](options).to(device)
        self.call = self.model if options.eager else torch.compile(self.model)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1,
            fused=device == "cuda")
        self.scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")
        shape = (options.batch, options.seq)
        self.inputs, self.targets = (
            torch.randint(0, options.used_vocabulary, shape, device=device) for _ in range(2))

    def step(self):
        with torch.autocast(self.device, dtype=self.lower, enabled=self.lower is not None):
            loss = self.call(self.inputs, self.targets)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss


def timed(function, device, seconds):
    """Median seconds of a call, over rounds that together take about `seconds`."""
    wait(device)
    start = time.perf_counter()
    function()
    wait(device)
    once = time.perf_counter() - start
    count = max(1, min(200, int(seconds / ROUNDS / max(once, 1e-6))))
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(count):
            function()
        wait(device)
        rounds.append((time.perf_counter() - start) / count)
    return statistics.median(rounds)


def bench_training(options, precision):
    training = Training(options, precision)
    first = [training.step().item() for _ in range(3)]
    if options.warm_up:
        return None
    seconds = timed(training.step, options.device, options.seconds)
    speed = options.batch * options.seq / seconds
    peak = torch.cuda.max_memory_allocated() if options.device == "cuda" else 0
    reserved = torch.cuda.max_memory_reserved() if options.device == "cuda" else 0
    print(f"  {precision:4} {speed:10.0f} tokens/s {1e3 * seconds:9.2f} ms/step  "
          f"{peak / 2**30:.2f} GiB ({reserved / 2**30:.2f} reserved)  loss {first[-1]:.3f}",
          flush=True)
    return {"precision": precision, "tokens_per_s": round(speed, 1),
            "ms_per_step": round(1e3 * seconds, 4), "peak_bytes": peak,
            "reserved_bytes": reserved, "compiled": not options.eager}


def bench_attention(options, kernel, name, batch, heads, kv_heads, length, head):
    dtype = LOWER.get(name, torch.float32)
    q, k, v, dout = (torch.randn(batch, count, length, head, device=options.device, dtype=dtype)
                     for count in (heads, kv_heads, kv_heads, heads))
    for tensor in (q, k, v):
        tensor.requires_grad_()

    def forward():
        with sdpa_kernel(KERNELS[kernel]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                  enable_gqa=heads != kv_heads)

    out = forward()

    def backward():
        torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

    backward()
    with torch.no_grad():
        forward_seconds = timed(forward, options.device, options.seconds / 20)
    backward_seconds = timed(backward, options.device, options.seconds / 20)
    work = 2 * batch * heads * head * length**2 * 1e-12  # the causal half
    rates = work / forward_seconds, 2.5 * work / backward_seconds
    print(f"  {kernel:9} {name:4} D {head:3} T {length:5} B {batch:2} H {heads:2} / {kv_heads:2} "
          f"{rates[0]:9.1f} TFLOP/s {rates[1]:9.1f} TFLOP/s", flush=True)
    return {"kernel": kernel, "dtype": name, "D": head, "T": length, "B": batch, "H": heads,
            "kv": kv_heads,
            "forward_tflop_per_s": round(rates[0], 2), "backward_tflop_per_s": round(rates[1], 2)}


def attempt(function, *arguments):
    """A measurement that fails (memory, an unsupported dtype) does not stop the others."""
    try:
        return function(*arguments)
    except Exception as reason:  # whatever PyTorch throws
        text = str(reason).strip().splitlines() or [type(reason).__name__]
        print(f"  {function.__name__} {arguments[1:]}: failed: {text[0][:200]}", flush=True)
        return {"failed": text[0][:200]}
    finally:
        torch.compiler.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def write(options, training, attention):
    """Writes all figures so far, so that a time limit loses only the rest."""
    if not options.json:
        return
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    with open(options.json, "w", encoding="utf-8") as out:
        head = {"device": name, "torch": torch.__version__, "rehearsal": options.tiny,
                "batch": options.batch, "seq_len": options.seq}
        out.write(json.dumps(head)[:-1])
        for key, lines in (("training", training), ("attention", attention)):
            out.write(f',\n"{key}": [\n' + ",\n".join(map(json.dumps, lines)) + "]")
        out.write("}\n")


def read_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--family", choices=FAMILIES, default="gpt2")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=2, help="about, for each figure")
    parser.add_argument("--precision", choices=PRECISIONS, action="append")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--steps-only", action="store_true", help="no attention alone")
    parser.add_argument("--attention-only", action="store_true", help="no training steps")
    parser.add_argument("--warm-up", action="store_true", help="compile, measure nothing")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal on the CPU")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    gpt2 = options.family == "gpt2"
    options.width, options.heads = (768, 12) if gpt2 else (576, 9)
    options.layers = options.layers or (12 if gpt2 else 30)
    options.vocabulary, options.used_vocabulary = (50304, 50257) if gpt2 else (49152, 49152)
    if options.tiny:
        options.device = "cpu"
        options.batch, options.seq, options.layers, options.width, options.heads = 2, 16, 1, 36, 3
        options.vocabulary = options.used_vocabulary = 257
        options.seconds = 0.1
    elif options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch_bench: PyTorch sees no GPU here; --tiny rehearses on the CPU")
    return options


def main():
    options = read_options()
    print(f"PyTorch {torch.__version__}, batch {options.batch} x {options.seq}"
          + (": a rehearsal, no figure below means anything" if options.tiny else ""), flush=True)
    training, attention = [], []
    # bf16 first: time may be short
    for precision in reversed([] if options.attention_only else options.precision or PRECISIONS):
        training.append(attempt(bench_training, options, precision))
        write(options, training, attention)
    if options.warm_up:
        return
    shapes, kernels = SHAPES, {"fp32": ("efficient",)}
    if options.tiny:
        shapes, kernels = [("bf16", 1, 2, 2, 16, 64)], {"bf16": ("math",)}
    if options.steps_only or options.device == "cpu" and not options.tiny:
        shapes = []
    else:
        print(f"SDPA, causal {'forward':>40} {'backward':>17}")
    for shape in shapes:
        for kernel in kernels.get(shape[0], ("flash", "cudnn")):
            attention.append(attempt(bench_attention, options, kernel, *shape))
            write(options, training, attention)
    if any("failed" in line for line in training + attention):
        sys.exit(1)


if __name__ == "__main__":
    main()
