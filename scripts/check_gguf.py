"""Converts exports to GGUF and checks the files against the exports. See check_gguf.sh.

    python scripts/check_gguf.py FOLDER EXPORT ...     writes FOLDER/NAME.gguf for each export

Each line says what wrote the file and what was compared; exit status 1 if a check failed.
LLAMA_CPP names a checkout of llama.cpp, whose converter is then used. It refuses tokenizers that
it does not recognize; files of such models are written here, as are all files without LLAMA_CPP.
With llama_cpp (llama-cpp-python) installed, logits and tokens are compared too: PREPARE and LOGITS
name the programs (./prepare, build/fast/logits).
"""

import json
import os
import pathlib
import struct
import subprocess
import sys

import gguf
import numpy
from gguf.utility import SafetensorsLocal

try:
    import llama_cpp
except ImportError:
    llama_cpp = None

ARCHITECTURES = {"gpt2": "gpt2", "llama": "llama", "mistral": "llama", "qwen2": "qwen2",
                 "qwen3": "qwen3"}  # by model_type; llama.cpp computes a Mistral as a Llama
SIZES = {"context_length": "max_position_embeddings", "embedding_length": "hidden_size",
         "block_count": "num_hidden_layers", "feed_forward_length": "intermediate_size",
         "attention.head_count": "num_attention_heads", "rope.freq_base": "rope_theta",
         "attention.head_count_kv": "num_key_value_heads", "attention.key_length": "head_dim",
         "attention.value_length": "head_dim", "attention.layer_norm_epsilon": "layer_norm_epsilon",
         "attention.layer_norm_rms_epsilon": "rms_norm_eps"}
GPT2_NAMES = {"max_position_embeddings": "n_positions", "hidden_size": "n_embd",
              "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
TYPES = {"F32": gguf.GGMLQuantizationType.F32, "F16": gguf.GGMLQuantizationType.F16,
         "BF16": gguf.GGMLQuantizationType.BF16}
# llama.cpp needs a list of merges, which the byte tokenizer lacks. No text contains this pair: a
# text consists of the 256 letters of the byte-level alphabet.
NO_MERGES = ["\u0400 \u0400"]
TEXT = ("I'll can't WE'RE 'tis they've  two  spaces\t\ttabs \n\n\n lines\r\nCRLF   \n12345 x1y2 ½ ²³"
        " naïve Привет 世界你好 한국어 हिन्दी שלום 👩‍👩‍👧‍👦 ... !?!? (a)[b]{c} aaaaaaaaaaaa         end")
# Of logits in fp32, relative to the largest. On CPUs, llama.cpp rounds the input and output of
# GPT-2's gelu to fp16.
TOLERANCE, GPT2_TOLERANCE = 1e-4, 2e-3


def widen(data, dtype):
    """Values of any of the three dtypes in fp32, which represents each of them exactly."""
    if dtype == "BF16":
        return (data.view("<u2").astype("<u4") << 16).view("<f4")
    return data.view("<f2" if dtype == "F16" else "<f4").astype("<f4")


def interleave(weight, heads):
    """Moves row i of a head's first half to 2i, and of its second half to 2i + 1: Hugging Face
    rotates the pair (i, i + head_dim / 2), llama.cpp's "llama" the pair (2i, 2i + 1)."""
    halves = weight.reshape(heads, 2, len(weight) // heads // 2, -1)
    return halves.swapaxes(1, 2).reshape(weight.shape)


def expected_tensors(folder, config, architecture):
    """{name in GGUF: (values in fp32, dtype)}, from the safetensors of an export."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()],
                                     config["num_hidden_layers"])
    tensors = {}
    for path in sorted(folder.glob("model*.safetensors")):
        with SafetensorsLocal(path) as file:
            for key, tensor in file.items():
                value = widen(tensor.mmap_bytes(), tensor.dtype).reshape(tensor.shape)
                if architecture == "gpt2" and ".c_" in key:
                    value = value.T  # from [in, out] of Conv1D
                for part, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads")):
                    if architecture == "llama" and f".{part}_proj." in key:
                        value = interleave(value, config[heads])
                name = names.get_name(key, try_suffixes=(".weight", ".bias"))
                wide = value.ndim < 2 or name == "position_embd.weight"
                tensors[name] = value, "F32" if wide else tensor.dtype
    rope = config.get("rope_scaling")
    if rope and rope["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = rope_factors(config, rope), "F32"
    return tensors


def rope_factors(config, rope):
    """Divisors of the frequencies of Llama 3: 1 for short wavelengths, `factor` for long ones."""
    size, original = config["head_dim"], rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = original / (2 * numpy.pi * config["rope_theta"] ** (numpy.arange(0, size, 2) / size))
    smooth = numpy.clip((turns - low) / (high - low), 0, 1)
    return (1 / (smooth + (1 - smooth) / rope["factor"])).astype("<f4")


def expected_sizes(config, architecture):
    sizes = {f"{architecture}.{key}": config[name] for key, name in SIZES.items() if name in config}
    if architecture == "llama":
        sizes["llama.rope.dimension_count"] = config["head_dim"]
    return {key: float(value) if key.endswith(("epsilon", "base")) else value
            for key, value in sizes.items()}


def expected_tokenizer(folder, config):
    """Fields of a byte-level tokenizer, and True if its text is cut as GPT-2's."""
    added, pre, path = [], {"type": "ByteLevel"}, folder / "tokenizer.json"
    if path.exists():
        whole = json.loads(path.read_text(encoding="utf-8"))
        pre, vocabulary = whole["pre_tokenizer"] or {}, whole["model"]["vocab"]
        merges = [pair if isinstance(pair, str) else " ".join(pair)
                  for pair in whole["model"].get("merges", [])]
        added = {token["content"]: token["id"] for token in whole["added_tokens"]}
    else:
        vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
        merges = [line for line in lines if line and not line.startswith("#version")]
        added = {key: value for key, value in vocabulary.items() if key == "<|endoftext|>"}
    texts = {token: text for text, token in (vocabulary | added).items()}
    tokens = [texts.get(i, f"[PAD{i}]") for i in range(config["vocab_size"])]
    kinds = [gguf.TokenType.UNUSED if i not in texts else gguf.TokenType.CONTROL
             if texts[i] in added else gguf.TokenType.NORMAL for i in range(len(tokens))]
    fields = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": kinds,
              "merges": merges or NO_MERGES, "add_bos_token": False}
    fields |= {key: config[key] for key in ("bos_token_id", "eos_token_id")
               if config.get(key) is not None}
    cut = pre.get("type") == "ByteLevel" and (pre.get("use_regex", True) or not merges)
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items()}, cut


