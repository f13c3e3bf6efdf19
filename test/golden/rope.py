"""Cosines and sines of transformers' rotary embedding for each kind of rope scaling."""
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

# The same cases as in test/model/core/test_rope_angles.c: head size, base, positions of the model,
# tokens, settings.
CASES = {
    "none": (8, 1e4, 64, 64, {"rope_type": "default"}),
    "linear": (8, 1e4, 96, 96, {"rope_type": "linear", "factor": 4.0}),
    "linear_odd": (10, 5e5, 96, 96, {"rope_type": "linear", "factor": 2.7}),
    "dynamic_within": (16, 1e4, 96, 96, {"rope_type": "dynamic", "factor": 4.0}),
    "dynamic": (16, 1e4, 32, 96, {"rope_type": "dynamic", "factor": 4.0}),
    "dynamic_odd": (10, 5e5, 24, 71, {"rope_type": "dynamic", "factor": 3.3}),
    "yarn": (32, 1e4, 160, 160, {"rope_type": "yarn", "factor": 4.0,
                                 "original_max_position_embeddings": 40}),
    "yarn_long": (32, 1e6, 512, 160, {"rope_type": "yarn", "factor": 8.0, "beta_fast": 16.0,
                                      "beta_slow": 2.0, "attention_factor": 0.8,
                                      "original_max_position_embeddings": 4096}),
    "yarn_exact": (10, 1e4, 96, 96, {"rope_type": "yarn", "factor": 2.5, "truncate": False,
                                     "original_max_position_embeddings": 32}),
    "yarn_mscale": (16, 1e4, 96, 96, {"rope_type": "yarn", "factor": 40.0, "mscale": 0.7,
                                      "mscale_all_dim": 1.3,
                                      "original_max_position_embeddings": 48}),
    # All pairs turn less often than beta_slow, so both ends of the range are pair 0.
    "yarn_no_range": (8, 1e4, 64, 64, {"rope_type": "yarn", "factor": 4.0,
                                       "original_max_position_embeddings": 4}),
    "llama3": (32, 5e5, 96, 96, {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                 "high_freq_factor": 4.0, "original_max_position_embeddings": 48}),
}


def make_angles(size, base, positions, length, settings):
    config = LlamaConfig(hidden_size=size, num_attention_heads=1, head_dim=size,
                         max_position_embeddings=positions,
                         rope_parameters=settings | {"rope_theta": base})
    rope = LlamaRotaryEmbedding(config)
    cosines, sines = rope(torch.zeros(1), torch.arange(length)[None])
    return torch.cat((cosines[0, :, :size // 2], sines[0, :, :size // 2]), 1)


def make_rope():
    return {name: make_angles(*case) for name, case in CASES.items()}
