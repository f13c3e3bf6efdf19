"""Writes small random models of transformers, each with a tokenizer of another kind.

    python test/external/check_gguf_models.py FOLDER      FOLDER/NAME for each, which is printed
"""

import json
import pathlib
import sys

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*%s|"
CASED_REST = REST.replace(r"[\r\n]*", r"[\r\n/]*")
PATTERNS = {  # in the words of tokenizer.json, and whether ignore_merges is set
    "qwen2": (ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + REST, False),
    "llama-bpe": (ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST, True),
    "smaug-bpe": (ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST, False),
    "tekken": (CASED % ("", "") + r"\p{N}" + CASED_REST, True),
    "gpt-4o": (CASED % (ENDINGS + "?", ENDINGS + "?") + r"\p{N}{1,3}" + CASED_REST, False),
}
SIZES = {"vocab_size": 600, "max_position_embeddings": 256, "hidden_size": 64,
         "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = SIZES | {"num_key_value_heads": 2, "tie_word_embeddings": False}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64, "rope_theta": 500000.0}
LINEAR = {"rope_type": "linear", "factor": 2.5, "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
        "rope_theta": 10000.0}
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
            "{% endfor %}")


def corpus():
    return [path.read_text(encoding="utf-8") for path in sorted(pathlib.Path("model").rglob("*.md"))
            ] + ["naïve Привет 世界你好 한국어 हिन्दी I'LL we've 2024 12345"] * 20


def begin_with(text, token):
    return processors.TemplateProcessing(single=f"{text} $A", pair=f"{text} $A {text} $B",
                                         special_tokens=[(text, token)])


def byte_level(name):
    """A trained tokenizer of bytes, cut as llama.cpp's pre-tokenizer of that name."""
    pattern, ignores = PATTERNS.get(name, ("", False))
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=ignores))
    parts = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern)]
    if name == "smollm":
        parts.insert(0, pre_tokenizers.Digits(individual_digits=True))
    if pattern:
        parts.insert(0, pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"))
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts) if len(parts) > 1 else parts[0]
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] if name != "gpt-2" else [
        "<|endoftext|>"]
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=560, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if name == "llama-bpe":
        tokenizer.post_processor = begin_with("<|endoftext|>", 0)
    if name == "qwen2":
        tokenizer.add_tokens(["<think>"])
    return tokenizer


