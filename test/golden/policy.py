"""Writes the fixtures of learning from rewards: what TRL's loss computes, for tests to compare with.

    python test/golden/policy.py

Each run is ten steps on stored completions, rewards and old log-probabilities, with the loss of
TRL's GRPOTrainer. Advantages are its formula, in torch.
"""

import math
from collections import defaultdict
from types import SimpleNamespace

import torch
from trl import GRPOTrainer
from trl.trainer.utils import nanstd

import make_golden as golden
import optimizers
from make_golden import BATCH, MICRO_BATCHES, STEPS, VOCABULARY
from preference import samples_of

GENERATIONS, COMPLETIONS, LONGEST = 2, MICRO_BATCHES * BATCH, 30
DEFAULTS = {"loss_type": "dapo", "level": "token", "high": 0.2, "delta": None, "beta": 0.0,
            "corrects": True, "scale": "group", "masks": False, "has_old": True}
RUNS = {
    "dapo": {},
    "on_policy": {"has_old": False},
    "grpo": {"loss_type": "grpo", "high": 0.28, "scale": "none"},
    "bnpo": {"loss_type": "bnpo", "delta": 1.3, "masks": True},
    "dr_grpo": {"loss_type": "dr_grpo", "scale": "batch"},
    "cispo": {"loss_type": "cispo", "high": 1.1},
    "gspo": {"loss_type": "grpo", "level": "sequence", "high": 0.02, "low": 0.02},
    "cispo_sequence": {"loss_type": "cispo", "level": "sequence", "high": 1.05, "masks": True},
}
LORA_RUNS = {
    "kl": {"beta": 0.3},
    "kl_plain": {"beta": 0.3, "corrects": False, "loss_type": "grpo"},
    "kl_sequence": {"beta": 0.3, "level": "sequence", "loss_type": "bnpo"},
    "kl_on_policy": {"beta": 0.3, "has_old": False},
}


def log_probabilities(model, row):
    tokens = torch.tensor([row["tokens"]])
    logits = model(tokens[:, :-1]).logits[0].float()
    logps = logits.log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
    return logps[row["prompt"] - 1:]


def padded(values, count=LONGEST):
    return torch.stack([torch.nn.functional.pad(v, (0, count - len(v))) for v in values])


def make_rows():
    """Completions of two prompts a step. One group has equal rewards."""
    g = torch.Generator().manual_seed(11)

    def between(least, most):
        return int(torch.randint(least, most + 1, (), generator=g))

    rows = []
    for group in range(STEPS * COMPLETIONS // GENERATIONS):
        prompt = torch.randint(1, VOCABULARY, (between(1, 12),), generator=g).tolist()
        for _ in range(GENERATIONS):
            completion = torch.randint(1, VOCABULARY, (between(1, LONGEST),), generator=g).tolist()
            reward = 0.5 if group == 3 else float(torch.randn((), generator=g))
            rows.append({"tokens": prompt + completion, "prompt": len(prompt), "reward": reward,
                         "ended": between(0, 3) > 0,
                         "noise": 0.25 * torch.randn(len(completion), generator=g)})
    return rows


def advantages_of(run, rewards):
    grouped = rewards.view(-1, GENERATIONS)
    std = nanstd(grouped, dim=1).repeat_interleave(GENERATIONS)
    if run["scale"] == "batch":
        std = nanstd(rewards).expand_as(rewards)
    advantages = rewards - grouped.mean(dim=1).repeat_interleave(GENERATIONS)
    return advantages if run["scale"] == "none" else advantages / (std + 1e-4)


def make_trainer(run, rows_of_batch):
    """What GRPOTrainer._compute_loss reads of its object."""
    trainer = SimpleNamespace(
        importance_sampling_level=run["level"], beta=run["beta"], loss_type=run["loss_type"],
        epsilon_low=run.get("low", 0.2), epsilon_high=run["high"], top_entropy_quantile=1.0,
        aux_loss_enabled=False, off_policy_mask_threshold=None, use_vllm=False,
        vllm_importance_sampling_correction=False, max_completion_length=LONGEST,
        current_gradient_accumulation_steps=MICRO_BATCHES, _entropy_bonus_enabled=False,
        model=SimpleNamespace(training=True), _metrics={"train": defaultdict(list)},
        args=SimpleNamespace(delta=run["delta"], use_bias_correction_kl=run["corrects"],
                             steps_per_generation=MICRO_BATCHES),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x,
                                    reduce=lambda x, reduction: x))

    def logps(model, *_, **__):
        values = padded([log_probabilities(model, row) for row in rows_of_batch[0]])
        return values, -values.detach(), None

    trainer._get_per_token_logps_and_entropies = logps
    return trainer


