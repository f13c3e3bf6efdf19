#include "model/io/huggingface.h"

#include <inttypes.h>
#include <string.h>

#include "data/util/json_escape.h"
#include "model/config/config_keys.h"
#include "model/config/config_print.h"
#include "model/io/huggingface_keys.h"

struct huggingface_tokens huggingface_tokens_of(const struct config *config,
                                                const struct tokenizer *tokenizer) {
    int none = config->data.tokenizer == TOKENIZER_GPT2 ? (int)families[FAMILY_GPT2].end : -1;
    int64_t begin = tokenizer ? tokenizer->end_of_text : none;
    int64_t ends[2] = {tokenizer ? tokenizer->eos : none, tokenizer ? tokenizer->stop : none};
    int64_t pad = tokenizer ? tokenizer->roles[ROLE_PAD] : -1;
    struct huggingface_tokens tokens = {.begin = -1, .pad = -1};
    if (begin < config->model.vocab_size) tokens.begin = begin;
    if (pad < config->model.vocab_size) tokens.pad = pad;
    for (int i = 0; i < 2; i++)
        if (ends[i] < config->model.vocab_size) huggingface_add_end(&tokens, ends[i]);
    if (tokens.end_count == 0) huggingface_add_end(&tokens, tokens.begin);
    return tokens;
}

bool huggingface_add_end(struct huggingface_tokens *tokens, int64_t token) {
    for (int i = 0; i < tokens->end_count; i++)
        if (tokens->ends[i] == token) return true;
    if (token >= 0 && tokens->end_count == HUGGINGFACE_ENDS_MAX) return false;
    if (token >= 0) tokens->ends[tokens->end_count++] = (int32_t)token;
    return true;
}

const char *huggingface_ends_text(char text[HUGGINGFACE_ENDS_TEXT],
                                  const struct huggingface_tokens *tokens) {
    const bool list = tokens->end_count > 1;
    int length = snprintf(text, HUGGINGFACE_ENDS_TEXT, "%s", tokens->end_count == 0 ? "null" : "");
    for (int i = 0; i < tokens->end_count; i++)
        length += sprintf(text + length, "%s%" PRId32, i ? ", " : list ? "[" : "", tokens->ends[i]);
    if (list) strcpy(text + length, "]");
    return text;
}

/* "float32", "float16", "bfloat16". */
static const char *const dtype_names[DTYPE_COUNT] = {
#define X(NAME, name, bits, huggingface, ...) huggingface,
    DTYPES(X)
#undef X
};

/* A missing token is null, or left out. */
static void print_tokens(FILE *out, const struct huggingface_tokens *tokens, bool with_null) {
    char begin[24] = "null", pad[24] = "null", ends[HUGGINGFACE_ENDS_TEXT];
    if (tokens->begin >= 0) snprintf(begin, sizeof begin, "%" PRId64, tokens->begin);
    if (tokens->pad >= 0) snprintf(pad, sizeof pad, "%" PRId64, tokens->pad);
    const char *const rows[][2] = {{"bos_token_id", begin},
                                   {"eos_token_id", huggingface_ends_text(ends, tokens)},
                                   {"pad_token_id", pad}};
    for (int i = 0; i < 3; i++)
        if (with_null || strcmp(rows[i][1], "null") != 0)
            fprintf(out, "  \"%s\": %s,\n", rows[i][0], rows[i][1]);
}

