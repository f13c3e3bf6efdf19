#include "model/io/huggingface_llama.h"

#include <inttypes.h>
#include <string.h>

#include "data/util/json.h"
#include "model/config/config_keys.h"

/* The classes, and the defaults of keys that their config.json may lack. */
static const struct class {
    const char *type, *architecture, *family;
    enum model_bias bias;
    bool qk_norm;
    int64_t n_kv_head, head_dim; /* 0: n_head, n_embd / n_head */
} classes[] = {
    {"llama", "LlamaForCausalLM", "Llama", BIAS_NONE, false, 0, 0},
    {"mistral", "MistralForCausalLM", "Mistral", BIAS_NONE, false, 8, 0},
    {"qwen2", "Qwen2ForCausalLM", "Qwen2", BIAS_QKV, false, 32, 0},
    {"qwen3", "Qwen3ForCausalLM", "Qwen3", BIAS_NONE, true, 32, 128},
};
enum { CLASSES = sizeof classes / sizeof *classes };
static const struct class *const llama = &classes[0], *const mistral = &classes[1],
                                 *const qwen2 = &classes[2], *const qwen3 = &classes[3];
static const double default_eps = 1e-6, default_theta = 10000; /* defaults of all classes */

static void give(struct config *config, const char *path) {
    config->sources[config_option_index(path, strlen(path))] = CONFIG_SOURCE_FILE;
}

static bool text_is(const cJSON *member, const char *text) {
    return cJSON_IsString(member) && strcmp(member->valuestring, text) == 0;
}

static const struct class *class_of(const struct huggingface_source *source) {
    const cJSON *type = json_member(source->root, "model_type");
    for (int i = 0; i < CLASSES; i++)
        if (text_is(type, classes[i].type)) return &classes[i];
    return NULL;
}

static int read_sizes(const struct huggingface_source *source, const struct class *class,
                      struct config *config) {
    const struct {
        const char *key, *path;
        int64_t *field;
        bool optional; /* null: 0 */
        int64_t absent;
    } sizes[] = {
        {"num_hidden_layers", "model.n_layer", &config->model.n_layer, false, 0},
        {"num_attention_heads", "model.n_head", &config->model.n_head, false, 0},
        {"num_key_value_heads", "model.n_kv_head", &config->model.n_kv_head, true,
         class->n_kv_head},
        {"head_dim", "model.head_dim", &config->model.head_dim, true, class->head_dim},
        {"hidden_size", "model.n_embd", &config->model.n_embd, false, 0},
        {"intermediate_size", "model.n_inner", &config->model.n_inner, false, 0},
        {"max_position_embeddings", "model.n_positions", &config->model.n_positions, false, 0},
        {"vocab_size", "model.vocab_size", &config->model.vocab_size, false, 0},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].optional && huggingface_is_null(source, sizes[i].key)) {
            bool absent = huggingface_is_absent(source, sizes[i].key);
            *sizes[i].field = absent ? sizes[i].absent : 0;
            give(config, sizes[i].path);
        } else if (huggingface_read_whole(source, sizes[i].key, sizes[i].path, sizes[i].field,
                                          config)) {
            return -1;
        }
    }
    return 0;
}

/* Reads the keys common to rope_scaling of older files and rope_parameters of newer ones. */
static int read_scaling(const struct huggingface_source *outer, const cJSON *scaling,
                        struct config *config) {
    struct huggingface_source source = *outer;
    source.root = scaling;
    bool renamed = !huggingface_is_absent(&source, "rope_type");
    const cJSON *type = json_member(scaling, renamed ? "rope_type" : "type");
    if (text_is(type, "default")) return 0;
    if (!text_is(type, "llama3"))
        return huggingface_refuse(&source, renamed ? "rope_type" : "type",
                                  "\"default\" or \"llama3\"");
    config->model.rope_scaling = ROPE_LLAMA3;
    if (huggingface_read_number(&source, "factor", "model.rope_factor", &config->model.rope_factor,
                                config) ||
        huggingface_read_number(&source, "low_freq_factor", "model.rope_low_freq_factor",
                                &config->model.rope_low_freq_factor, config) ||
        huggingface_read_number(&source, "high_freq_factor", "model.rope_high_freq_factor",
                                &config->model.rope_high_freq_factor, config))
        return -1;
    return huggingface_read_whole(&source, "original_max_position_embeddings",
                                  "model.rope_original_positions",
                                  &config->model.rope_original_positions, config);
}