def write(path, architecture, tensors, sizes, tokenizer, name):
    """The file as the converter would write it."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(name)
    for key, value in (sizes | tokenizer).items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
               str: writer.add_string, list: writer.add_array}[type(value)]
        add(key, value)
    for name, (value, dtype) in tensors.items():
        data = gguf.quants.quantize(numpy.ascontiguousarray(value), TYPES[dtype])
        writer.add_tensor(name, data, raw_dtype=TYPES[dtype])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def convert(folder, path, config, wanted, cut):
    """Writes path; returns what wrote it."""
    by = "check_gguf.py"
    if "LLAMA_CPP" in os.environ:
        dtype = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[config["torch_dtype"]]
        converter = pathlib.Path(os.environ["LLAMA_CPP"]) / "convert_hf_to_gguf.py"
        done = subprocess.run([sys.executable, converter, "--outtype", dtype, "--outfile", path,
                               folder], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return "convert_hf_to_gguf.py"
        if "pre-tokenizer was not recognized" not in done.stderr:
            raise RuntimeError(done.stderr[-600:])
        by += " (the converter does not recognize the tokenizer)"
    if not cut:
        raise RuntimeError("only the converter can write this tokenizer: set LLAMA_CPP=DIR")
    write(path, *wanted, folder.name)
    return by


def compare(path, architecture, tensors, sizes, tokenizer):
    """Raises an exception at the first difference between a file and what it should hold."""
    reader = gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in reader.fields.items()}
    assert fields["general.architecture"] == architecture, fields["general.architecture"]
    for key, value in (sizes | tokenizer).items():
        value = float(numpy.float32(value)) if isinstance(value, float) else value
        same = fields[key] == value and type(fields[key]) is type(value)
        assert same, f"{key}: {fields[key]!r:.200}, expected {value!r:.200}"
    assert {tensor.name for tensor in reader.tensors} == set(tensors), "names of tensors"
    for tensor in reader.tensors:
        value, dtype = tensors[tensor.name]
        assert tensor.tensor_type == TYPES[dtype], f"{tensor.name}: {tensor.tensor_type.name}"
        data = widen(numpy.ascontiguousarray(tensor.data), dtype).reshape(tensor.shape[::-1])
        same = (numpy.allclose(data, value, rtol=1e-6) if tensor.name == "rope_freqs.weight"
                else data.shape == value.shape and data.tobytes() == value.astype("<f4").tobytes())
        assert same, f"{tensor.name} differs"
    return (f"{len(tensors)} tensors, {sum(value.size for value, _ in tensors.values())} values "
            f"bit for bit; {len(sizes)} sizes; {len(tokenizer)} fields of the tokenizer")


def run(*command):
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


def compare_with_llama_cpp(path, folder, config, is_bytes):
    """Logits of random tokens in a whole context, and the tokens of a text."""
    length = min(config["max_position_embeddings"], config.get("sliding_window") or 256, 256)
    model = llama_cpp.Llama(str(path), n_ctx=length, n_batch=length, logits_all=True, verbose=False,
                            type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32)
    tokens = numpy.random.default_rng(1).integers(0, config["vocab_size"], length + 1)
    shard, text = path.with_suffix(".bin"), path.with_suffix(".txt")
    shard.write_bytes(struct.pack("<256i", 20240520, 1, length + 1, *[0] * 253)
                      + tokens.astype("<u2").tobytes())
    logits = path.with_suffix(".f32")
    run(os.environ.get("LOGITS", "build/fast/logits"), folder, shard, length, logits)
    ours = numpy.fromfile(logits, "<f4").reshape(length, -1)
    model.eval(tokens[:length].tolist())
    difference = abs(model.scores[:length] - ours).max()
    text.write_text(TEXT)
    run(os.environ.get("PREPARE", "./prepare"), "--tokenizer", "bytes" if is_bytes else folder,
        "--val-fraction", "0", "--force", "--out", path.with_suffix(""), text)
    made = numpy.fromfile(f"{path.with_suffix('')}_train_000000.bin", "<u2")[512:].tolist()
    if made[0] == config["bos_token_id"]:
        made = made[1:]  # ./prepare begins each document with it
    assert model.tokenize(TEXT.encode(), add_bos=False) == made, "tokens of a text differ"
    limit = GPT2_TOLERANCE if config["model_type"] == "gpt2" else TOLERANCE
    limit *= max(1, abs(ours).max())
    assert difference <= limit, f"logits differ by {difference:.1e}, more than {limit:.0e}"
    return f"; llama.cpp: logits differ by {difference:.1e}, the same {len(made)} tokens of a text"


def check(folder, path):
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] == "gpt2":
        config |= {key: config[name] for key, name in GPT2_NAMES.items()}
        config["intermediate_size"] = config["n_inner"] or 4 * config["hidden_size"]
    architecture = ARCHITECTURES.get(config["model_type"])
    assert architecture, f"llama.cpp has no model of the type {config['model_type']}"
    tokenizer, cut = expected_tokenizer(folder, config)
    wanted = (architecture, expected_tensors(folder, config, architecture),
              expected_sizes(config, architecture), tokenizer)
    by = convert(folder, path, config, wanted, cut)
    line = f"written by {by}: {compare(path, *wanted)}"
    if llama_cpp and config["torch_dtype"] == "float32":
        is_bytes = tokenizer["tokenizer.ggml.merges"] == NO_MERGES
        line += compare_with_llama_cpp(path, folder, config, is_bytes)
    if config.get("sliding_window"):
        line += f"; llama.cpp has no sliding window, here of {config['sliding_window']} tokens"
    return line


def main():
    failed = 0
    work = pathlib.Path(sys.argv[1])
    work.mkdir(parents=True, exist_ok=True)
    for folder in map(pathlib.Path, sys.argv[2:]):
        path = work / f"{folder.resolve().name}.gguf"
        try:
            print(f"ok      {path}: {check(folder, path)}", flush=True)
        except Exception as reason:  # pylint: disable=broad-except
            print(f"FAILED  {folder}: {reason}", flush=True)
            failed = 1
    sys.exit(failed)


if __name__ == "__main__":
    main()
