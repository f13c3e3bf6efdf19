#!/usr/bin/env python3
"""Measures fine-tuning in transformers, LoRA with PEFT or of all weights, beside ./train.

  test/external/torch_lora.py FOLDER --write             writes Llama-3.1-8B's shape in bf16 (16 GB)
  test/external/torch_lora.py FOLDER --train             steps of one sequence of 4096 tokens in PEFT
  test/external/torch_lora.py FOLDER --train --full      of all weights, in fp32 under autocast

FOLDER is any model of a Hugging Face tool, such as a checkpoint of ./train. The same trains here with
  ./train --config finetune-lora.json --set model.init_from=FOLDER --set data.train=tales \\
      --set data.tokenizer=bytes --set data.seq_len=4096 --set train.micro_batch_size=1 ...
"""
import argparse
import statistics
import time

import torch

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def write(options):
    """A model of random weights as transformers draws them, in one file."""
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(options.device):
        model = LlamaForCausalLM(LlamaConfig(
            vocab_size=128256, hidden_size=4096, intermediate_size=14336,
            num_attention_heads=32, num_key_value_heads=8, head_dim=128,
            num_hidden_layers=options.layers, max_position_embeddings=131072, rms_norm_eps=1e-5,
            rope_theta=500000.0, tie_word_embeddings=False, bos_token_id=128000,
            eos_token_id=128001))
    model.save_pretrained(options.folder, max_shard_size="100GB")


def adapted(model, dropout=0.0):
    from peft import LoraConfig, get_peft_model
    return get_peft_model(model, LoraConfig(r=16, lora_alpha=32, lora_dropout=dropout,
                                            target_modules=TARGETS))


def training(model, device):
    """Returns a function that runs one step of a callable of the model."""
    model.config.use_cache = False
    for parameter in model.parameters():  # master weights of adapters are fp32, as in ./train
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4,
                                  fused=device == "cuda")

    def step(call, tokens, labels):
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = call(input_ids=tokens, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def train(options):
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(
        options.folder, dtype=torch.float32 if options.full else torch.bfloat16,
        attn_implementation="sdpa", trust_remote_code=False).to(options.device).train()
    if not options.full:
        model = adapted(model)
    if options.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    step = training(model, options.device)
    call = torch.compile(model) if options.compile else model
    tokens = torch.randint(0, 256, (options.batch, options.seq), device=options.device)
    cuda = options.device == "cuda"
    times = []
    for i in range(options.steps + 2):
        begin = time.perf_counter()
        loss = step(call, tokens, tokens)
        if i >= 2:
            times.append(time.perf_counter() - begin)
    seconds = statistics.median(times)
    peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0
    print(f"{'transformers' if options.full else 'PEFT'}, PyTorch {torch.__version__}, "
          f"{options.batch} x {options.seq}"
          f"{', compiled' if options.compile else ''}"
          f"{', gradient checkpointing' if options.checkpointing else ''}: "
          f"{options.batch * options.seq / seconds:.0f} tokens/s, {1e3 * seconds:.1f} ms/step, {peak:.2f} GiB, "
          f"loss {loss:.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--full", action="store_true", help="all weights, without an adapter")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    if options.write:
        write(options)
    if options.train:
        train(options)


if __name__ == "__main__":
    main()