def add_gradients(run, model, rows, reference, records):
    """One step's gradients. Returns the loss."""
    masks = padded([torch.ones(len(row["noise"])) * (row["ended"] or not run["masks"])
                    for row in rows])
    advantages = advantages_of(run, torch.tensor([row["reward"] for row in rows]))
    current, total, sums = [None], 0.0, defaultdict(float)
    trainer = make_trainer(run, current)
    for first in range(0, COMPLETIONS, BATCH):
        here = slice(first, first + BATCH)
        current[0] = rows[here]
        nothing = torch.zeros((BATCH, 0), dtype=torch.long)
        inputs = {"prompt_ids": nothing, "prompt_mask": nothing,
                  "completion_ids": torch.zeros((BATCH, LONGEST), dtype=torch.long),
                  "completion_mask": masks[here], "advantages": advantages[here],
                  "num_items_in_batch": masks.sum()}
        if run["has_old"]:
            inputs["old_per_token_logps"] = padded([row["old"] for row in rows[here]])
        if run["beta"]:
            inputs["ref_per_token_logps"] = padded(reference[here])
        loss = GRPOTrainer._compute_loss(trainer, model, inputs)
        loss.backward()
        total += loss.item()
        tokens = masks[here].sum().item()
        units = BATCH if run["level"] == "sequence" else tokens
        names = {"clip_ratio/low_mean": ("low", units), "clip_ratio/high_mean": ("high", units),
                 "cispo_clip_ratio": ("high", units), "kl": ("kl", tokens),
                 "entropy": ("nll", tokens)}
        for name, (short, count) in names.items():
            if name in trainer._metrics["train"]:
                sums[short] += trainer._metrics["train"][name][-1] * count
    for short in "low", "high", "kl", "nll":
        records[short].append(sums[short])
    return total


def make_run(family, run, rows, reference, lora):
    model = golden.make_lora(family) if lora else golden.lora_base(family)
    optimizer = optimizers.make_optimizer(model, "adamw")
    records, result = defaultdict(list), {}
    for step in range(STEPS):
        here = slice(step * COMPLETIONS, (step + 1) * COMPLETIONS)
        optimizer.zero_grad(set_to_none=True)
        records["loss"].append(add_gradients(run, model, rows[here], reference[here], records))
        if step == 0:
            result |= samples_of(family, {name: p.grad for name, p in
                                          golden.trained(model).items()}, "gradient")
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), golden.GRAD_CLIP)
        assert math.isfinite(norm)
        records["gradient_norm"].append(norm.item())
        optimizer.step()
    print("  ", {key: [round(v, 4) for v in values[:3]] for key, values in records.items()})
    return result | {key: torch.tensor(values) for key, values in records.items()}


def make_fixture(family, rows):
    base = golden.lora_base(family)
    with torch.no_grad():
        reference = [log_probabilities(base, row) for row in rows]
    for row, logps in zip(rows, reference):
        row["old"] = logps + row["noise"]
    result = {
        "tokens": torch.tensor(sum((row["tokens"] for row in rows), []), dtype=torch.int32),
        "lengths": torch.tensor([len(row["tokens"]) for row in rows], dtype=torch.int32),
        "prompts": torch.tensor([row["prompt"] for row in rows], dtype=torch.int32),
        "ended": torch.tensor([row["ended"] for row in rows], dtype=torch.int32),
        "rewards": torch.tensor([row["reward"] for row in rows]),
        "old": torch.cat([row["old"] for row in rows]),
    }
    for lora, runs in (False, RUNS), (True, RUNS | LORA_RUNS):
        for name, run in runs.items():
            title = f"{'lora_' if lora else ''}{name}"
            print(family, title)
            tensors = make_run(family, DEFAULTS | run, rows, reference, lora)
            result |= {f"{title}.{key}": value for key, value in tensors.items()}
    return result


# Of the operation alone: more sequences than a block has warps, one of them without a target.
OPERATIONS = {
    "clipped": {"delta": 1.4, "beta": 0.1, "corrects": False},
    "sequence": {"level": "sequence", "high": 0.1, "low": 0.05, "beta": 0.1},
    "cispo": {"loss_type": "cispo", "high": 1.2, "beta": 0.1},
}
SEQUENCES, LENGTH = 20, 70


def make_operation():
    g = torch.Generator().manual_seed(12)

    def normal(scale):
        return scale * torch.randn(SEQUENCES, LENGTH, generator=g)

    mask = (torch.arange(LENGTH) >= torch.randint(0, 9, (SEQUENCES, 1), generator=g)).float()
    mask = mask * (torch.arange(LENGTH) < torch.randint(9, 80, (SEQUENCES, 1), generator=g))
    mask[7] = 0
    nll = torch.rand(SEQUENCES, LENGTH, generator=g) * 4
    # Means over tokens differ by sequences, so that some ratios of these are clipped too.
    old = nll + normal(0.25) + 0.1 * torch.randn(SEQUENCES, 1, generator=g)
    reference, advantages = nll + normal(0.5), torch.randn(SEQUENCES, generator=g)
    result = {"mask": mask.int(), "nll": nll, "old": old, "reference": reference,
              "advantages": advantages}
    for name, run in OPERATIONS.items():
        run = DEFAULTS | run
        logps = (-nll).double().requires_grad_()
        trainer = make_trainer(run, [None])
        trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = 1
        trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logps, -logps.detach(), None)
        nothing = torch.zeros((SEQUENCES, 0), dtype=torch.long)
        loss = GRPOTrainer._compute_loss(trainer, None, {
            "prompt_ids": nothing, "prompt_mask": nothing, "completion_ids": mask.long(),
            "completion_mask": mask.double(), "advantages": advantages.double(),
            "num_items_in_batch": mask.double().sum(), "old_per_token_logps": -old.double(),
            "ref_per_token_logps": -reference.double()})
        loss.backward()
        result |= {f"{name}.loss": loss.detach().float().view(1),
                   f"{name}.weights": -logps.grad.float(),
                   f"{name}.kl": torch.tensor(trainer._metrics["train"]["kl"])}
    return result


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    rows = make_rows()
    golden.save("policy", make_operation())
    for family in "gpt", "llama":
        golden.save(f"{family}_policy", make_fixture(family, rows))


if __name__ == "__main__":
    main()
