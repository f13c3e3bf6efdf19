"""Writes the fixtures of preference tuning: what TRL computes, for tests to compare with.

    python test/golden/preference.py [FOLDER]

Each run is ten steps of one objective on pairs of documents, with TRL's trainers as the oracle. The
losses, rewards and gradients of TRL are compared with those of preference_losses.py on one document
at a time, and fp32 runs with the final weights of TRL's own train().
"""

import copy
import math
import tempfile

import torch
from accelerate.utils import convert_outputs_to_fp32
from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

import make_golden as golden
import optimizers
from make_golden import STEPS, VOCABULARY
from preference_losses import RUNS, pair_losses

# Pairs of each micro-batch of a step, one list for each sequence of the micro-batch.
SEQUENCES = [[[0, 1], [2]], [[3], [4]]]
MICRO_BATCHES = [sum(sequences, []) for sequences in SEQUENCES]
PAIRS = sum(map(len, MICRO_BATCHES))
ROWS = golden.LORA_POSITIONS  # of a sequence; a document of L tokens takes L - 1
END = 0  # the last token of each answer

IN_16_BITS = ["dpo", "orpo", "kto"]


# ---------------------------------------------------------------- plain PyTorch


def log_probabilities(model, document):
    logits = model(torch.tensor([document[:-1]])).logits[0]
    if logits.dtype != torch.float64:
        logits = logits.float()
    return logits.log_softmax(-1).gather(1, torch.tensor(document[1:])[:, None])[:, 0]


def plain_losses(run, model, pairs, reference):
    """pair_losses of some pairs."""
    chosen, rejected = ([log_probabilities(model, pair["prompt"] + pair[answer]) for pair in pairs]
                        for answer in ("chosen", "rejected"))
    answers = [[len(pair["prompt"]) - 1] * 2 for pair in pairs]
    return pair_losses(run, chosen, rejected, answers, reference,
                       torch.tensor([pair["desirable"] for pair in pairs]))


def loss_in_float64(run, model, pairs, reference):
    """Of a step, from the same weights: how far rounding moves a loss."""
    model = copy.deepcopy(model).double()
    model.__dict__.pop("forward", None)  # without autocast
    with torch.no_grad():
        return sum(plain_losses(run, model, [pairs[i] for i in micro_batch], reference[micro_batch])
                   [0].sum().item() for micro_batch in MICRO_BATCHES) / PAIRS


def reference_of(model, pairs):
    """Sums [pairs, 2] of the log-probabilities of answers."""
    with torch.no_grad():
        return torch.tensor([[log_probabilities(model, pair["prompt"] + pair[answer])
                              [len(pair["prompt"]) - 1:].sum() for answer in ("chosen", "rejected")]
                             for pair in pairs], dtype=model.dtype)


# ---------------------------------------------------------------- pairs


