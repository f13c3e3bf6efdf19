"""fp8 for the golden fixtures: linear layers whose operands are rounded to 8 bits with scales.

A layer takes the operands that it has under autocast in bf16, rounds each once more, multiplies them
with fp32 sums, scales the sums, adds the bias and rounds to bf16. Gradients of weights stay fp32.
What mantissa keeps as one matrix (q, k and v; gate and up) is one layer here too: one scale.
"""

import contextlib

import torch
import torch.nn.functional as F

import mx

MAX = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
WHOLE, ROWS, COLUMNS = None, 1, 0  # the dimension that a scale's maximum is taken over


class Recipe:
    def __init__(self, name, gradient=torch.float8_e5m2, power_of_two=False, length=0, margin=0):
        self.name, self.gradient, self.power_of_two = name, gradient, power_of_two
        self.length, self.margin = length, margin  # of "delayed"
        self.steps, self.now = [], {}              # amax by operand: of steps before, of this one
        self.first_row = 0                         # of the micro-batch, of all rows of the run

    def end_step(self):
        self.steps.append(self.now)
        self.now = {}

    def expected_amax(self, key):
        """The largest in the history, times the margin; 0 where there is none."""
        if self.name != "delayed":
            return 0.0
        seen = [step.get(key, 0.0) for step in self.steps[-self.length:]]
        return max(seen, default=0.0) * 2.0**self.margin

    def rounded(self, key, tensor, dtype, dim):
        """The 8-bit values of a matrix as fp32, and what they are to be multiplied by."""
        values = tensor.float()
        assert values.isfinite().all()
        amax = values.abs().max() if self.name != "row" else values.abs().amax(dim, keepdim=True)
        if self.name == "delayed":
            self.now[key] = max(self.now.get(key, 0.0), amax.item())
            if self.expected_amax(key) > 0:
                amax = torch.tensor(self.expected_amax(key))
        largest = torch.full_like(amax, MAX[dtype])  # number / tensor would round twice
        scale = torch.where(amax > 0, largest / amax, torch.ones_like(amax))
        scale = scale.clamp(max=2.0**126)
        if self.power_of_two:
            scale = torch.exp2(torch.floor(torch.log2(scale)))
        codes = (values * scale).clamp(-MAX[dtype], MAX[dtype]).to(dtype)
        return codes.float(), 1 / scale


class Microscaling(Recipe):
    """Blocks of 32 along the dimension that is summed over, as torchao rounds them."""

    def __init__(self, name, element):
        super().__init__(name, gradient=element)
        self.element = element

    def rounded(self, key, tensor, dtype, dim):
        rows = (tensor if dim == ROWS else tensor.t()).contiguous()
        width = rows.shape[1]
        values = mx.rounded(F.pad(rows, (0, -width % mx.BLOCK)), self.element, "up")[:, :width]
        return values if dim == ROWS else values.t(), torch.ones(1, 1)


class Linear(torch.autograd.Function):
    """out [N, outputs] = x [N, inputs] weight' + bias, weight [outputs, inputs]."""

    @staticmethod
    def forward(ctx, x, weight, bias, recipe, key):
        rows, wide = x.flatten(0, -2).bfloat16(), weight.bfloat16()
        e4m3 = torch.float8_e4m3fn
        a, a_scale = recipe.rounded((key, "x"), rows, e4m3, ROWS)
        b, b_scale = recipe.rounded((key, "w"), wide, e4m3, ROWS)
        out = (a @ b.t()) * (a_scale * b_scale.t())
        if bias is not None:
            out = out + bias.bfloat16().float()
        ctx.save_for_backward(rows, wide)
        ctx.recipe, ctx.key, ctx.shape, ctx.has_bias = recipe, key, x.shape, bias is not None
        return out.bfloat16().view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, dout):
        rows, wide = ctx.saved_tensors
        recipe, key, e4m3 = ctx.recipe, ctx.key, torch.float8_e4m3fn
        dout = dout.flatten(0, -2)
        assert dout.dtype == torch.bfloat16
        d, d_scale = recipe.rounded((key, "d"), dout, recipe.gradient, ROWS)
        w, w_scale = recipe.rounded((key, "w"), wide, e4m3, COLUMNS)
        dx = ((d @ w) * (d_scale * w_scale)).bfloat16()
        d, d_scale = recipe.rounded((key, "d"), dout, recipe.gradient, COLUMNS)
        x, x_scale = recipe.rounded((key, "x"), rows, e4m3, COLUMNS)
        dweight = (d.t() @ x) * (d_scale.t() * x_scale)
        dbias = dout.float().sum(0) if ctx.has_bias else None
        return dx.view(ctx.shape), dweight, dbias, None, None