static int read_rope(const struct huggingface_source *source, struct config *config) {
    bool renamed = !huggingface_is_null(source, "rope_parameters");
    const char *key = renamed ? "rope_parameters" : "rope_scaling";
    const cJSON *scaling = json_member(source->root, key);
    struct huggingface_source inner = *source;
    config->model.positions = POSITIONS_ROPE;
    config->model.rope_scaling = ROPE_UNSCALED;
    config->model.rope_theta = default_theta;
    give(config, "model.positions");
    give(config, "model.rope_scaling");
    give(config, "model.rope_theta");
    if (!huggingface_is_null(source, key)) {
        if (!cJSON_IsObject(scaling)) return huggingface_refuse(source, key, "an object");
        if (read_scaling(source, scaling, config)) return -1;
    }
    if (renamed) inner.root = scaling;
    if (huggingface_is_null(&inner, "rope_theta")) return 0;
    return huggingface_read_number(&inner, "rope_theta", "model.rope_theta",
                                   &config->model.rope_theta, config);
}

static int read_boolean(const struct huggingface_source *source, const char *key, bool *value) {
    if (huggingface_is_absent(source, key)) return 0;
    const cJSON *member = json_member(source->root, key);
    if (!cJSON_IsBool(member)) return huggingface_refuse(source, key, "true or false");
    *value = cJSON_IsTrue(member);
    return 0;
}

/* Llama's attention_bias covers all four matrices of attention, and mlp_bias all three of the MLP.
 * Supported are all biases together, or those of q, k and v. */
static int read_bias(const struct huggingface_source *source, const struct class *class,
                     struct config *config) {
    bool attention = false, mlp = false;
    config->model.bias = class->bias;
    give(config, "model.bias");
    if (class->bias == BIAS_QKV) return 0;
    if (read_boolean(source, "attention_bias", &attention)) return -1;
    if (class->qk_norm && attention) return huggingface_refuse(source, "attention_bias", "false");
    if (read_boolean(source, "mlp_bias", &mlp)) return -1;
    if (attention != mlp) return huggingface_refuse(source, "attention_bias", "that of mlp_bias");
    if (attention) config->model.bias = BIAS_ALL;
    return 0;
}

/* Reads the attention window. It has no effect up to its own length, so it limits the model's
 * context; a run with a longer context is rejected. */
static int read_window(const struct huggingface_source *source, struct config *config) {
    bool used = true;
    if (huggingface_is_null(source, "sliding_window")) return 0;
    if (!huggingface_is_absent(source, "use_sliding_window") &&
        read_boolean(source, "use_sliding_window", &used))
        return -1;
    int64_t window;
    bool whole = json_whole(&window, source->root, "sliding_window", 1, INT64_C(1) << 40);
    if (!used || (whole && window >= config->model.n_positions)) return 0;
    if (!whole || (window < config->data.seq_len && config_given(config, "data.seq_len")))
        return huggingface_refuse(source, "sliding_window",
                                  "null, or at least data.seq_len: attention here sees all before "
                                  "it");
    config->model.n_positions = window;
    return 0;
}

static int read_parts(const struct huggingface_source *source, const struct class *class,
                      struct config *config) {
    const cJSON *activation = json_member(source->root, "hidden_act");
    if (!huggingface_is_absent(source, "hidden_act") && !text_is(activation, "silu"))
        return huggingface_refuse(source, "hidden_act", "\"silu\"");
    config->model.norm = NORM_RMSNORM;
    config->model.norm_eps = default_eps;
    config->model.qk_norm = class->qk_norm;
    config->model.mlp = MLP_SWIGLU;
    config->model.tied_head = false;
    give(config, "model.norm");
    give(config, "model.norm_eps");
    give(config, "model.qk_norm");
    give(config, "model.mlp");
    give(config, "model.tied_head");
    if (!huggingface_is_absent(source, "rms_norm_eps") &&
        huggingface_read_number(source, "rms_norm_eps", "model.norm_eps", &config->model.norm_eps,
                                config))
        return -1;
    if (read_boolean(source, "tie_word_embeddings", &config->model.tied_head)) return -1;
    if (read_bias(source, class, config) || read_rope(source, config)) return -1;
    return read_window(source, config);
}

int huggingface_read_llama(struct huggingface_source *source, struct config *config) {
    const struct class *class = class_of(source);
    source->family = "list of models";
    if (!class)
        return huggingface_refuse(source, "model_type",
                                  "\"gpt2\", \"llama\", \"mistral\", \"qwen2\" or \"qwen3\"");
    source->family = class->family;
    config->model.type = class == mistral ? CONFIG_CLASS_MISTRAL : CONFIG_CLASS_AUTO;
    give(config, "model.type");
    if (huggingface_need_number(source, "pretraining_tp", 1, "1")) return -1;
    return read_sizes(source, class, config) || read_parts(source, class, config) ? -1 : 0;
}