def make_pair(g, rows):
    """Two documents that share a prompt and take that many rows."""
    def between(least, most):
        return int(torch.randint(least, most + 1, (), generator=g))

    def tokens(count):
        return torch.randint(1, VOCABULARY, (count,), generator=g).tolist()

    prompt = between(1, rows // 4)
    answers = rows + 2 - 2 * prompt
    chosen = between(1, answers - 1)
    return {"prompt": tokens(prompt), "chosen": tokens(chosen - 1) + [END],
            "rejected": tokens(answers - chosen - 1) + [END], "desirable": between(0, 2) > 0}


def make_pairs():
    """Sequences filled one after the other with whole pairs hold those of SEQUENCES."""
    g = torch.Generator().manual_seed(6)
    pairs = []
    for _ in range(STEPS):
        for least, most in (12, 20), (24, 50), (ROWS - 11, ROWS), (50, ROWS), (67, ROWS):
            pairs.append(make_pair(g, int(torch.randint(least, most + 1, (), generator=g))))
    packed, sequence, room = [], [], ROWS
    for i, pair in enumerate(pairs):
        rows = 2 * len(pair["prompt"]) + len(pair["chosen"]) + len(pair["rejected"]) - 2
        if rows > room:
            packed.append(sequence)
            sequence, room = [], ROWS
        sequence.append(i)
        room -= rows
    packed.append(sequence)
    assert packed == [[step * PAIRS + i for i in sequence] for step in range(STEPS)
                      for sequence in sum(SEQUENCES, [])], packed
    return pairs


# ---------------------------------------------------------------- TRL


def make_tokenizer():
    """One word for each token, so that TRL's tokenization is the tokens."""
    words = ["<end>"] + [f"t{i}" for i in range(1, VOCABULARY)]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<end>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")


def text(tokens):
    return "".join(f" t{t}" if t != END else " <end>" for t in tokens)


class TokenizedKTO(KTOTrainer):
    """With mismatched answers that are given, where KTOTrainer takes those of other rows."""

    def _prepare_dataset(self, dataset, *_):
        return dataset


def open_trainer(run, model, pairs, folder, peft_config):
    options = dict(
        output_dir=folder, per_device_train_batch_size=1, gradient_accumulation_steps=PAIRS,
        max_steps=STEPS, train_sampling_strategy="sequential", max_grad_norm=golden.GRAD_CLIP,
        lr_scheduler_type="constant", logging_steps=1, bf16=False, use_cpu=True, report_to="none",
        gradient_checkpointing=False, disable_tqdm=True, save_strategy="no", beta=run["beta"])
    given = dict(model=model, processing_class=make_tokenizer(), peft_config=peft_config)
    reference = {"ref_model": None if peft_config else copy.deepcopy(model)}
    texts = Dataset.from_list([{key: text(pair[key]) for key in ("prompt", "chosen", "rejected")}
                               for pair in pairs])
    if run["objective"] == "kto":
        tokens = Dataset.from_list([{
            "prompt_ids": pair["prompt"], "completion_ids": pair["chosen"],
            "KL_completion_ids": pair["rejected"], "label": pair["desirable"]} for pair in pairs])
        options["per_device_train_batch_size"] = 2  # it refuses 1, and is not used
        weights = {key: run[key] for key in ("desirable_weight", "undesirable_weight")}
        return TokenizedKTO(args=KTOConfig(**options, **weights), train_dataset=tokens, **given,
                            **reference)
    if run["objective"] == "orpo":
        return ORPOTrainer(args=ORPOConfig(**options, max_length=512), train_dataset=texts, **given)
    if run["objective"] == "simpo":
        options |= {"loss_type": "simpo", "simpo_gamma": run["gamma"], "max_length": 512,
                    "cpo_alpha": run["nll_weight"], "label_smoothing": run["label_smoothing"]}
        return CPOTrainer(args=CPOConfig(**options), train_dataset=texts, **given)
    # Its loss for AOT is the smoothed one of DPO when a batch is one pair.
    smoothing = run["label_smoothing"]
    loss = "ipo" if run["objective"] == "ipo" else "aot" if smoothing else "sigmoid"
    args = DPOConfig(**options, loss_type=[loss, "sft"], loss_weights=[1.0, run["nll_weight"]],
                     label_smoothing=smoothing)
    return DPOTrainer(args=args, train_dataset=texts, **given, **reference)


def fill_adapters(model, family):
    """With the values of FAMILY_lora_fp32."""
    given = golden.trained(golden.make_lora(family))
    with torch.no_grad():
        for name, parameter in golden.trained(model).items():
            parameter.copy_(given[name])


def make_trainer(run, family, lora, pairs, folder):
    trainer = open_trainer(run, golden.lora_base(family), pairs, folder,
                           golden.lora_config(family) if lora else None)
    if lora:
        fill_adapters(trainer.model, family)
    trainer.optimizer = optimizers.make_optimizer(trainer.model, "adamw")
    trainer.model.train()
    return trainer


def autocast(model, dtype):
    """As accelerate does it: the forward pass alone, whose outputs are widened."""
    forward = model.forward

    def cast(*given, **named):
        with torch.autocast("cpu", dtype=dtype):
            return forward(*given, **named)

    model.forward = convert_outputs_to_fp32(cast)


def metrics_of(trainer):
    """What TRL logged of each batch since the last call."""
    kept = trainer._metrics if hasattr(trainer, "_metrics") else trainer._stored_metrics
    metrics = kept["train"]
    taken = {name: list(values) for name, values in metrics.items()}
    metrics.clear()
    return taken


WORST = {}  # the largest difference of each kind


def agree(got, expected, bound, what):
    got, expected = torch.as_tensor(got).double(), torch.as_tensor(expected).double()
    assert got.shape == expected.shape, (what, got, expected)
    if not got.numel():
        return
    error = ((got - expected).abs() / expected.abs().clamp(min=1)).max().item()
    WORST[what] = max(WORST.get(what, 0), error)
    assert error <= bound, (what, error, got, expected)


def by_hand(run, model, pairs, reference):
    """Of a step: the loss, whose gradients are computed, and the results of its micro-batches."""
    results = [plain_losses(run, model, [pairs[i] for i in batch], reference[batch])
               for batch in MICRO_BATCHES]
    loss = sum(losses.sum() for losses, *_ in results) / PAIRS
    loss.backward()
    return loss.item(), [[value.detach() for value in values] for values in results]


def of_pairs(metrics, what):
    """[PAIRS, 2] of batches of one pair."""
    return torch.tensor([metrics[f"{what}/chosen"], metrics[f"{what}/rejected"]]).T


def check_means(metrics, results, pairs):
    """KTOTrainer logs means over the desirable and the undesirable answers of a micro-batch."""
    for i, what in enumerate(("rewards", "logps"), start=1):
        for side, wanted in ("chosen", True), ("rejected", False):
            means = []
            for batch, result in zip(MICRO_BATCHES, results):
                is_wanted = torch.tensor([pairs[j]["desirable"] == wanted for j in batch])
                if is_wanted.any():
                    means.append(result[i][is_wanted, 0].mean())
            agree(metrics.get(f"{what}/{side}", []), means, 1e-4, f"{what}/{side}")
    agree(metrics["kl"], [kl for *_, kl in results], 1e-4, "kl")


def check_by_hand(run, model, pairs, reference, loss, metrics):
    """Compares a step of TRL with pair_losses. Returns what it logged of each pair."""
    trained = golden.trained(model)
    gradients = {name: p.grad for name, p in trained.items()}
    for p in trained.values():
        p.grad = None
    expected, results = by_hand(run, model, pairs, reference)
    agree(loss, expected, 1e-5, "loss")
    norm = math.sqrt(sum(g.double().square().sum().item() for g in gradients.values()))
    for name, p in trained.items():
        agree((p.grad - gradients[name]).norm() / norm, 0, 1e-5, "gradients")
        p.grad = gradients[name]
    _, rewards, logps, _ = (torch.cat(values) if values[0].dim() else values
                            for values in zip(*results))
    if run["objective"] == "kto":
        check_means(metrics, results, pairs)
        return {"rewards": rewards, "logps": logps, "kl": torch.tensor(metrics["kl"])}
    logged = {what: of_pairs(metrics, what) for what in ("rewards", "logps")}
    agree(logged["rewards"], rewards, 1e-4, "rewards")
    agree(logged["logps"], logps, 1e-4, "logps")
    agree(metrics["rewards/accuracies"], (rewards[:, 0] > rewards[:, 1]).float(), 0, "accuracies")
    return logged


# Tensors whose first gradients and final values are stored.
SAMPLES = {"gpt": ("h.0.attn.c_proj.weight", "ln_f.weight", "h.0.attn.c_attn.lora"),
           "llama": ("layers.0.self_attn.q_proj.weight", "model.norm.weight",
                     "layers.0.self_attn.q_proj.lora")}


def samples_of(family, tensors, prefix):
    return {f"{prefix}.{name}": tensor.detach().clone() for name, tensor in tensors.items()
            if any(sample in name for sample in SAMPLES[family])}


def add_gradients(run, trainer, step, scaler):
    """One step's gradients with TRL's losses. Returns the loss. Batches are single pairs, because
    TRL's cross entropy is a mean over the tokens of a batch; KTO has one estimate for each."""
    total = 0.0
    for batch in MICRO_BATCHES if run["objective"] == "kto" else [[i] for i in range(PAIRS)]:
        rows = [trainer.train_dataset[step * PAIRS + i] for i in batch]
        loss = trainer.compute_loss(trainer.model, trainer.data_collator(rows))
        loss = loss * len(batch) / PAIRS
        scaler.scale(loss).backward()
        total += loss.item()
    return total


def make_scaler(dtype):
    return torch.amp.GradScaler(
        "cpu", init_scale=golden.INIT_SCALE, growth_factor=golden.GROWTH,
        backoff_factor=golden.BACKOFF, growth_interval=golden.GROWTH_INTERVAL,
        enabled=dtype == torch.float16)


def make_run(family, run, pairs, references, lora, dtype, folder):
    """Ten steps of a model, which is returned too."""
    trainer, scaler = make_trainer(run, family, lora, pairs, folder), make_scaler(dtype)
    model, optimizer = trainer.model, trainer.optimizer
    for each in (model, getattr(trainer, "ref_model", None)) if dtype != torch.float32 else ():
        if each is not None:
            autocast(each, dtype)
    result, logged, records = {}, [], {}
    for step in range(STEPS):
        here = slice(step * PAIRS, (step + 1) * PAIRS)
        reference, exact = (values[here] for values in references)
        exact_loss = loss_in_float64(run, model, pairs[here], exact)
        optimizer.zero_grad(set_to_none=True)
        loss, scale = add_gradients(run, trainer, step, scaler), scaler.get_scale()
        scaler.unscale_(optimizer)
        metrics = metrics_of(trainer)
        if dtype == torch.float32:
            logged.append(check_by_hand(run, model, pairs[here], reference, loss, metrics))
        elif run["objective"] != "kto":
            logged.append({what: of_pairs(metrics, what) for what in ("rewards", "logps")})
        if step == 0:
            gradients = {name: p.grad for name, p in golden.trained(model).items()}
            result |= samples_of(family, gradients, "gradient")
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), golden.GRAD_CLIP)
        scaler.step(optimizer)
        scaler.update()
        for name, value in {"loss": loss, "loss_float64": exact_loss, "gradient_norm": norm.item(),
                            "loss_scale": scaler.get_scale(),
                            "skipped": int(scaler.get_scale() < scale)}.items():
            records.setdefault(name, []).append(value)
    golden.print_records(dtype, records)
    golden.check_overflows(dtype, records)
    result |= samples_of(family, golden.trained(model), "final")
    for what in logged[0] if logged else ():
        result[what] = torch.stack([each[what] for each in logged])
    skipped = torch.tensor(records.pop("skipped"), dtype=torch.int32)
    return result | {"skipped": skipped} | {k: torch.tensor(v) for k, v in records.items()}, model


