"""Compares the Llama family with transformers: ten steps of training, and an export. Called by
check_huggingface.sh.

For each class a small random model is saved by transformers, trained here for ten steps of AdamW
in fp32 and beside it by PyTorch on the same batch, exported, and opened by transformers again.
"""

import pathlib
import sys

import torch
from torch.nn.functional import cross_entropy
from transformers import (LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM,
                          Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, logging)

from check_huggingface import (TRAIN, Checks, fresh, load, random_tokens, run, train, windows,
                               write_shard)

LENGTH, BATCH, STEPS, VOCABULARY = 77, 3, 10, 331
SIZES = dict(vocab_size=VOCABULARY, hidden_size=72, intermediate_size=200, num_hidden_layers=3,
             num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=128,
             initializer_range=0.1, attention_dropout=0.0)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
BOUND = 1e-5  # sums in another order, over ten steps: about ten times what is seen


def models():
    """Name, model, and the size of shards to save it in."""
    yield "Llama", LlamaForCausalLM(
        LlamaConfig(tie_word_embeddings=False, head_dim=24, **SIZES)), None
    yield "Llama 3", LlamaForCausalLM(
        LlamaConfig(tie_word_embeddings=True, rope_parameters=LLAMA3, **SIZES)), "200KB"
    yield "Llama with biases", LlamaForCausalLM(
        LlamaConfig(tie_word_embeddings=True, attention_bias=True, mlp_bias=True, **SIZES)), None
    yield "Mistral", MistralForCausalLM(
        MistralConfig(sliding_window=None, tie_word_embeddings=False, **SIZES)), None
    yield "Qwen2", Qwen2ForCausalLM(Qwen2Config(
        tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        **(SIZES | {"num_key_value_heads": 1}))), "200KB"
    yield "Qwen3", Qwen3ForCausalLM(Qwen3Config(
        tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        head_dim=24, **SIZES)), None


def train_there(model, inputs, targets):
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                                   {"params": others, "weight_decay": 0.0}],
                                  lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def loss_of(model, inputs, targets):
    return cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())


def check(checks, name, model, shard_size, work):
    tokens = random_tokens(VOCABULARY, LENGTH * BATCH + 1)
    write_shard(work / "batch_000000.bin", tokens)
    for key, parameter in model.named_parameters():
        if key.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
        elif key.endswith("norm.weight"):
            torch.nn.init.normal_(parameter, 1, 0.1)
    model.save_pretrained(work / "model", **({"max_shard_size": shard_size} if shard_size else {}))
    checkpoint, ours = train(work, "run", work / "config.json", {
        "precision": "fp32", "threads": 2, "model.init_from": work / "model",
        "data.train": work / "batch_*.bin", "data.seq_len": LENGTH, "train.steps": STEPS,
        "train.micro_batch_size": BATCH, "optimizer.lr": 1e-3, "optimizer.schedule": "constant"})
    inputs, targets = windows(tokens, LENGTH)
    theirs = train_there(model, inputs, targets)
    checks.equal(f"{name}: steps", len(ours), STEPS, STEPS)
    checks.near(f"{name}: ten losses", max(abs(a - b) for a, b in zip(ours, theirs)), BOUND)
    run(TRAIN, "--export", work / "export", "--dtype", "fp32", "--from", checkpoint)
    with torch.no_grad():
        after = abs(loss_of(load(work / "export"), inputs, targets)
                    - loss_of(model, inputs, targets)).item()
    checks.near(f"{name}: loss of the exported model", after, BOUND)


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    checks = Checks()
    for name, model, shard_size in models():
        work = fresh(pathlib.Path(sys.argv[1]) / name.replace(" ", "-"))
        (work / "config.json").write_text("{}")
        checks.group(check, name, model, shard_size, work)
    sys.exit(checks.failed > 0)


if __name__ == "__main__":
    main()