class Attention(torch.autograd.Function):
    """Causal, of bf16 operands: fp32 inside, and only results are rounded to bf16."""

    @staticmethod
    def forward(ctx, q, k, v):
        q, k, v = (x.bfloat16().float() for x in (q, k, v))
        many = q.shape[1] // k.shape[1]  # heads of q that share one of k and v
        keys, values = (x.repeat_interleave(many, 1) for x in (k, v))
        scores = q @ keys.transpose(2, 3) / q.shape[-1]**0.5
        scores = scores.masked_fill(torch.ones(scores.shape[2:]).triu(1).bool(), -torch.inf)
        weights = scores.softmax(-1)
        out = (weights @ values).bfloat16()
        ctx.save_for_backward(q, keys, values, weights, out)
        ctx.many = many
        return out

    @staticmethod
    def backward(ctx, dout):
        """As FlashAttention has it: the sum along a row is that of dout and what was stored."""
        q, keys, values, weights, out = ctx.saved_tensors
        dout, scale = dout.float(), q.shape[-1]**-0.5
        rows = (dout * out.float()).sum(-1, keepdim=True)
        dscores = weights * (dout @ values.transpose(2, 3) - rows)
        dkeys, dvalues = dscores.transpose(2, 3) @ q * scale, weights.transpose(2, 3) @ dout
        dk, dv = (x.unflatten(1, (-1, ctx.many)).sum(2) for x in (dkeys, dvalues))
        return tuple(x.bfloat16() for x in (dscores @ keys * scale, dk, dv))


@contextlib.contextmanager
def attention_in_float32():
    """PyTorch's attention for bf16 on a CPU rounds on the way. 8 bits make a step of a sixteenth of
    what was a unit of bf16, so here only results are rounded, as mantissa does."""
    inner = F.scaled_dot_product_attention

    def attention(q, k, v, **options):
        if q.dtype == torch.float64:
            return inner(q, k, v, **options)
        with torch.autocast("cpu", enabled=False):
            return Attention.apply(q.bfloat16(), k.bfloat16(), v.bfloat16())

    F.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        F.scaled_dot_product_attention = inner


class GatedSilu(torch.autograd.Function):
    """silu(gate) * up, rounded once; so are both gradients."""

    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return (F.silu(gate.float()) * up.float()).bfloat16()

    @staticmethod
    def backward(ctx, dout):
        gate, up = (x.float() for x in ctx.saved_tensors)
        dout, sigmoid = dout.float(), torch.sigmoid(gate)
        slope = sigmoid * (1 + gate * (1 - sigmoid))
        return (dout * up * slope).bfloat16(), (dout * gate * sigmoid).bfloat16()


def gate(mlp):
    def forward(x):
        gate_of_x = mlp.gate_proj(x)
        return mlp.down_proj(GatedSilu.apply(gate_of_x, mlp.up_proj(x)))

    mlp.forward = forward


def join(recipe, key, modules, gpt2):
    """These modules, called one after the other on the same input, become one layer."""
    kept = []

    def compute(x):
        weights = [m.weight.t() if gpt2 else m.weight for m in modules]
        biases = None if modules[0].bias is None else torch.cat([m.bias for m in modules])
        with torch.autocast("cpu", enabled=False):
            out = Linear.apply(x, torch.cat(weights), biases, recipe, key)
        return list(out.split([w.shape[0] for w in weights], dim=-1))

    def forward_of(index):
        def forward(x):
            if index == 0:
                kept[:] = compute(x.bfloat16())
            # In fp32 for the rotation, whose gradient is then rounded once and not in each of its terms.
            return kept[index].float() if key[1] == "qkv" else kept[index]
        return forward

    for index, module in enumerate(modules):
        module.forward = forward_of(index)


class Head(torch.autograd.Function):
    """In bf16 as under autocast, but for the gradient of its weight, which stays fp32."""

    @staticmethod
    def forward(ctx, x, weight):
        rows, wide = x.bfloat16().float(), weight.bfloat16().float()
        ctx.save_for_backward(rows, wide)
        return (rows @ wide.t()).bfloat16()

    @staticmethod
    def backward(ctx, dout):
        rows, wide = ctx.saved_tensors
        dout = dout.float()
        return (dout @ wide).bfloat16().float(), dout.flatten(0, -2).t() @ rows.flatten(0, -2)


def convert_head(head):
    def forward(x):
        with torch.autocast("cpu", enabled=False):
            return Head.apply(x, head.weight)

    head.forward = forward


def convert(model, recipe):
    """The linear layers of all blocks; head and attention stay in bf16."""
    convert_head(model.lm_head)
    if hasattr(model, "transformer"):
        for i, block in enumerate(model.transformer.h):
            for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
                join(recipe, (i, name), [block.get_submodule(name)], gpt2=True)
        return
    for i, block in enumerate(model.model.layers):
        attention, mlp = block.self_attn, block.mlp
        join(recipe, (i, "qkv"), [attention.q_proj, attention.k_proj, attention.v_proj], False)
        join(recipe, (i, "o"), [attention.o_proj], False)
        join(recipe, (i, "fc"), [mlp.gate_proj, mlp.up_proj], False)
        join(recipe, (i, "down"), [mlp.down_proj], False)
        gate(mlp)
