"""Distillation from the k largest logits of a teacher: its loss, and ten steps of a model with it."""
import torch
import torch.nn.functional as F

import optimizers

TOP, ALPHA, TEMPERATURE = 5, 0.7, 2.0


def losses_of(logits, targets, teacher_tokens, teacher_logits, alpha, temperature):
    """alpha T^2 KL(teacher || student) + (1 - alpha) cross entropy of each row; the teacher's
    distribution is 0 outside of its k tokens."""
    q = torch.zeros_like(logits).scatter(-1, teacher_tokens,
                                         F.softmax(teacher_logits / temperature, dim=-1))
    divergence = F.kl_div(F.log_softmax(logits / temperature, dim=-1), q, reduction="none").sum(-1)
    return (alpha * temperature**2 * divergence
            + (1 - alpha) * F.cross_entropy(logits, targets, reduction="none"))


def make_teacher(g, rows, vocabulary, top):
    """Ascending tokens, and logits in fp16 less the largest, as files have them."""
    largest = torch.topk(torch.randn(rows, vocabulary, generator=g) * 3, top)
    order = largest.indices.argsort(dim=1)
    logits = largest.values - largest.values[:, :1]
    return largest.indices.gather(1, order), logits.gather(1, order).half().float()


def make_operation(g, rows, vocabulary, alpha, temperature):
    """The gradient is that of the mean loss times a loss scale of 1024."""
    logits = (torch.randn(rows, vocabulary, generator=g) * 3).requires_grad_(True)
    targets = torch.randint(0, vocabulary, (rows,), generator=g)
    tokens, teacher = make_teacher(g, rows, vocabulary, 7)
    losses = losses_of(logits, targets, tokens, teacher, alpha, temperature)
    (losses.mean() * 1024).backward()
    return {"logits": logits, "targets": targets.int(), "teacher_tokens": tokens.int(),
            "teacher_logits": teacher, "losses": losses, "dlogits": logits.grad}


def train(model, tokens, counts, teacher, sizes, dtype):
    """Ten steps on sequences that follow one another. The mean is over the targets that count."""
    steps, micro_batches, batch, length = sizes
    optimizer = optimizers.make_optimizer(model, "adamw")
    result = {"loss": [], "gradient_norm": []}
    for step in range(steps):
        rows = micro_batches * batch * length
        counted = counts[step * rows + 1:(step + 1) * rows + 1].sum()
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for micro_batch in range(micro_batches):
            first = (step * micro_batches + micro_batch) * batch * length
            at = slice(first, first + batch * length)
            with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
                logits = model(tokens[at].view(batch, length)).logits
            losses = losses_of(logits.float().flatten(0, 1), tokens[first + 1:at.stop + 1],
                               teacher[0][at], teacher[1][at], ALPHA, TEMPERATURE)
            loss = (losses * counts[first + 1:at.stop + 1]).sum() / counted
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        result["loss"].append(total)
        result["gradient_norm"].append(norm.item())
    return {name: torch.tensor(values) for name, values in result.items()}


def make_steps(make_model, vocabulary, sizes):
    g = torch.Generator().manual_seed(6)
    rows = sizes[0] * sizes[1] * sizes[2] * sizes[3]
    tokens = torch.randint(0, vocabulary, (rows + 1,), generator=g)
    counts = (torch.rand(rows + 1, generator=g) < 0.7).int()
    teacher = make_teacher(g, rows, vocabulary, TOP)
    result = {"tokens": tokens.int(), "counts": counts, "teacher_tokens": teacher[0].int(),
              "teacher_logits": teacher[1]}
    for name, dtype in ("fp32", torch.float32), ("bf16", torch.bfloat16):
        records = train(make_model(), tokens, counts, teacher, sizes, dtype)
        result |= {f"{name}.{key}": value for key, value in records.items()}
    return result
