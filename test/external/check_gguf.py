"""Compares GGUF files of ./train --export with the same models' exports for Hugging Face.

    python test/external/check_gguf.py EXPORT FILE.gguf ...

Tensors must have the bits of gguf's own quantizers, metadata and tokenizer what gguf and
transformers read from EXPORT, a folder in fp32. With llama_cpp (llama-cpp-python) installed, tokens
of a text are compared with AutoTokenizer's, and logits with AutoModelForCausalLM's. Prints a line a
file; exit status 1 if a check failed.
"""

import pathlib
import sys

import gguf
import numpy
import torch
import transformers
from gguf.utility import SafetensorsLocal

try:
    import llama_cpp
except ImportError:
    llama_cpp = None

SIZES = {"context_length": "max_position_embeddings", "embedding_length": "hidden_size",
         "block_count": "num_hidden_layers", "feed_forward_length": "intermediate_size",
         "attention.head_count": "num_attention_heads", "vocab_size": "vocab_size",
         "attention.head_count_kv": "num_key_value_heads", "attention.key_length": "head_dim",
         "attention.value_length": "head_dim", "rope.dimension_count": "head_dim",
         "attention.sliding_window": "sliding_window",
         "attention.layer_norm_epsilon": "layer_norm_epsilon", "rope.freq_base": "rope_theta",
         "attention.layer_norm_rms_epsilon": "rms_norm_eps",
         "attn_logit_softcapping": "attn_logit_softcapping",
         "final_logit_softcapping": "final_logit_softcapping",
         "embedding_scale": "embedding_multiplier", "attention.scale": "attention_multiplier",
         "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling",
         "attention.sliding_window_pattern": "other_pattern", "rope.freq_base_swa": "other_theta"}
ROLES = {"pad": "padding", "unk": "unknown"}
TYPES = gguf.GGMLQuantizationType
TEXT = ("I'll can't WE'RE 'tis they've  two  spaces\t\ttabs \n\n\n lines\r\nCRLF   \n12345 x1y2 ½ ²³"
        " naïve Привет 世界你好 한국어 हिन्दी שלום 👩‍👩‍👧‍👦 ... !?!? (a)[b]{c} aaaaaaaaaaaa         end")
# Of logits, relative to the largest: rounding units of the types, in which llama.cpp also rounds
# activations (those of Q4_0 to Q8_0), times 16 for the matrices and the sums of two layers. On CPUs
# it rounds GPT-2's and Gemma's gelu to fp16.
TOLERANCES = {"F32": 2**-20, "F16": 2**-7, "BF16": 2**-4, "Q8_0": 2**-4, "Q4_0": 1}
GELU_TOLERANCE = TOLERANCES["F16"]


def interleave(weight, heads):
    """Moves row i of a head's first half to 2i, and of its second half to 2i + 1: Hugging Face
    rotates the pair (i, i + head_dim / 2), llama.cpp's "llama" and its kin the pair (2i, 2i + 1)."""
    halves = weight.reshape(heads, 2, len(weight) // heads // 2, -1)
    return halves.swapaxes(1, 2).reshape(weight.shape)


def expected_tensors(folder, config, architecture):
    """{name in GGUF: values in fp32}, from the safetensors of an export."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()],
                                     config["num_hidden_layers"])
    tensors = {}
    for path in sorted(folder.glob("model*.safetensors")):
        with SafetensorsLocal(path) as file:
            for key, tensor in file.items():
                value = tensor.mmap_bytes().view("<f4").reshape(tensor.shape)
                if architecture == "gpt2" and ".c_" in key:
                    value = value.T  # from [in, out] of Conv1D
                for part, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads")):
                    if architecture in ("llama", "smollm3", "granite", "arcee") and f".{part}_proj." in key:
                        value = interleave(value, config[heads])
                if architecture.startswith("gemma") and key.endswith("norm.weight"):
                    value = value + numpy.float32(1)
                tensors[names.get_name(key, try_suffixes=(".weight", ".bias"))] = value
    rope = config.get("rope_parameters", {})
    if rope.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = rope_divisors(config["head_dim"], rope)
    return tensors


def rope_divisors(size, rope):
    """Divisors of the frequencies of Llama 3: 1 for short wavelengths, `factor` for long ones."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] / (
        2 * numpy.pi * rope["rope_theta"] ** (numpy.arange(0, size, 2) / size))
    smooth = numpy.clip((turns - low) / (high - low), 0, 1)
    return (1 / (smooth + (1 - smooth) / rope["factor"])).astype("<f4")


def expected_type(name, value, file_type, tensors):
    """Type of a tensor in a file of a type."""
    head = "output.weight" if "output.weight" in tensors else "token_embd.weight"
    if value.ndim < 2 or name == "position_embd.weight":
        return TYPES.F32
    if name == head and file_type == TYPES.Q4_0:
        file_type = TYPES.Q8_0
    return TYPES.F16 if value.shape[1] % gguf.GGML_QUANT_SIZES[file_type][0] else file_type


def check_tensors(reader, tensors, file_type):
    assert {tensor.name for tensor in reader.tensors} == set(tensors), "names of tensors"
    for tensor in reader.tensors:
        value = tensors[tensor.name]
        kind = expected_type(tensor.name, value, file_type, tensors)
        assert tensor.tensor_type == kind, f"{tensor.name}: {tensor.tensor_type.name}"
        assert tuple(tensor.shape[::-1]) == value.shape, f"{tensor.name}: {tensor.shape}"
        wanted = gguf.quants.quantize(numpy.ascontiguousarray(value), kind)
        same = (numpy.allclose(tensor.data, value, rtol=1e-6) if tensor.name == "rope_freqs.weight"
                else tensor.data.tobytes() == wanted.tobytes())
        assert same, f"{tensor.name} differs"


