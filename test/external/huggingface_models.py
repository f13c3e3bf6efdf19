"""Random models of each family of Hugging Face that is read, for check_huggingface.py.

Widths are no powers of two, and LENGTH tokens exceed windows and original positions."""

from transformers import (
    ArceeConfig, ArceeForCausalLM, Exaone4Config, Exaone4ForCausalLM, GPT2Config, GPT2LMHeadModel,
    Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, Glm4Config,
    Glm4ForCausalLM, GraniteConfig, GraniteForCausalLM, GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM, HyperCLOVAXConfig, HyperCLOVAXForCausalLM, LlamaConfig,
    LlamaForCausalLM, Ministral3Config, Ministral3ForCausalLM, MistralConfig, MistralForCausalLM,
    Olmo2Config, Olmo2ForCausalLM, Olmo3Config, Olmo3ForCausalLM, Phi3Config, Phi3ForCausalLM,
    Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3_5ForCausalLM,
    Qwen3_5TextConfig, SeedOssConfig, SeedOssForCausalLM, SmolLM3Config, SmolLM3ForCausalLM)

LENGTH = 77
GPT2_SIZES = dict(n_embd=72, n_layer=2, n_head=3, n_positions=LENGTH)
SIZES = dict(vocab_size=331, hidden_size=72, intermediate_size=200, num_hidden_layers=3,
             num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=128,
             attention_dropout=0.0)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
# Scaled ropes, whose original positions are fewer than LENGTH.
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 32}
OWN_YARN = YARN | {"rope_theta": 1e6, "attention_factor": 0.8, "beta_fast": 16.0, "beta_slow": 2.0,
                   "truncate": False}
QWEN = {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
WINDOW = {"use_sliding_window": True, "sliding_window": 20}
GEMMA = {"head_dim": 24, "query_pre_attn_scalar": 20, "sliding_window": 20,
         "layer_types": [f"{kind}_attention" for kind in ("sliding", "full", "sliding")]}
MULTIPLIERS = {"embedding_multiplier": 7.0, "attention_multiplier": 0.13,
               "residual_multiplier": 0.22, "logits_scaling": 3.0}
GEMMA3_ROPE = {"full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.5},
               "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
GLM4_TOKENS = {"pad_token_id": 0, "eos_token_id": 1}
SMOLLM3 = SIZES | {"num_hidden_layers": 5, "head_dim": 24, "pad_token_id": 0}
OLMO = SIZES | {"head_dim": 24, "eos_token_id": 1, "tie_word_embeddings": False, "pad_token_id": 0}
KINDS = {"sliding_window": 20, "num_hidden_layers": 5}  # the fourth layer has no window
OLMO3_YARN = {"full_attention": YARN | {"rope_theta": 5e5, "attention_factor": 1.2},
              "sliding_attention": {"rope_type": "default", "rope_theta": 5e5}}
# The fourth of five layers has attention. A Gated DeltaNet's norm divides what first tokens give, which
# may be near zero: with an epsilon of 1e-6 transformers' own losses are 4e-5 from those in fp64.
QWEN3_5 = SIZES | {"num_hidden_layers": 5, "head_dim": 24, "rms_norm_eps": 1e-3, "linear_num_key_heads": 3,
                   "linear_num_value_heads": 6, "linear_key_head_dim": 20,
                   "linear_value_head_dim": 12}
EXAONE4 = SIZES | {"head_dim": 24, "tie_word_embeddings": False}


def gpt2(vocabulary, end):
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=vocabulary, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=end,
        eos_token_id=end, **GPT2_SIZES))


def families():
    """Names and models of every kind."""
    yield "GPT-2", gpt2(700, 0)
    yield from others(SIZES)
    yield from llamas(SIZES)


def qwen3_5(sizes):
    return QWEN3_5 | {key: value for key, value in sizes.items() if key not in QWEN3_5} | {
        "vocab_size": sizes["vocab_size"]}