def check_train(family, run, pairs, lora, folder, result, model):
    """TRL's own loop, with batches of one pair, gives the same losses, norms and weights."""
    trainer = make_trainer(run, family, lora, pairs, folder)
    trainer.train()
    logs = [log for log in trainer.state.log_history if "loss" in log]
    agree([log["grad_norm"] for log in logs], result["gradient_norm"], 1e-6, "norms of train()")
    agree([log["loss"] for log in logs], result["loss"], 1e-6, "losses of train()")
    for p, expected in zip(trainer.model.parameters(), model.parameters()):
        agree(p.detach(), expected.detach(), 1e-6, "weights of train()")


def check_plain(family, run, pairs, reference, lora, result):
    """Ten steps by hand give the same weights: none has a gradient so near 0 that Adam, which
    divides by its size, moves the weight by rounding errors."""
    model = golden.make_lora(family) if lora else golden.lora_base(family)
    optimizer = optimizers.make_optimizer(model, "adamw")
    initial = samples_of(family, golden.trained(model), "final")
    for step in range(STEPS):
        here = slice(step * PAIRS, (step + 1) * PAIRS)
        optimizer.zero_grad(set_to_none=True)
        by_hand(run, model, pairs[here], reference[here])
        torch.nn.utils.clip_grad_norm_(model.parameters(), golden.GRAD_CLIP)
        optimizer.step()
    for name, final in samples_of(family, golden.trained(model), "final").items():
        moved = (result[name] - initial[name]).norm()
        agree((final - result[name]).norm() / moved, 0, 3e-5, "final weights")