def expected_fields(folder, config, architecture, tokenizer):
    fields = {f"{architecture}.{key}": config[name] for key, name in SIZES.items()
              if config.get(name) is not None}
    floats = ("epsilon", "base", "swa", "capping", "scale")
    fields = {key: float(numpy.float32(value)) if key.endswith(floats) else value
              for key, value in fields.items()}
    special = gguf.SpecialVocab(folder, load_merges=True,
                                special_token_types=("bos", "eos", "unk", "pad"))
    for role, token in special.special_token_ids.items():
        fields[f"tokenizer.ggml.{ROLES.get(role, role)}_token_id"] = token
    for role in special.add_special_token.keys() & {"bos", "eos"}:
        fields[f"tokenizer.ggml.add_{role}_token"] = special.add_special_token[role]
    if special.chat_template:
        fields["tokenizer.chat_template"] = special.chat_template
    texts = {token: text for text, token in tokenizer.get_vocab().items()}
    if tokenizer.backend_tokenizer.model.byte_fallback:
        texts |= {token: added.content.replace("▁", " ")
                  for token, added in tokenizer.added_tokens_decoder.items() if not added.special}
    fields["tokenizer.ggml.tokens"] = [texts.get(i, f"[PAD{i}]")
                                       for i in range(config["vocab_size"])]
    if special.merges and not tokenizer.backend_tokenizer.model.byte_fallback:
        fields["tokenizer.ggml.merges"] = special.merges
    return fields


def check_with_llama_cpp(path, folder, config, tokenizer, file_type):
    """Compares the tokens of a text, and logits of random tokens in a whole context. llama.cpp has
    the windows of Gemma only."""
    length = min(config["max_position_embeddings"], 256)
    if not config["model_type"].startswith("gemma"):
        length = min(length, config.get("sliding_window") or length)
    model = llama_cpp.Llama(str(path), n_ctx=length, n_batch=length, logits_all=True, verbose=False,
                            type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32)
    made = model.tokenize(TEXT.encode(), add_bos=True)
    wanted = tokenizer(TEXT)["input_ids"]
    assert made == wanted, f"tokens of a text: {made}, expected {wanted}"
    tokens = numpy.random.default_rng(1).integers(0, config["vocab_size"], length).tolist()
    model.eval(tokens)
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = reference(torch.tensor([tokens])).logits[0].numpy()
    difference = abs(model.scores[:length] - logits).max()
    limit = TOLERANCES[file_type.name] * max(1, abs(logits).max())
    if config["model_type"].startswith(("gpt2", "gemma")):
        limit = max(limit, GELU_TOLERANCE * max(1, abs(logits).max()))
    assert difference <= limit, f"logits differ by {difference:.1e}, more than {limit:.0e}"
    return f"; llama.cpp: logits differ by {difference:.1e}, the same {len(made)} tokens of a text"


def other_layers(config):
    """What differs from the layers of the released Gemmas."""
    full = [i for i, kind in enumerate(config["layer_types"]) if kind == "full_attention"]
    theta = config["rope_parameters"].get("sliding_attention", {}).get("rope_theta", 10000)
    period = 2 if config["model_type"] == "gemma2" else 6
    usual = full == list(range(period - 1, config["num_hidden_layers"], period))
    return {"other_theta": None if theta == 10000 else theta,
            "other_pattern": None if usual else full[0] + 1 if full else 0}


def read_config(folder):
    """config.json with the defaults of its class, and GPT-2's sizes by the names of the others."""
    whole = transformers.AutoConfig.from_pretrained(folder)
    config = whole.to_dict()
    config |= {name: getattr(whole, name) for name in SIZES.values() if hasattr(whole, name)}
    rope = config.get("rope_parameters") or {}
    config |= rope.get("full_attention", rope)
    if whole.model_type.startswith("gemma"):
        config |= other_layers(config)
    if whole.model_type == "gpt2":
        config["intermediate_size"] = whole.n_inner or 4 * whole.n_embd
    elif not config.get("head_dim"):
        config["head_dim"] = whole.hidden_size // whole.num_attention_heads
    if not config.get("use_sliding_window", True):
        config["sliding_window"] = None
    return config


def check(path, folder):
    """Returns what was compared; raises an exception at the first difference."""
    config = read_config(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    reader = gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in reader.fields.items()}
    architecture = fields["general.architecture"]
    file_type = TYPES[gguf.LlamaFileType(fields["general.file_type"]).name.split("_", 1)[1]]
    tensors = expected_tensors(folder, config, architecture)
    check_tensors(reader, tensors, file_type)
    wanted = expected_fields(folder, config, architecture, tokenizer)
    for key, value in wanted.items():
        assert fields.get(key) == value and type(fields[key]) is type(value), (
            f"{key}: {fields.get(key)!r:.200}, expected {value!r:.200}")
    line = f"{architecture}: {len(tensors)} tensors bit for bit, {len(wanted)} fields"
    if llama_cpp:
        line += check_with_llama_cpp(path, folder, config, tokenizer, file_type)
    return line


def main():
    failed = 0
    for path in sys.argv[2:]:
        try:
            print(f"ok      {path}: {check(path, pathlib.Path(sys.argv[1]))}", flush=True)
        except Exception as reason:  # pylint: disable=broad-except
            print(f"FAILED  {path}: {type(reason).__name__}: {reason}", flush=True)
            failed = 1
    sys.exit(failed)


if __name__ == "__main__":
    main()
