"""Small models of transformers of each family, for make_golden.py."""
from transformers import (Exaone4Config, Exaone4ForCausalLM, Gemma2Config, Gemma2ForCausalLM,
                          Gemma3ForCausalLM, Gemma3TextConfig, GPT2Config, GPT2LMHeadModel,
                          HyperCLOVAXConfig, HyperCLOVAXForCausalLM, LlamaConfig, LlamaForCausalLM,
                          MistralConfig, MistralForCausalLM, Olmo3Config, Olmo3ForCausalLM,
                          Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM,
                          Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM)

POSITIONS, VOCABULARY = 16, 61
EPSILON = 1e-5


def gpt2_model(**sizes):
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=sizes.get("n_positions", POSITIONS), n_embd=32, n_layer=2, n_head=2,
        activation_function="gelu_pytorch_tanh", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        layer_norm_epsilon=EPSILON, bos_token_id=0, eos_token_id=0, use_cache=False,
        tie_word_embeddings=True)
    config._attn_implementation = "sdpa"
    return GPT2LMHeadModel(config)


# Three heads share each head of keys and values; rows of q are wider than the residual stream.
LLAMA = dict(vocab_size=VOCABULARY, max_position_embeddings=POSITIONS, hidden_size=36,
             num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
             intermediate_size=88, attention_dropout=0.0, use_cache=False)


LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 1000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 8}


def llama_model(**sizes):
    config = LlamaConfig(
        rms_norm_eps=1e-5, tie_word_embeddings=False,
        **(LLAMA | {"head_dim": 8, "rope_parameters": LLAMA3_ROPE} | sizes))
    config._attn_implementation = "sdpa"
    return LlamaForCausalLM(config)


def mistral_model(**sizes):
    config = MistralConfig(
        head_dim=8, rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=6,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0}, **(LLAMA | sizes))
    config._attn_implementation = "sdpa"
    return MistralForCausalLM(config)


def qwen2_model(**sizes):
    config = Qwen2Config(
        rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        **(LLAMA | {"num_key_value_heads": 1} | sizes))
    config._attn_implementation = "sdpa"
    return Qwen2ForCausalLM(config)


def qwen3_model(**sizes):
    config = Qwen3Config(
        head_dim=8, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **LLAMA)
    config._attn_implementation = "sdpa"
    return Qwen3ForCausalLM(config)


# Three layers, the second with all keys and the others with a window of 6. Small caps bend much.
GEMMA = LLAMA | dict(num_hidden_layers=3, head_dim=8, rms_norm_eps=1e-6, query_pre_attn_scalar=12,
                     sliding_window=6, pad_token_id=None,
                     layer_types=["sliding_attention", "full_attention", "sliding_attention"])


def gemma2_model(**sizes):
    config = Gemma2Config(
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        attn_logit_softcapping=1.5, final_logit_softcapping=2.0, **(GEMMA | sizes))
    config._attn_implementation = "eager"  # SDPA has no caps
    return Gemma2ForCausalLM(config)


def gemma3_model(**sizes):
    config = Gemma3TextConfig(
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}},
        **(GEMMA | sizes))
    config._attn_implementation = "sdpa"
    return Gemma3ForCausalLM(config)


def hyperclovax_model(**sizes):
    config = HyperCLOVAXConfig(
        head_dim=8, rms_norm_eps=1e-5, tie_word_embeddings=False, embedding_multiplier=7.0,
        attention_multiplier=0.2, residual_multiplier=0.22, logits_scaling=0.4,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0}, **(LLAMA | sizes))
    config._attn_implementation = "sdpa"
    return HyperCLOVAXForCausalLM(config)


def olmo3_model(**sizes):
    """Windows and their rope as Gemma's here, yarn elsewhere, norms after branches alone."""
    shared = {key: value for key, value in GEMMA.items() if key != "query_pre_attn_scalar"}
    config = Olmo3Config(
        tie_word_embeddings=False,
        rope_parameters={
            "full_attention": {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 2.5,
                               "original_max_position_embeddings": POSITIONS // 2},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}},
        **(shared | sizes))
    config._attn_implementation = "sdpa"
    return Olmo3ForCausalLM(config)


def exaone4_model(**sizes):
    """Windows as Gemma's here, whose layers alone have rope; norms after branches alone."""
    shared = {key: value for key, value in GEMMA.items() if key != "query_pre_attn_scalar"}
    config = Exaone4Config(
        tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        **(shared | sizes))
    config._attn_implementation = "sdpa"
    return Exaone4ForCausalLM(config)


def phi3_model(**sizes):
    """Fused matrices, a window, and half of each head rotates."""
    config = Phi3Config(
        head_dim=8, rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=6,
        pad_token_id=None, bos_token_id=None, eos_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0,
                         "partial_rotary_factor": 0.5},
        **(LLAMA | sizes))
    config._attn_implementation = "sdpa"
    return Phi3ForCausalLM(config)


def qwen3_5_model(**sizes):
    """Full layers alone, of which whole heads rotate."""
    config = Qwen3_5TextConfig(
        head_dim=8, rms_norm_eps=1e-6, tie_word_embeddings=True, pad_token_id=None,
        layer_types=["full_attention"] * 2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 1.0},
        **(LLAMA | sizes))
    config._attn_implementation = "sdpa"
    return Qwen3_5ForCausalLM(config)


def deltanet_model(**sizes):
    """Qwen3.5: Gated DeltaNets around a full layer, of whose heads a half rotates. Their norm divides
    what first tokens give, which may be near zero: a large epsilon bounds errors."""
    config = Qwen3_5TextConfig(
        head_dim=8, rms_norm_eps=1e-3, tie_word_embeddings=True, pad_token_id=None,
        full_attention_interval=2, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=6, linear_value_head_dim=10,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
        **(LLAMA | {"num_hidden_layers": 3} | sizes))
    config._attn_implementation = "sdpa"
    return Qwen3_5ForCausalLM(config)


MODELS = {"gpt": gpt2_model, "llama": llama_model, "mistral": mistral_model, "qwen2": qwen2_model,
          "qwen3": qwen3_model, "gemma2": gemma2_model, "gemma3": gemma3_model,
          "olmo3": olmo3_model, "hyperclovax": hyperclovax_model, "qwen3_5": qwen3_5_model,
          "deltanet": deltanet_model, "exaone4": exaone4_model, "phi3": phi3_model}