def all_bytes():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentencepiece(special=("<unk>", "<s>", "</s>"), added=(), first=("▁",)):
    """Characters with byte_fallback, as transformers converts a Llama 2's tokenizer.model: every
    pair of tokens whose texts together are a token has a merge, in the order of scores."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trained.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=300, show_progress=False))
    texts = [text for text, _ in sorted(trained.get_vocab().items(), key=lambda item: item[1])]
    texts.sort(key=lambda text: len(text) == 1)  # merges first, characters last
    texts = [*added, *(text for text in texts if text not in added)]
    vocabulary = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *texts]
    numbers = {text: token for token, text in enumerate(vocabulary)}
    merges = [(text[:cut], text[cut:]) for text in texts for cut in range(1, len(text))
              if text[:cut] in numbers and text[cut:] in numbers]
    tokenizer = tokenizers.Tokenizer(models.BPE(numbers, merges, unk_token="<unk>", fuse_unk=True,
                                                byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([*map(normalizers.Prepend, first),
                                                 normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        *(decoders.Strip(" ", 1, 0) for _ in first)])
    tokenizer.add_special_tokens(list(special))
    tokenizer.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in added])
    begin = "<bos>" if "<bos>" in special else "<s>"
    tokenizer.post_processor = begin_with(begin, numbers[begin])
    return tokenizer


def gemma():
    """Without a space before a text; runs of white space and tags of HTML are added tokens."""
    runs = [text * count for text in "\n▁\t" for count in range(1 + (text == "▁"), 32)]
    tokenizer = sentencepiece(
        ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"),
        [*runs, "<table>", "<s>", "</s>"], ())
    tokenizer.add_special_tokens(["<image_soft_token>"])
    return tokenizer


# The models lack the last token, which stands for images.
GEMMA = SIZES | {"num_key_value_heads": 2, "tie_word_embeddings": True, "head_dim": 24,
                 "query_pre_attn_scalar": 24, "sliding_window": 64,
                 "vocab_size": gemma().get_vocab_size() - 1}
LAYERS = GROUPED | {"num_hidden_layers": 5, "sliding_window": 64}
ALTERNATING = ["sliding_attention", "full_attention"]

MODELS = {
    "gpt2": (transformers.GPT2Config(vocab_size=600, n_positions=256, n_embd=64, n_layer=2,
                                     n_head=4, n_inner=160), byte_level("gpt-2")),
    "gpt2-wide": (transformers.GPT2Config(vocab_size=600, n_positions=256, n_embd=72, n_layer=1,
                                          n_head=4), all_bytes()),
    "llama": (transformers.LlamaConfig(**GROUPED), byte_level("llama-bpe")),
    "llama2": (transformers.LlamaConfig(**GROUPED, head_dim=24), sentencepiece()),
    "llama3": (transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3, attention_bias=True,
                                        mlp_bias=True, tie_word_embeddings=True),
               byte_level("smaug-bpe")),
    "smollm": (transformers.LlamaConfig(**SIZES, tie_word_embeddings=True), byte_level("smollm")),
    "mistral": (transformers.MistralConfig(**GROUPED, sliding_window=64), byte_level("tekken")),
    "qwen2": (transformers.Qwen2Config(**GROUPED), byte_level("qwen2")),
    "qwen3": (transformers.Qwen3Config(**GROUPED, head_dim=24), byte_level("gpt-4o")),
    "llama-linear": (transformers.LlamaConfig(**GROUPED, rope_parameters=LINEAR),
                     byte_level("llama-bpe")),
    "qwen2-yarn": (transformers.Qwen2Config(
        **GROUPED, rope_parameters=YARN | {"attention_factor": 0.8}), byte_level("qwen2")),
    "qwen3-yarn": (transformers.Qwen3Config(**GROUPED, head_dim=24, rope_parameters=YARN),
                   byte_level("gpt-4o")),
    "granite": (transformers.GraniteConfig(
        **GROUPED, embedding_multiplier=7.0, attention_multiplier=0.13, residual_multiplier=0.22,
        logits_scaling=3.0), byte_level("llama-bpe")),
    "arcee": (transformers.ArceeConfig(**GROUPED, attention_bias=True, mlp_bias=True),
              byte_level("llama-bpe")),
    "gemma2": (transformers.Gemma2Config(**GEMMA | {"num_hidden_layers": 3},
                                         attn_logit_softcapping=20.0,
                                         final_logit_softcapping=10.0), gemma()),
    "gemma3": (transformers.Gemma3TextConfig(**GEMMA | {"num_hidden_layers": 7}), gemma()),
    "gemma3-linear": (transformers.Gemma3TextConfig(
        **GEMMA | {"num_hidden_layers": 3}, layer_types=(2 * ALTERNATING)[:3],
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
                         "full_attention": LINEAR}), gemma()),
    "smollm3": (transformers.SmolLM3Config(**GROUPED | {"num_hidden_layers": 5},
                                           pad_token_id=None), byte_level("llama-bpe")),
    "olmo2": (transformers.Olmo2Config(**GROUPED, pad_token_id=None), byte_level("qwen2")),
    "olmo3": (transformers.Olmo3Config(**LAYERS, pad_token_id=None, rope_parameters={
        "full_attention": YARN, "sliding_attention": {"rope_type": "default",
                                                      "rope_theta": 10000.0}}),
              byte_level("qwen2")),
    "exaone4": (transformers.Exaone4Config(
        **GROUPED, sliding_window=None, layer_types=2 * ["full_attention"],
        rope_parameters=LLAMA3), byte_level("gpt-4o")),
    "exaone4-windows": (transformers.Exaone4Config(**LAYERS | {"num_hidden_layers": 64}),
                        byte_level("gpt-4o")),
}


def write(folder, config, tokenizer):
    end, begin = (next((text for text in texts if tokenizer.token_to_id(text) is not None), None)
                  for texts in (("<|endoftext|>", "<eos>", "</s>"),
                                ("<|endoftext|>", "<bos>", "<s>")))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": begin, "eos_token": end}
    if tokenizer.token_to_id("<|im_end|>"):
        settings["chat_template"] = TEMPLATE
    config.bos_token_id = begin and tokenizer.token_to_id(begin)
    config.eos_token_id = end and tokenizer.token_to_id(end)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():  # zeros and ones would hide an exchanged order
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def main():
    for name, (config, tokenizer) in MODELS.items():
        folder = pathlib.Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, config, tokenizer)
        print(folder)


if __name__ == "__main__":
    main()
