#include "model/io/huggingface_keys.h"

#include <math.h>

#define SET(name, in, to) \
    { name, in, to, NAN, NAN, NULL, NULL, NULL, NULL }
#define SET_OR(name, in, to, absent, null) \
    { name, in, to, absent, null, NULL, NULL, NULL, NULL }
#define SET_AS(name, in, to, first, last) \
    { name, in, to, NAN, NAN, first, last, NULL, NULL }
#define NEED(name, in, allowed) \
    { name, in, NULL, NAN, NAN, NULL, NULL, allowed, NULL }
#define NONE(name, in, allowed, remedy) \
    { name, in, NULL, NAN, NAN, NULL, NULL, allowed, remedy }

/* clang-format off: a row is a line. */
const struct huggingface_key huggingface_keys[] = {
    /* All classes */
    NONE("quantization_config", IN_ALL, "null",
         "weights that are not quantized: load the model in transformers, call its dequantize()\n"
         "and save it again"),
    NONE("per_layer_config", IN_ALL, "null {}", "the same sizes in all layers"),
    NEED("is_causal", IN_ALL, "true"),
    NONE("pruned_heads", IN_ALL, "null {}", "all heads"),

    /* GPT2Config. Files of other tools may have the names of other classes, which win. */
    SET_AS("n_layer", IN_GPT2, "model.n_layer", "num_hidden_layers", NULL),
    SET_AS("n_head", IN_GPT2, "model.n_head", "num_attention_heads", NULL),
    SET_AS("n_embd", IN_GPT2, "model.n_embd", "hidden_size", NULL),
    SET_AS("n_positions", IN_GPT2, "model.n_positions", "max_position_embeddings", "n_ctx"),
    SET_OR("n_inner", IN_GPT2, "model.n_inner", 0, 0),
    SET_OR("layer_norm_epsilon", IN_GPT2, "model.norm_eps", 1e-5, NAN),
    NEED("activation_function", IN_GPT2,
         "\"gelu_new\" \"gelu_pytorch_tanh\" \"gelu_fast\" "
         "\"gelu_accurate\" \"gelu_python_tanh\""),
    NEED("scale_attn_weights", IN_GPT2, "true"),
    NEED("scale_attn_by_inverse_layer_idx", IN_GPT2, "false"),
    NEED("add_cross_attention", IN_GPT2, "false"),
    NEED("tie_word_embeddings", IN_GPT2, "true"),

    /* LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config */
    SET("num_hidden_layers", IN_LLAMAS, "model.n_layer"),
    SET("num_attention_heads", IN_LLAMAS, "model.n_head"),
    SET_OR("num_key_value_heads", IN_LLAMA, "model.n_kv_head", 0, 0),
    SET_OR("num_key_value_heads", IN_MISTRAL, "model.n_kv_head", 8, 0),
    SET_OR("num_key_value_heads", IN_QWEN, "model.n_kv_head", 32, 0),
    SET_OR("head_dim", IN_LLAMA | IN_MISTRAL | IN_QWEN2, "model.head_dim", 0, 0),
    SET_OR("head_dim", IN_QWEN3, "model.head_dim", 128, 0),
    SET("hidden_size", IN_LLAMAS, "model.n_embd"),
    SET("intermediate_size", IN_LLAMAS, "model.n_inner"),
    SET("max_position_embeddings", IN_LLAMAS, "model.n_positions"),
    SET("vocab_size", IN_ALL, "model.vocab_size"),
    SET_OR("rms_norm_eps", IN_LLAMAS, "model.norm_eps", 1e-6, NAN),
    SET_OR("tie_word_embeddings", IN_LLAMAS, "model.tied_head", 0, NAN),
    NEED("hidden_act", IN_LLAMAS, "\"silu\" \"swish\""),
    NEED("pretraining_tp", IN_LLAMA, "null 1"),
    NEED("attention_bias", IN_QWEN3, "false"),
};
/* clang-format on */

const size_t huggingface_key_count = sizeof huggingface_keys / sizeof *huggingface_keys;