/* Returns the class for a model's parts. Parts that no class has are still written, so that the
 * file can be read back. Mistral has no biases. */
static const struct class *class_for(const struct config *config, const struct gpt_shape *s) {
    if (s->qk_norm) return qwen3;
    if (s->bias == BIAS_QKV) return qwen2;
    bool named = config->model.type == CONFIG_CLASS_MISTRAL && s->bias == BIAS_NONE;
    return named ? mistral : llama;
}

static void print_token(FILE *out, const char *key, int64_t token) {
    if (token >= 0) fprintf(out, "  \"%s\": %" PRId64 ",\n", key, token);
    else fprintf(out, "  \"%s\": null,\n", key);
}

/* Prints both spellings, for older and newer versions of transformers. */
static void print_rope(FILE *out, const struct gpt_shape *s) {
    char theta[CONFIG_NUMBER_MAX], factor[CONFIG_NUMBER_MAX], low[CONFIG_NUMBER_MAX];
    char high[CONFIG_NUMBER_MAX], scaling[400] = "\"rope_type\": \"default\"";
    config_format_number(theta, s->rope_theta);
    if (s->rope_scaling == ROPE_LLAMA3)
        snprintf(scaling, sizeof scaling,
                 "\"rope_type\": \"llama3\", \"factor\": %s, \"low_freq_factor\": %s, "
                 "\"high_freq_factor\": %s, \"original_max_position_embeddings\": %" PRId64,
                 config_format_number(factor, s->rope_factor),
                 config_format_number(low, s->rope_low_freq_factor),
                 config_format_number(high, s->rope_high_freq_factor), s->rope_original_positions);
    fprintf(out, "  \"rope_parameters\": {%s, \"rope_theta\": %s},\n", scaling, theta);
    if (s->rope_scaling == ROPE_UNSCALED) fprintf(out, "  \"rope_scaling\": null,\n");
    else fprintf(out, "  \"rope_scaling\": {%s},\n", scaling);
    fprintf(out, "  \"rope_theta\": %s,\n", theta);
}

void huggingface_print_llama(FILE *out, const struct config *config,
                             const struct huggingface_tokens *tokens, const char *dtype) {
    struct gpt_shape s = config_shape(config);
    const struct class *class = class_for(config, &s);
    const char *biased = s.bias == BIAS_ALL ? "true" : "false";
    char eps[CONFIG_NUMBER_MAX];
    fprintf(out, "{\n  \"architectures\": [\"%s\"],\n", class->architecture);
    if (class == llama || class == qwen3) fprintf(out, "  \"attention_bias\": %s,\n", biased);
    if (class == llama) fprintf(out, "  \"mlp_bias\": %s,\n", biased);
    fputs("  \"attention_dropout\": 0.0,\n", out);
    print_token(out, "bos_token_id", tokens->begin);
    print_token(out, "eos_token_id", tokens->end);
    print_token(out, "pad_token_id", tokens->pad);
    fprintf(out,
            "  \"head_dim\": %" PRId64 ",\n"
            "  \"hidden_act\": \"silu\",\n"
            "  \"hidden_size\": %" PRId64 ",\n"
            "  \"initializer_range\": 0.02,\n"
            "  \"intermediate_size\": %" PRId64 ",\n"
            "  \"max_position_embeddings\": %" PRId64 ",\n"
            "  \"model_type\": \"%s\",\n"
            "  \"num_attention_heads\": %" PRId64 ",\n"
            "  \"num_hidden_layers\": %" PRId64 ",\n"
            "  \"num_key_value_heads\": %" PRId64 ",\n"
            "  \"rms_norm_eps\": %s,\n",
            s.head_dim, s.n_embd, s.n_inner, s.n_positions, class->type, s.n_head, s.n_layer,
            s.n_kv_head, config_format_number(eps, s.norm_eps));
    print_rope(out, &s);
    if (class == mistral) fputs("  \"sliding_window\": null,\n", out); /* absent means 4096 */
    fprintf(out,
            "  \"tie_word_embeddings\": %s,\n"
            "  \"torch_dtype\": \"%s\",\n"
            "  \"use_cache\": true,\n"
            "  \"vocab_size\": %" PRId64 "\n"
            "}\n",
            s.tied_head ? "true" : "false", dtype, s.vocab_size);
}
