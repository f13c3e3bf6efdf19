"""Bases in other forms, beside the programs that write them, on random models of odd sizes:

    python3 test/external/check_bases.py FOLDER

Models in fewer bits: exports in fp32 against the dequantization of compressed-tensors and
bitsandbytes, bit for bit. Models with images: logits of the exported text's model against those of
the whole model, and LoRA of the text in PEFT on the whole model against its merged export."""
import json
import pathlib
import shutil
import struct
import subprocess
import sys

import bitsandbytes.functional as bnb
import numpy
import torch
from compressed_tensors.compressors.mxfp4 import MXFP4PackedCompressor
from compressed_tensors.compressors.naive_quantized import NaiveQuantizationCompressor
from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from peft import PeftModel
from safetensors.torch import load_file, save_file
import transformers as hf

TRAIN = "./train"
# 320 x 128 has a row of blocks that is cut off; bitsandbytes needs columns that are multiples of 64
LLAMA = dict(vocab_size=311, hidden_size=128, intermediate_size=320, num_hidden_layers=2,
             num_attention_heads=8, num_key_value_heads=2, head_dim=16, tie_word_embeddings=False)
TEXT = dict(vocab_size=311, hidden_size=72, intermediate_size=104, num_hidden_layers=2,
            num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=128)
VISION = dict(hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=2,
              image_size=32, patch_size=16)
QWEN_VISION = dict(depth=3, hidden_size=32, intermediate_size=40, num_heads=2, out_hidden_size=72)
QWEN_TOKENS = dict(image_token_id=305, video_token_id=306, vision_start_token_id=307,
                   vision_end_token_id=308)
FAILED = []


def report(good, name, text):
    print(f"{'ok    ' if good else 'FAILED'} {name}: {text}", flush=True)
    if not good:
        FAILED.append(name)