def llamas(sizes):
    """Names and models of families that are Llamas but for a switch or two."""
    yield "Granite", GraniteForCausalLM(GraniteConfig(**MULTIPLIERS, **sizes))
    yield "Granite, tied, with biases", GraniteForCausalLM(GraniteConfig(
        tie_word_embeddings=True, attention_bias=True, mlp_bias=True, **MULTIPLIERS, **sizes))
    yield "HyperCLOVA X", HyperCLOVAXForCausalLM(HyperCLOVAXConfig(
        **MULTIPLIERS | {"logits_scaling": 0.4}, **sizes))
    yield "HyperCLOVA X without norms", HyperCLOVAXForCausalLM(HyperCLOVAXConfig(
        use_post_norm=False, residual_multiplier=0.3, **sizes))
    yield "Arcee", ArceeForCausalLM(ArceeConfig(head_dim=24, **sizes))
    yield "Arcee, tied, with biases", ArceeForCausalLM(ArceeConfig(
        tie_word_embeddings=True, attention_bias=True, mlp_bias=True, rope_parameters=YARN, **sizes))
    yield "Phi-3", Phi3ForCausalLM(Phi3Config(
        sliding_window=20, pad_token_id=None, **sizes))
    yield "Phi-4-mini, tied", Phi3ForCausalLM(Phi3Config(
        tie_word_embeddings=True, pad_token_id=None, rope_parameters={
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}, **sizes))
    yield "Qwen3.5", Qwen3_5ForCausalLM(Qwen3_5TextConfig(**qwen3_5(sizes)))
    yield "Qwen3.5, tied, other layers", Qwen3_5ForCausalLM(Qwen3_5TextConfig(
        tie_word_embeddings=True, linear_conv_kernel_dim=3, full_attention_interval=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
        **qwen3_5(sizes)))
    yield "GLM-4", Glm4ForCausalLM(Glm4Config(
        head_dim=24, **(GLM4_TOKENS | sizes)))
    yield "GLM-4, tied, without biases", Glm4ForCausalLM(Glm4Config(
        head_dim=24, tie_word_embeddings=True,
        attention_bias=False, rope_parameters={
            "rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": 1.0},
        **(GLM4_TOKENS | sizes)))
    yield "Granite 4", GraniteMoeHybridForCausalLM(GraniteMoeHybridConfig(
        num_local_experts=0, position_embedding_type="rope", mamba_n_heads=1,
        layer_types=["full_attention"] * 3, shared_intermediate_size=200, **MULTIPLIERS, **sizes))
    yield "Ministral 3", Ministral3ForCausalLM(Ministral3Config(
        head_dim=24, rope_parameters=YARN | {
            "rope_theta": 1e6, "attention_factor": 1.0, "llama_4_scaling_beta": 0.4},
        **({"pad_token_id": 0} | sizes)))
    yield "Seed-OSS", SeedOssForCausalLM(SeedOssConfig(
        head_dim=24, residual_dropout=0.0, **sizes))


def others(sizes):
    """Names and models of the other families."""
    yield "Llama", LlamaForCausalLM(LlamaConfig(tie_word_embeddings=False, head_dim=24, **sizes))
    yield "Llama 3", LlamaForCausalLM(
        LlamaConfig(tie_word_embeddings=True, rope_parameters=LLAMA3, **sizes))
    yield "Llama with biases", LlamaForCausalLM(
        LlamaConfig(tie_word_embeddings=True, attention_bias=True, mlp_bias=True, **sizes))
    yield "Mistral", MistralForCausalLM(
        MistralConfig(sliding_window=None, tie_word_embeddings=False, **sizes))
    yield "Qwen2", Qwen2ForCausalLM(
        Qwen2Config(**QWEN, **(sizes | {"num_key_value_heads": 1})))
    yield "Qwen3", Qwen3ForCausalLM(Qwen3Config(head_dim=24, **QWEN, **sizes))
    yield "Qwen2, windows from a layer on", Qwen2ForCausalLM(
        Qwen2Config(max_window_layers=1, **WINDOW, **QWEN, **sizes))
    yield "Qwen3, windows by a pattern", Qwen3ForCausalLM(Qwen3Config(
        head_dim=24, layer_types=[f"{kind}_attention" for kind in ("sliding", "full", "sliding")],
        **WINDOW, **QWEN, **sizes))
    yield "Gemma 2", Gemma2ForCausalLM(Gemma2Config(
        attn_logit_softcapping=5.0, final_logit_softcapping=8.0, **GEMMA, **sizes))
    yield "Gemma 3", Gemma3ForCausalLM(Gemma3TextConfig(rope_parameters=GEMMA3_ROPE, **GEMMA, **sizes))
    yield "Llama, linear", LlamaForCausalLM(
        LlamaConfig(tie_word_embeddings=True, rope_parameters=LINEAR, **sizes))
    yield "Llama, dynamic", LlamaForCausalLM(LlamaConfig(
        tie_word_embeddings=True, rope_parameters=DYNAMIC,
        **(sizes | {"max_position_embeddings": 32})))
    yield "Mistral, yarn", MistralForCausalLM(MistralConfig(
        sliding_window=None, tie_word_embeddings=False, rope_parameters=YARN, **sizes))
    yield "Qwen2, yarn", Qwen2ForCausalLM(
        Qwen2Config(tie_word_embeddings=True, rope_parameters=OWN_YARN, **sizes))
    yield "Qwen3, yarn", Qwen3ForCausalLM(
        Qwen3Config(tie_word_embeddings=True, head_dim=24, rope_parameters=YARN, **sizes))
    yield "SmolLM3", SmolLM3ForCausalLM(SmolLM3Config(**SMOLLM3))
    yield "SmolLM3, other layers, biases", SmolLM3ForCausalLM(SmolLM3Config(
        no_rope_layers=[1, 0, 1, 0, 1], attention_bias=True, mlp_bias=True,
        rope_parameters=LINEAR, **SMOLLM3))
    yield "OLMo 2", Olmo2ForCausalLM(Olmo2Config(**OLMO))
    yield "OLMo 3", Olmo3ForCausalLM(Olmo3Config(**(OLMO | KINDS)))
    yield "OLMo 3, yarn", Olmo3ForCausalLM(
        Olmo3Config(rope_parameters=OLMO3_YARN, **(OLMO | KINDS)))
    yield "EXAONE 4", Exaone4ForCausalLM(Exaone4Config(**(EXAONE4 | KINDS)))
    yield "EXAONE 4, no window", Exaone4ForCausalLM(Exaone4Config(
        sliding_window=None, layer_types=3 * ["full_attention"], rope_parameters=LLAMA3,
        **EXAONE4))