# ---------------------------------------------------------------- files


def make_fixture(family, pairs):
    base = golden.lora_base(family)
    reference, exact = reference_of(base, pairs), reference_of(base.double(), pairs)
    documents = [pair["prompt"] + pair[answer] for pair in pairs
                 for answer in ("chosen", "rejected")]
    result = {
        "tokens": torch.tensor(sum(documents, []), dtype=torch.int32),
        "lengths": torch.tensor([len(document) for document in documents], dtype=torch.int32),
        "prompts": torch.tensor([len(pair["prompt"]) for pair in pairs], dtype=torch.int32),
        "desirable": torch.tensor([pair["desirable"] for pair in pairs], dtype=torch.int32),
        "reference": reference,
    }
    for dtype_name, dtype in golden.DTYPES.items():
        for lora in False, True:
            for name, run in RUNS.items():
                if dtype != torch.float32 and name not in IN_16_BITS:
                    continue
                title = f"{'lora_' if lora else ''}{name}_{dtype_name}"
                print(family, title)
                with tempfile.TemporaryDirectory() as folder:
                    tensors, model = make_run(family, run, pairs, (reference, exact), lora, dtype,
                                              folder)
                    if dtype == torch.float32:
                        check_plain(family, run, pairs, reference, lora, tensors)
                    if dtype == torch.float32 and run["objective"] != "kto":
                        check_train(family, run, pairs, lora, folder, tensors, model)
                result |= {f"{title}.{key}": value for key, value in tensors.items()}
    return result


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    disable_progress_bars()
    pairs = make_pairs()
    for family in "gpt", "llama":
        golden.save(f"{family}_preference", make_fixture(family, pairs))
    print("largest differences between TRL and pair_losses:", WORST)


if __name__ == "__main__":
    main()