def train(*words):
    done = subprocess.run([TRAIN, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)


# ---------------------------------------------------------------- fewer bits


def compressed(compressor, scales, packed=False, **arguments):
    """A format of compressed-tensors: its config, and a function that returns tensors and values."""
    scheme = QuantizationScheme(targets=["Linear"],
                                weights=QuantizationArgs(symmetric=True, **arguments))

    def store(weight):
        given = {"weight": weight.bfloat16()} | scales(weight)
        tensors = given | compressor.compress(given, scheme)
        if packed:
            tensors.pop("weight", None)
        wanted = compressor.decompress(tensors, scheme)["weight"]
        return tensors | {"input_scale": torch.tensor([1.5])}, wanted
    return {"quant_method": "compressed-tensors", "ignore": ["lm_head"],
            "config_groups": {"group_0": json.loads(scheme.model_dump_json())}}, store


def four_bits(kind, nested):
    def store(weight):
        packed, state = bnb.quantize_4bit(weight.bfloat16(), quant_type=kind,
                                          compress_statistics=nested)
        named = {f"weight.{key}": tensor for key, tensor in state.as_dict(packed=True).items()}
        return {"weight": packed} | named, bnb.dequantize_4bit(packed, state)
    return {"quant_method": "bitsandbytes", "load_in_4bit": True}, store


def eight_bits(weight):
    codes, scales, _ = bnb.int8_vectorwise_quant(weight.half())
    return {"weight": codes, "SCB": scales}, bnb.int8_vectorwise_dequant(codes, scales)


def fine_grained(weight):
    """128 x 128 blocks; transformers cannot read those that are cut off."""
    config, store = FORMATS["blocks"]
    tensors, wanted = store(weight)
    del tensors["input_scale"]
    tensors["weight_scale_inv"] = tensors.pop("weight_scale")
    return tensors, wanted


def block_scales(weight):
    rows, columns = (-(-size // 128) for size in weight.shape)
    return {"weight_scale": torch.rand(rows, columns) * 0.01 + 0.001}


def nvfp4_scales(weight):
    whole = (448 * 6 / weight.abs().max()).reshape(1)
    return {"weight_global_scale": whole, "weight_scale":
            (weight.view(len(weight), -1, 16).abs().amax(2) / 6 * whole).bfloat16()}


NAIVE = NaiveQuantizationCompressor
FORMATS = {
    "rows": compressed(NAIVE, lambda w: {"weight_scale": (w.abs().amax(1, True) / 448).bfloat16()},
                       num_bits=8, type="float", strategy="channel"),
    "tensor": compressed(NAIVE, lambda w: {"weight_scale": (w.abs().max() / 448).reshape(1)},
                         num_bits=8, type="float", strategy="tensor"),
    "blocks": compressed(NAIVE, block_scales, num_bits=8, type="float", strategy="block",
                         block_structure=[128, 128]),
    "int8": compressed(NAIVE, lambda w: {"weight_scale": w.abs().amax(1, True).half() / 127.5},
                       num_bits=8, type="int", strategy="channel"),
    "nvfp4": compressed(NVFP4PackedCompressor, nvfp4_scales, True, num_bits=4, type="float",
                        strategy="tensor_group", group_size=16),
    "mxfp4": compressed(MXFP4PackedCompressor, lambda w: {"weight_scale": 2.0 ** (
        w.view(len(w), -1, 32).abs().amax(2).log2().floor() - 2)}, True, num_bits=4, type="float",
                        strategy="group", group_size=32),
    "nf4": four_bits("nf4", True), "nf4 flat": four_bits("nf4", False),
    "fp4": four_bits("fp4", True),
    "int8 of bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, eight_bits),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, fine_grained),
}


def write_format(name, folder, sizes):
    """Writes a random model in a format; returns the values of its weights."""
    config, store = FORMATS[name]
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes)).float()
    tensors, wanted = {}, {}
    for key, value in model.state_dict().items():
        stored, wanted[key] = {key.rpartition(".")[2]: value}, value
        if key.endswith("_proj.weight"):
            stored, wanted[key] = store(value)
        tensors |= {f"{key.removesuffix('.weight')}.{end}": t.clone().contiguous()
                    for end, t in stored.items()}
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    whole = model.config.to_dict() | {"quantization_config": config}
    (folder / "config.json").write_text(json.dumps(whole))
    return wanted


def check_format(name, folder):
    wanted = write_format(name, folder, LLAMA)
    train("--export", folder / "plain", "--dtype", "fp32", "--from", folder)
    found = load_file(folder / "plain/model.safetensors")
    bits = {key: int((found[key].view(torch.int32) != value.float().view(torch.int32)).sum())
            for key, value in wanted.items()}
    report(sum(bits.values()) == 0, name, f"{sum(bits.values())} values differ")
    hf.LlamaForCausalLM.from_pretrained(folder / "plain")


def losses_of(folder, base):
    """Losses of five steps of LoRA with a base that is stored so."""
    config = {"precision": "bf16", "seed": 3, "run_dir": str(folder), "model": {"init_from": str(folder)},
              "adapter": {"type": "lora", "base": base}, "sample": {"every": 0},
              "data": {"seq_len": 77}, "train": {"steps": 5, "micro_batch_size": 2},
              "eval": {"every": 0}, "log": {"every": 1}}
    (folder / f"{base}.json").write_text(json.dumps(config))
    train("--config", folder / f"{base}.json")
    lines = (folder / base / "metrics.jsonl").read_text().splitlines()
    return [line["loss"] for line in map(json.loads, lines) if "loss" in line]


def check_kept(name, base, folder):
    """The base of adapters keeps the codes and scales of a file: training has the bits that it has
    with the dequantized values."""
    write_format(name, folder, LLAMA | {"intermediate_size": 384})
    kept, plain = losses_of(folder, base), losses_of(folder, "bfloat16")
    report(len(kept) == 5 and kept == plain, f"{name} as {base}", f"losses {kept[0]} to {kept[-1]}")


# ---------------------------------------------------------------- models with images


def rope(sections, **more):
    return {"rope_type": "default", "rope_theta": 12345.0, "mrope_section": sections} | more


def larger_models():
    yield hf.Qwen2_5_VLForConditionalGeneration(hf.Qwen2_5_VLConfig(
        text_config=TEXT | {"rope_parameters": rope([2, 2, 2])}, vision_config=QWEN_VISION,
        **QWEN_TOKENS))
    yield hf.Qwen3VLForConditionalGeneration(hf.Qwen3VLConfig(
        text_config=TEXT | {"head_dim": 16,
                            "rope_parameters": rope([4, 2, 2], mrope_interleaved=True)},
        vision_config=QWEN_VISION | {"deepstack_visual_indexes": [0]}, tie_word_embeddings=True,
        **QWEN_TOKENS))
    yield hf.Qwen3_5ForConditionalGeneration(hf.Qwen3_5Config(
        text_config=TEXT | {"head_dim": 16, "full_attention_interval": 2, "linear_key_head_dim": 10,
                            "linear_value_head_dim": 14, "linear_num_key_heads": 2,
                            "linear_num_value_heads": 4, "rope_parameters": rope(
                                [1, 1, 0], mrope_interleaved=True, partial_rotary_factor=0.25)},
        vision_config=QWEN_VISION, **QWEN_TOKENS))
    yield hf.SmolVLMForConditionalGeneration(hf.SmolVLMConfig(
        text_config=TEXT | {"model_type": "llama"}, vision_config=VISION, image_token_id=305,
        scale_factor=2))
    yield hf.Mistral3ForConditionalGeneration(hf.Mistral3Config(
        text_config=TEXT | {"model_type": "mistral", "head_dim": 12, "sliding_window": None},
        vision_config=VISION | {"model_type": "pixtral", "head_dim": 16}, image_token_index=305,
        tie_word_embeddings=False))
    yield hf.Gemma3ForConditionalGeneration(hf.Gemma3Config(
        text_config=TEXT | {"head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 16,
                            "layer_types": ["sliding_attention", "full_attention"]},
        vision_config=VISION | {"model_type": "siglip_vision_model"}, image_token_index=305,
        mm_tokens_per_image=4))


def logits_of(model):
    tokens = torch.arange(77)[None] * 3 % 300
    with torch.no_grad():
        return model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits


def difference(left, right):
    return (logits_of(left) - logits_of(right)).abs().max().item()


def check_larger(model, folder):
    name = type(model).__name__
    for weight in model.parameters():
        if weight.dim() == 1:
            weight.data += torch.randn_like(weight) * 0.1
    model.eval().save_pretrained(folder)
    train("--export", folder / "text", "--dtype", "fp32", "--from", folder)
    text = hf.AutoModelForCausalLM.from_pretrained(folder / "text")
    report(difference(text, model) == 0, name, f"logits of a {type(text).__name__}")
    tokens = torch.randint(300, (3 * 77 + 1,)).tolist()
    header = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
    (folder / "batch_0.bin").write_bytes(header + numpy.array(tokens, "<u2").tobytes())
    (folder / "run.json").write_text("{}")
    settings = {
        "name": "lora", "run_dir": folder, "precision": "fp32", "model.init_from": folder,
        "data.train": folder / "batch_*.bin", "data.seq_len": 77, "train.steps": 6,
        "train.micro_batch_size": 3, "optimizer.lr": 1e-2, "optimizer.warmup_steps": 0,
        "adapter.type": "lora", "adapter.rank": 4, "eval.every": 0, "checkpoint.every": 0,
        "sample.every": 0}
    train("--config", folder / "run.json",
          *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")))
    train("--export", folder / "adapter", "--from", folder / "lora")
    train("--export", folder / "merged", "--merge", "--dtype", "fp32", "--from", folder / "lora")
    merged = hf.AutoModelForCausalLM.from_pretrained(folder / "merged")
    moved = difference(merged, text)
    adapted = PeftModel.from_pretrained(model, folder / "adapter")
    count = sum("lora_" in key for key, _ in adapted.named_parameters())
    stored = len(load_file(folder / "adapter/adapter_model.safetensors"))
    report(count == stored, name, f"{stored} tensors of adapters, {count} in PEFT")
    # fp32 sums in another order; the adapters move logits by about 1
    apart = difference(adapted, merged)
    report(apart < 1e-5 < moved, name, f"adapters move logits by {moved:.2g}, merged ones differ by "
                                       f"{apart:.1g}")


def main():
    work = pathlib.Path(sys.argv[1]).resolve()
    shutil.rmtree(work, ignore_errors=True)
    hf.logging.set_verbosity_error()
    torch.manual_seed(66)
    for name in FORMATS:
        check_format(name, work / name.replace(" ", "-"))
    for name, base in (("rows", "fp8"), ("tensor", "fp8"), ("blocks", "fp8_block"),
                       ("fp8", "fp8_block"), ("tensor", "fp8_block")):
        check_kept(name, base, work / f"kept-{name}-{base}")
    for model in larger_models():
        check_larger(model.float(), work / type(model).__name__)
    sys.exit(f"{len(FAILED)} checks failed" if FAILED else 0)


if __name__ == "__main__":
    main()