static void print_gpt2(FILE *out, const struct config *config,
                       const struct huggingface_tokens *tokens, const char *dtype) {
    char eps[CONFIG_NUMBER_MAX] = "1e-05", inner[32] = "null"; /* as transformers prints them */
    struct model_shape s = config_shape(config);
    if (s.norm_eps != 1e-5) config_format_number(eps, s.norm_eps);
    if (s.n_inner != 4 * s.n_embd) snprintf(inner, sizeof inner, "%" PRId64, s.n_inner);
    fprintf(out,
            "{\n"
            "  \"activation_function\": \"gelu_new\",\n"
            "  \"architectures\": [\"GPT2LMHeadModel\"],\n"
            "  \"attn_pdrop\": 0.0,\n"
            "  \"embd_pdrop\": 0.0,\n"
            "  \"initializer_range\": 0.02,\n"
            "  \"layer_norm_epsilon\": %s,\n"
            "  \"model_type\": \"gpt2\",\n",
            eps);
    print_tokens(out, tokens, true);
    fprintf(out,
            "  \"n_ctx\": %" PRId64 ",\n"
            "  \"n_embd\": %" PRId64 ",\n"
            "  \"n_head\": %" PRId64 ",\n"
            "  \"n_inner\": %s,\n"
            "  \"n_layer\": %" PRId64 ",\n"
            "  \"n_positions\": %" PRId64 ",\n"
            "  \"resid_pdrop\": 0.0,\n"
            "  \"scale_attn_by_inverse_layer_idx\": false,\n"
            "  \"scale_attn_weights\": true,\n"
            "  \"tie_word_embeddings\": true,\n"
            "  \"torch_dtype\": \"%s\",\n"
            "  \"use_cache\": true,\n"
            "  \"vocab_size\": %" PRId64 "\n"
            "}\n",
            s.n_positions, s.n_embd, s.n_head, inner, s.n_layer, s.n_positions, dtype,
            s.vocab_size);
}

/* Returns the family of a model. Llama has no window, so the config may name Mistral without one,
 * and Seed-OSS has the parts of a Qwen2 without one. */
static enum model_family family_of(const struct config *config, const struct model_shape *s) {
    const enum model_family family = shape_family(s);
    const bool named = config->model.type == CONFIG_CLASS_MISTRAL && s->bias == BIAS_NONE;
    const bool seed = config->model.type == CONFIG_CLASS_SEED_OSS && !shape_window_layers(s);
    if (family == FAMILY_QWEN2 && seed) return FAMILY_SEED_OSS;
    return family == FAMILY_LLAMA && named ? FAMILY_MISTRAL : family;
}

/* Prints the kind of rope and those of its settings that differ from the class's defaults. */
static void print_rope_members(FILE *out, const struct config *config) {
    const int kind = (int)config->model.rope_scaling;
    const char *name = config_option_of("model.rope_scaling")->names[kind];
    fprintf(out, "\"rope_type\": \"%s\"", kind == ROPE_UNSCALED ? "default" : name);
    for (const struct huggingface_rope *row = huggingface_ropes; row->key; row++) {
        if (!row->path || !(row->kinds >> kind & 1)) continue;
        const struct config_option *option = config_option_of(row->path);
        if (config_number(config, option) == row->absent) continue;
        fprintf(out, ", \"%s\": ", row->key);
        config_print_value(out, config, option);
    }
    if (config->model.query_scaling_beta == 0 || kind != ROPE_YARN) return;
    fputs(", \"llama_4_scaling_beta\": ", out);
    config_print_value(out, config, config_option_of("model.query_scaling_beta"));
}

/* Prints both spellings, for older and newer versions of transformers. Each kind of layers of
 * Gemma 3 and OLMo 3 has a base of its own. */
static void print_rope(FILE *out, const struct config *config, enum model_family family) {
    const bool kinds = families[family].parts.rope_theta_window > 0,
               gemma = family == FAMILY_GEMMA3;
    char theta[CONFIG_NUMBER_MAX], window[CONFIG_NUMBER_MAX], partial[CONFIG_NUMBER_MAX];
    const double theta_window = config->model.rope_theta_window;
    config_format_number(theta, config->model.rope_theta);
    config_format_number(window, theta_window > 0 ? theta_window : config->model.rope_theta);
    fprintf(out, "  \"rope_parameters\": {%s", kinds ? "\"full_attention\": {" : "");
    print_rope_members(out, config);
    const double part = config->model.partial_rotary_factor;
    if (part > 0)
        fprintf(out, ", \"partial_rotary_factor\": %s", config_format_number(partial, part));
    fprintf(out, ", \"rope_theta\": %s", theta);
    if (kinds)
        fprintf(out, "}, \"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": %s}",
                window);
    fputs("},\n", out);
    if (part > 0) fprintf(out, "  \"partial_rotary_factor\": %s,\n", partial);
    if (gemma) fprintf(out, "  \"rope_local_base_freq\": %s,\n", window);
    fputs("  \"rope_scaling\": ", out);
    if (config->model.rope_scaling == ROPE_UNSCALED) fputs("null", out);
    else {
        fputs("{", out);
        print_rope_members(out, config);
        fputs("}", out);
    }
    fprintf(out, ",\n  \"rope_theta\": %s,\n", theta);
}

