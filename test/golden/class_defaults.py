"""Writes class_defaults.json: each class of transformers that is read, with its defaults.

    python test/golden/class_defaults.py > test/golden/class_defaults.json

A row is a config.json as transformers writes it in full, in a few sizes; the test reads it, and again
with these sizes alone. Keys that say nothing about the text are left out."""

import json

from transformers import CONFIG_MAPPING

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8,
         "num_hidden_layers": 6, "max_position_embeddings": 8192, "vocab_size": 160000}
GPT2 = {"n_embd": 64, "n_head": 8, "n_layer": 6, "n_positions": 512, "vocab_size": 60000}
WINDOWS = SIZES | {"num_hidden_layers": 84, "use_sliding_window": True}
TEXTS = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "smollm3", "olmo2", "olmo3",
         "exaone4", "granite", "hyperclovax", "arcee", "seed_oss", "phi3", "glm4"]
LARGER = ["gemma3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"]
LEFT_OUT = {"transformers_version", "architectures", "_name_or_path", "id2label", "label2id",
            "chunk_size_feed_forward", "output_attentions", "output_hidden_states", "return_dict",
            "problem_type", "use_cache", "initializer_range", "vision_config", "is_encoder_decoder"}


def row(kind, sizes):
    whole = CONFIG_MAPPING[kind](**sizes).to_dict()
    return {key: value for key, value in whole.items() if key not in LEFT_OUT}


def larger(kind, sizes):
    outer = row(kind, {"text_config": sizes})
    outer["text_config"] = {key: value for key, value in outer["text_config"].items()
                            if key not in LEFT_OUT}
    return outer


rows = [row("gpt2", GPT2)] + [row(kind, SIZES) for kind in TEXTS]
rows += [row("qwen2", WINDOWS)] + [larger(kind, SIZES) for kind in LARGER]
rows.append(larger("qwen2_5_vl", WINDOWS))
print('{"rows": [\n' + ",\n".join(json.dumps(row, sort_keys=True) for row in rows) + "]}")
