"""Makes a small model of random weights of each family with transformers, as FOLDER/FAMILY, and
FOLDER/tokenizer, a byte-level tokenizer with tokens to pad and for unknown text.

    python test/external/readers_models.py FOLDER TEXT
"""

import pathlib
import sys

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 128}
# In FAMILIES the base of rope is another than the default, so that a reader that misses it differs.
FAMILIES = {"llama": ("Llama", SIZES | {"rope_theta": 5e5}),
            "mistral": ("Mistral", SIZES | {"rope_theta": 2e5, "sliding_window": None}),
            "qwen2": ("Qwen2", SIZES | {"rope_theta": 1e6}),
            "qwen3": ("Qwen3", SIZES | {"rope_theta": 1e6, "head_dim": 32}),
            "gemma2": ("Gemma2", SIZES | GEMMA | {"rope_theta": 2e4}),
            "gemma3": ("Gemma3", SIZES | GEMMA | {"num_hidden_layers": 7, "rope_theta": 2e5,
                                                  "rope_local_base_freq": 2e4})}


def tokenizer_of(text):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=512, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<|endoftext|>", "<pad>", "<unk>"]))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>",
        pad_token="<pad>", unk_token="<unk>")


def main(folder, text):
    transformers.logging.set_verbosity_error()
    tokenizer = tokenizer_of(pathlib.Path(text).read_text(encoding="utf-8"))
    tokenizer.save_pretrained(folder / "tokenizer")
    for name, (family, sizes) in FAMILIES.items():
        torch.manual_seed(1)
        config = getattr(transformers, family + ("TextConfig" if name == "gemma3" else "Config"))(
            **sizes, vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0, pad_token_id=1)
        getattr(transformers, family + "ForCausalLM")(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


main(pathlib.Path(sys.argv[1]), sys.argv[2])