/* Prints the window where the class has one, and the layers that have it: by a number that older
 * readers need, and by the list of newer versions of transformers. All of Mistral's do; an absent
 * window means 4096 there. Gemma and OLMo 3 have to have a number. */
static void print_window(FILE *out, enum model_family family, const struct model_shape *s) {
    const bool some = shape_window_layers(s) > 0;
    const bool needed = 1 << family & IN_KINDS && family != FAMILY_EXAONE4;
    if (families[family].window == 0) return;
    if (!some && !needed) fputs("  \"sliding_window\": null,\n", out);
    else fprintf(out, "  \"sliding_window\": %" PRId64 ",\n", some ? s->window : s->n_positions);
    if (family == FAMILY_MISTRAL || family == FAMILY_PHI3) return;
    if ((family == FAMILY_GEMMA3 || (family == FAMILY_EXAONE4 && some)) && s->window_from == 0)
        fprintf(out, "  \"sliding_window_pattern\": %" PRId64 ",\n",
                !some                   ? 1
                : s->window_pattern > 0 ? s->window_pattern
                                        : s->n_layer + 1);
    if (1 << family & IN_QWEN)
        fprintf(out, "  \"max_window_layers\": %" PRId64 ",\n  \"use_sliding_window\": %s,\n",
                some ? s->window_from : s->n_layer, some ? "true" : "false");
    fputs("  \"layer_types\": [", out);
    for (int64_t l = 0; l < s->n_layer; l++)
        fprintf(out, "%s\"%s_attention\"", l ? ", " : "", shape_window(s, l) ? "sliding" : "full");
    fputs("],\n", out);
}

/* Prints the layers without rope as SmolLM3 has them. */
static void print_no_rope(FILE *out, const struct model_shape *s) {
    fprintf(out, "  \"no_rope_layer_interval\": %" PRId64 ",\n  \"no_rope_layers\": [",
            s->no_rope_interval);
    for (int64_t l = 0; l < s->n_layer; l++)
        fprintf(out, "%s%d", l ? ", " : "", shape_rotates(s, l));
    fputs("],\n  \"sliding_window\": null,\n  \"use_sliding_window\": false,\n", out);
}

/* Prints the sizes of Gated DeltaNets and the layers that are some. */
static void print_delta(FILE *out, const struct model_shape *s) {
    fprintf(out,
            "  \"attn_output_gate\": true,\n"
            "  \"full_attention_interval\": %" PRId64 ",\n"
            "  \"linear_num_key_heads\": %" PRId64 ",\n"
            "  \"linear_num_value_heads\": %" PRId64 ",\n"
            "  \"linear_key_head_dim\": %" PRId64 ",\n"
            "  \"linear_value_head_dim\": %" PRId64 ",\n"
            "  \"linear_conv_kernel_dim\": %" PRId64 ",\n"
            "  \"layer_types\": [",
            s->full_attention_interval, s->linear_num_key_heads, s->linear_num_value_heads,
            s->linear_key_head_dim, s->linear_value_head_dim, s->linear_conv_kernel_dim);
    for (int64_t l = 0; l < s->n_layer; l++)
        fprintf(out, "%s\"%s_attention\"", l ? ", " : "",
                shape_of_layer(s, l).is_delta ? "linear" : "full");
    fputs("],\n", out);
}

/* Prints the keys that only Gemma has. A cap of 0 is none. */
static void print_gemma(FILE *out, enum model_family family, const struct model_shape *s) {
    const struct {
        const char *key;
        double value;
    } rows[] = {
        {"query_pre_attn_scalar",
         s->query_pre_attn_scalar > 0 ? s->query_pre_attn_scalar : (double)s->head_dim},
        {"final_logit_softcapping", s->logit_softcap},
        {"attn_logit_softcapping", s->attention_softcap},
    };
    if (!(1 << family & IN_GEMMA)) return;
    fputs("  \"hidden_activation\": \"gelu_pytorch_tanh\",\n", out);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char number[CONFIG_NUMBER_MAX] = "null";
        if (rows[i].value > 0) config_format_number(number, rows[i].value);
        fprintf(out, "  \"%s\": %s,\n", rows[i].key, number);
    }
}

/* Prints what makes the class one without experts, Mamba and learned positions. It divides sizes of
 * Mamba nonetheless. */
static void print_granite4(FILE *out, const struct model_shape *s) {
    fprintf(out,
            "  \"shared_intermediate_size\": %" PRId64 ",\n  \"num_local_experts\": 0,\n"
            "  \"position_embedding_type\": \"rope\",\n  \"mamba_n_heads\": 1,\n"
            "  \"layer_types\": [",
            s->n_inner);
    for (int64_t l = 0; l < s->n_layer; l++) fprintf(out, "%s\"full_attention\"", l ? ", " : "");
    fputs("],\n", out);
}

/* Prints the multipliers of Granite and HyperCLOVA X, whose logits have the reciprocal. */
static void print_granite(FILE *out, enum model_family family, const struct model_shape *s) {
    const bool post_norm = family == FAMILY_HYPERCLOVAX;
    const double scaling = post_norm ? 1 / s->logits_scaling : s->logits_scaling;
    const struct {
        const char *key;
        double value;
    } rows[] = {{"embedding_multiplier", s->embedding_multiplier},
                {"attention_multiplier", s->attention_multiplier},
                {"residual_multiplier", s->residual_multiplier},
                {"logits_scaling", s->logits_scaling > 0 ? scaling : 0}};
    if (!(1 << family & IN_GRANITES)) return;
    if (post_norm) fputs("  \"use_post_norm\": true,\n", out);
    if (family == FAMILY_GRANITE4) print_granite4(out, s);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char number[CONFIG_NUMBER_MAX];
        config_format_number(number, rows[i].value > 0 ? rows[i].value : 1);
        fprintf(out, "  \"%s\": %s,\n", rows[i].key, number);
    }
}

static void print_llama(FILE *out, enum model_family family, const struct config *config,
                        const struct huggingface_tokens *tokens, const char *dtype) {
    struct model_shape s = config_shape(config);
    const char *biased = s.bias != BIAS_NONE ? "true" : "false";
    /* The only length that transformers' dynamic scaling has. */
    const bool dynamic = s.rope_scaling == ROPE_DYNAMIC;
    const int64_t positions = dynamic ? s.rope_original_positions : s.n_positions;
    char eps[CONFIG_NUMBER_MAX];
    fprintf(out, "{\n  \"architectures\": [\"%sForCausalLM\"],\n", families[family].class);
    if (!(1 << family & (IN_MISTRAL | IN_QWEN2 | IN_EXAONE4 | IN_PHI3)))
        fprintf(out, "  \"attention_bias\": %s,\n", biased);
    if (1 << family & IN_BIASED) fprintf(out, "  \"mlp_bias\": %s,\n", biased);
    fputs("  \"attention_dropout\": 0.0,\n", out);
    if (family == FAMILY_SEED_OSS) fputs("  \"residual_dropout\": 0.0,\n", out);
    print_tokens(out, tokens, true);
    print_gemma(out, family, &s);
    print_granite(out, family, &s);
    /* No key of the class in three of them. */
    if (!(1 << family & (IN_GRANITE | IN_GRANITE4 | IN_PHI3)) || shape_q(&s) != s.n_embd)
        fprintf(out, "  \"head_dim\": %" PRId64 ",\n", s.head_dim);
    fprintf(out,
            "  \"hidden_act\": \"%s\",\n"
            "  \"hidden_size\": %" PRId64 ",\n"
            "  \"initializer_range\": 0.02,\n"
            "  \"intermediate_size\": %" PRId64 ",\n"
            "  \"max_position_embeddings\": %" PRId64 ",\n"
            "  \"model_type\": \"%s\",\n"
            "  \"num_attention_heads\": %" PRId64 ",\n"
            "  \"num_hidden_layers\": %" PRId64 ",\n"
            "  \"num_key_value_heads\": %" PRId64 ",\n"
            "  \"rms_norm_eps\": %s,\n",
            s.mlp == MLP_GEGLU   ? "gelu_pytorch_tanh"
            : s.mlp == MLP_RELU2 ? "relu2"
                                 : "silu",
            s.n_embd, s.n_inner, positions, families[family].type, s.n_head, s.n_layer, s.n_kv_head,
            config_format_number(eps, s.norm_eps));
    print_rope(out, config, family);
    print_window(out, family, &s);
    if (family == FAMILY_SMOLLM3) print_no_rope(out, &s);
    if (family == FAMILY_QWEN3_5) print_delta(out, &s);
    fprintf(out,
            "  \"tie_word_embeddings\": %s,\n"
            "  \"torch_dtype\": \"%s\",\n"
            "  \"use_cache\": true,\n"
            "  \"vocab_size\": %" PRId64 "\n"
            "}\n",
            s.tied_head ? "true" : "false", dtype, s.vocab_size);
}

static void print_own(FILE *out, const struct config *config,
                      const struct huggingface_tokens *tokens, const char *dtype) {
    fputs("{\n  \"model_type\": \"mantissa\",\n", out);
    for (const char *const *path = huggingface_own_keys; *path; path++) {
        const struct config_option *option = config_option_of(*path);
        fprintf(out, "  \"%s\": ", config_option_name(option));
        config_print_value(out, config, option);
        fputs(",\n", out);
    }
    print_tokens(out, tokens, false);
    fprintf(out, "  \"torch_dtype\": \"%s\"\n}\n", dtype);
}

void huggingface_print_config(FILE *out, const struct config *config,
                              const struct huggingface_tokens *tokens, enum dtype dtype) {
    struct model_shape shape = config_shape(config);
    const enum model_family family = family_of(config, &shape);
    if (family == FAMILY_COUNT || (family == FAMILY_GPT2 && shape.window))
        print_own(out, config, tokens, dtype_names[dtype]);
    else if (family == FAMILY_GPT2) print_gpt2(out, config, tokens, dtype_names[dtype]);
    else print_llama(out, family, config, tokens, dtype_names[dtype]);
}

void huggingface_print_generation_config(FILE *out, const struct huggingface_tokens *tokens) {
    fputs("{\n", out);
    print_tokens(out, tokens, false);
    fputs("  \"_from_model_config\": true\n}\n", out);
}

static void print_token_name(FILE *out, const char *key, const struct tokenizer *tokenizer,
                             int token) {
    char name[256] = "";
    size_t size;
    const void *bytes = tokenizer_bytes(tokenizer, token, &size);
    if (size == 0 || size >= sizeof name) return;
    memcpy(name, bytes, size);
    fprintf(out, "  \"%s\": ", key);
    json_print_string(out, name);
    fputs(",\n", out);
}

/* Decoding must restore the exact bytes, so cleanup of spaces is disabled. */
void huggingface_print_tokenizer_config(FILE *out, const struct config *config,
                                        const struct tokenizer *tokenizer) {
    bool gpt2 = tokenizer->kind == TOKENIZER_GPT2;
    fputs("{\n", out);
    if (gpt2)
        fputs("  \"add_bos_token\": false,\n"
              "  \"add_prefix_space\": false,\n",
              out);
    if (tokenizer->kind == TOKENIZER_FILES) {
        print_token_name(out, "bos_token", tokenizer, tokenizer->end_of_text);
        print_token_name(out, "eos_token", tokenizer, tokenizer->eos);
        for (int role = ROLE_UNK; role < TOKENIZER_ROLES; role++)
            print_token_name(out, tokenizer_roles[role], tokenizer, tokenizer->roles[role]);
    } else if (tokenizer->end_of_text >= 0) /* transformers would add a token that does not exist */
        fputs("  \"bos_token\": \"<|endoftext|>\",\n"
              "  \"eos_token\": \"<|endoftext|>\",\n"
              "  \"unk_token\": \"<|endoftext|>\",\n",
              out);
    fprintf(out,
            "  \"clean_up_tokenization_spaces\": false,\n"
            "  \"model_max_length\": %" PRId64 ",\n"
            "  \"tokenizer_class\": \"%s\"\n"
            "}\n",
            config->model.n_positions, gpt2 ? "GPT2Tokenizer" : "PreTrainedTokenizerFast");
}
