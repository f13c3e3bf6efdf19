#include "model/io/huggingface.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/util/files.h"
#include "data/util/json.h"
#include "model/config/config_print.h"
#include "model/io/huggingface_keys.h"

enum { SHOWN_MAX = 80 };

/* A config.json, or an object in it, while it is read into a config. */
struct config_reader {
    const cJSON *root;
    struct config *config;
    const char *where;  /* the path, for messages */
    const char *inside; /* "", or "rope_scaling." for the keys of that object */
    const char *family; /* family whose rules apply: "GPT-2", "Llama" */
    struct error *error;
};

/* Fails with the value of the key and the expected one. */
static int refuse(const struct config_reader *reader, const char *key, const char *wanted) {
    const cJSON *member = json_member(reader->root, key);
    char *found = member ? cJSON_PrintUnformatted(member) : NULL;
    int status =
        fail(reader->error, "%s: %s%s is %.*s,\nbut mantissa's %s needs %s", reader->where,
             reader->inside, key, SHOWN_MAX, found ? found : "missing", reader->family, wanted);
    cJSON_free(found);
    return status;
}

/* True if the key is absent, which means the default of the model's class in transformers. */
static bool is_absent(const struct config_reader *reader, const char *key) {
    return !json_member(reader->root, key);
}

/* True if the key is null or absent. */
static bool is_null(const struct config_reader *reader, const char *key) {
    return is_absent(reader, key) || cJSON_IsNull(json_member(reader->root, key));
}

static bool text_is(const cJSON *member, const char *text) {
    return cJSON_IsString(member) && strcmp(member->valuestring, text) == 0;
}

/* Fails if the key is present and its value, which the caller has compared, is not allowed. */
static int need(const struct config_reader *reader, const char *key, bool allowed,
                const char *wanted) {
    return is_absent(reader, key) || allowed ? 0 : refuse(reader, key, wanted);
}

/* Reads a flag; an absent key leaves *value as it is. */
static int read_flag(bool *value, const struct config_reader *reader, const char *key) {
    const cJSON *member = json_member(reader->root, key);
    if (cJSON_IsBool(member)) *value = cJSON_IsTrue(member);
    return need(reader, key, cJSON_IsBool(member), "true or false");
}

/* ---- keys that have a key of the config */

/* Sets a key of the config ("model.n_layer") and marks it as given. */
static void set(const struct config_reader *reader, const char *path, double value) {
    const struct config_option *option = config_option_of(path);
    config_set(reader->config, option, value);
    reader->config->sources[option - config_options] = CONFIG_SOURCE_FILE;
}

/* Stores a JSON value for config_set. Returns false if the row of the option table does not allow
 * it. */
static bool value_of(double *value, const struct config_option *option, const cJSON *member) {
    if (option->type == CONFIG_BOOLEAN) {
        *value = cJSON_IsTrue(member);
        return cJSON_IsBool(member);
    }
    if (option->type == CONFIG_ENUM) {
        int word = 0;
        while (option->names[word] && !text_is(member, option->names[word])) word++;
        *value = word;
        return option->names[word];
    }
    *value = cJSON_IsNumber(member) ? member->valuedouble : NAN;
    return *value >= option->minimum && *value <= option->maximum &&
           (option->type == CONFIG_NUMBER || *value == floor(*value));
}

/* Reads a key into the key `path` of the config. Without a value for an absent key, or for null,
 * there must be another one. */
static int read_key(const struct config_reader *reader, const char *key, const char *path,
                    double absent, double null) {
    const struct config_option *option = config_option_of(path);
    const cJSON *member = json_member(reader->root, key);
    double value = !member ? absent : cJSON_IsNull(member) ? null : NAN;
    char allowed[320];
    if (isnan(value) && !value_of(&value, option, member)) {
        config_describe_allowed(option, allowed, sizeof allowed);
        return refuse(reader, key, allowed);
    }
    set(reader, path, value);
    return 0;
}

/* ---- the table of keys */

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

/* Returns true if a value, as JSON, is one of a row's allowed values. */
static bool is_allowed(const struct huggingface_key *row, const cJSON *member) {
    char *text = cJSON_PrintUnformatted(member);
    const size_t size = text ? strlen(text) : 0;
    bool found = false;
    for (const char *at = row->allowed; size > 0 && *at && !found; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        found = length == size && memcmp(at, text, size) == 0;
        at += length;
    }
    cJSON_free(text);
    return found;
}

static int check_value(const struct config_reader *reader, const struct huggingface_key *row) {
    char wanted[200];
    if (is_absent(reader, row->key) || is_allowed(row, json_member(reader->root, row->key)))
        return 0;
    snprintf(wanted, sizeof wanted, "%s%s", strchr(row->allowed, ' ') ? "one of " : "",
             row->allowed);
    return refuse(reader, row->key, row->remedy ? row->remedy : wanted);
}

/* Reads a row's key of the config in the spelling that counts. */
static int read_row(const struct config_reader *reader, const struct huggingface_key *row) {
    const char *key = row->key;
    if (row->last && is_absent(reader, key) && !is_absent(reader, row->last)) key = row->last;
    if (row->first && !is_absent(reader, row->first)) key = row->first;
    return read_key(reader, key, row->path, row->absent, row->null);
}

/* Reads the keys of a class that need no code of their own, and fails at refused values. */
static int read_table(const struct config_reader *reader, int class) {
    for (size_t i = 0; i < huggingface_key_count; i++) {
        const struct huggingface_key *row = &huggingface_keys[i];
        if (!(row->classes & class)) continue;
        if (row->path && read_row(reader, row)) return -1;
        if (row->allowed && check_value(reader, row)) return -1;
    }
    return 0;
}

/* ---- Llama's family */

const struct huggingface_class huggingface_classes[] = {
    [HUGGINGFACE_LLAMA] = {"llama", "Llama", IN_LLAMA, BIAS_NONE, false, 0},
    [HUGGINGFACE_MISTRAL] = {"mistral", "Mistral", IN_MISTRAL, BIAS_NONE, false, 4096},
    [HUGGINGFACE_QWEN2] = {"qwen2", "Qwen2", IN_QWEN2, BIAS_QKV, false, 4096},
    [HUGGINGFACE_QWEN3] = {"qwen3", "Qwen3", IN_QWEN3, BIAS_NONE, true, 4096},
};

enum {
    LINEAR = 1 << ROPE_LINEAR,
    DYNAMIC = 1 << ROPE_DYNAMIC,
    YARN = 1 << ROPE_YARN,
    LLAMA3 = 1 << ROPE_LLAMA3,
    SCALED = LINEAR | DYNAMIC | YARN | LLAMA3
};
static const char rope_original[] = "original_max_position_embeddings",
                  rope_partial[] = "partial_rotary_factor";

/* clang-format off: a row is a line. */
const struct huggingface_rope huggingface_ropes[] = {
    {"factor", SCALED, "model.rope_factor", NAN, NAN},
    {"low_freq_factor", LLAMA3, "model.rope_low_freq_factor", NAN, NAN},
    {"high_freq_factor", LLAMA3, "model.rope_high_freq_factor", NAN, NAN},
    {"attention_factor", YARN, "model.rope_attention_factor", 0, 0},
    {"beta_fast", YARN, "model.rope_beta_fast", 32, 32},
    {"beta_slow", YARN, "model.rope_beta_slow", 1, 1},
    {"truncate", YARN, "model.rope_truncate", true, false},
    {rope_original, YARN | LLAMA3, "model.rope_original_positions", NAN, NAN},
    {"mscale", YARN, NULL, NAN, NAN},
    {"mscale_all_dim", YARN, NULL, NAN, NAN},
    {rope_partial, SCALED, NULL, NAN, NAN},
    {"rope_theta", SCALED, NULL, NAN, NAN},
    {"rope_type", SCALED, NULL, NAN, NAN},
    {"type", SCALED, NULL, NAN, NAN},
    {0},
};
/* clang-format on */

/* Fails at settings that the kind lacks. A part of each head would turn with
 * partial_rotary_factor, which the default kind ignores. */
static int check_scaling(const struct config_reader *reader, const struct config_reader *inner,
                         int kind) {
    const struct config_reader *part = is_absent(inner, rope_partial) ? reader : inner;
    const cJSON *factor = json_member(part->root, rope_partial);
    if (!is_null(part, rope_partial) && !(cJSON_IsNumber(factor) && factor->valuedouble == 1))
        return refuse(part, rope_partial, "1 with this rope_type");
    for (const cJSON *member = inner->root->child; member; member = member->next) {
        const struct huggingface_rope *row = huggingface_ropes;
        while (row->key && !(row->kinds >> kind & 1 && strcmp(row->key, member->string) == 0))
            row++;
        if (!row->key && !cJSON_IsNull(member))
            return refuse(inner, member->string, "only settings that this rope_type has");
    }
    return 0;
}

/* Reads mscale and mscale_all_dim, whose quotient is the attention factor unless that is given. */
static int read_mscale(const struct config_reader *inner) {
    static const char *const keys[] = {"mscale", "mscale_all_dim"};
    const double length = log(inner->config->model.rope_factor);
    double scales[2];
    if (!is_null(inner, "attention_factor"))
        return inner->config->model.rope_attention_factor > 0
                   ? 0
                   : refuse(inner, "attention_factor", "a number above 0");
    for (int i = 0; i < 2; i++) {
        const cJSON *scale = json_member(inner->root, keys[i]);
        scales[i] = cJSON_IsNumber(scale) ? scale->valuedouble : 0;
        if (!is_null(inner, keys[i]) && !(cJSON_IsNumber(scale) && scales[i] >= 0))
            return refuse(inner, keys[i], "a number from 0 on");
    }
    if (scales[0] > 0 && scales[1] > 0)
        set(inner, "model.rope_attention_factor",
            (0.1 * scales[0] * length + 1) / (0.1 * scales[1] * length + 1));
    return 0;
}

/* Reads the settings of a kind of scaling. The number of original positions beside the object wins
 * over that inside it, and max_position_embeddings is the last resort; for dynamic scaling it is
 * the only one, and the model's positions are as many as the factor is meant for. The factor of
 * yarn may be null: the quotient of both lengths. */
static int read_scaling(const struct config_reader *reader, const struct config_reader *inner,
                        int kind) {
    const struct config_reader *outer = is_absent(reader, rope_original) ? inner : reader;
    const int64_t *original = &reader->config->model.rope_original_positions;
    const double positions = (double)reader->config->model.n_positions;
    set(reader, "model.rope_scaling", kind);
    set(reader, "model.rope_original_positions", positions);
    if (check_scaling(reader, inner, kind)) return -1;
    if ((YARN | LLAMA3) >> kind & 1 &&
        read_key(outer, rope_original, "model.rope_original_positions", positions, NAN))
        return -1;
    const double quotient =
        kind == ROPE_YARN && positions >= (double)*original ? positions / (double)*original : NAN;
    for (const struct huggingface_rope *row = huggingface_ropes; row->key; row++)
        if (row->path && row->kinds >> kind & 1 && row->key != rope_original &&
            read_key(inner, row->key, row->path, row->absent,
                     isnan(row->null) ? quotient : row->null))
            return -1;
    if (kind == ROPE_YARN && read_mscale(inner)) return -1;
    const double longest = floor(positions * reader->config->model.rope_factor);
    if (kind == ROPE_DYNAMIC && longest > config_option_of("model.n_positions")->maximum)
        return refuse(inner, "factor", "a shorter context: model.n_positions has a limit");
    if (kind == ROPE_DYNAMIC) set(reader, "model.n_positions", longest);
    return 0;
}

/* Opens rope_scaling of older files or rope_parameters of newer ones, and fails unless its kind is
 * one that can be computed. An object without a kind is of the default one, as is none at all. */
static int open_rope(struct config_reader *inner, int *kind, const struct config_reader *reader,
                     const char *key, const char *inside) {
    const char *const *names = config_option_of("model.rope_scaling")->names;
    *inner = *reader;
    inner->root = json_member(reader->root, key);
    inner->inside = inside;
    *kind = ROPE_UNSCALED;
    if (is_null(reader, key)) return 0;
    if (!cJSON_IsObject(inner->root)) return refuse(reader, key, "an object");
    for (const cJSON *member = inner->root->child; member; member = member->next)
        if (cJSON_IsObject(member))
            return refuse(inner, member->string, "one setting for all layers");
    const char *name = is_absent(inner, "rope_type") ? "type" : "rope_type";
    const cJSON *type = json_member(inner->root, name);
    if (!type || text_is(type, "default")) return 0;
    for (*kind = ROPE_UNSCALED + 1; names[*kind]; ++*kind)
        if (text_is(type, names[*kind])) return 0;
    return refuse(inner, name, "one of \"default\", \"linear\", \"dynamic\", \"yarn\", \"llama3\"");
}

/* As transformers reads it: rope_scaling counts unless it is empty, then rope_parameters; and
 * rope_theta in that object before the one beside it. But neither object may be of a kind that
 * cannot be computed, since other programs may prefer the other object. */
static int read_rope(const struct config_reader *reader) {
    struct config_reader older, newer;
    int older_kind, newer_kind;
    if (open_rope(&older, &older_kind, reader, "rope_scaling", "rope_scaling.") ||
        open_rope(&newer, &newer_kind, reader, "rope_parameters", "rope_parameters."))
        return -1;
    const bool is_older = older.root && older.root->child;
    const struct config_reader *inner = is_older ? &older : &newer;
    const int kind = is_older ? older_kind : newer_kind;
    set(reader, "model.positions", POSITIONS_ROPE);
    set(reader, "model.rope_scaling", ROPE_UNSCALED);
    if (kind != ROPE_UNSCALED && read_scaling(reader, inner, kind)) return -1;
    return read_key(is_absent(inner, "rope_theta") ? reader : inner, "rope_theta",
                    "model.rope_theta", 10000, NAN);
}

/* Llama's attention_bias covers all four matrices of attention, and mlp_bias all three of the MLP.
 * Supported are all biases together. Other classes have no such choice. */
static int read_bias(const struct config_reader *reader, const struct huggingface_class *class) {
    bool attention = false, mlp = false;
    set(reader, "model.bias", class->bias);
    if (class != &huggingface_classes[HUGGINGFACE_LLAMA]) return 0;
    if (read_flag(&attention, reader, "attention_bias") || read_flag(&mlp, reader, "mlp_bias"))
        return -1;
    if (attention != mlp) return refuse(reader, "attention_bias", "that of mlp_bias");
    if (attention) set(reader, "model.bias", BIAS_ALL);
    return 0;
}

static bool is_mistral(const struct huggingface_class *class) {
    return class == &huggingface_classes[HUGGINGFACE_MISTRAL];
}

/* Fails unless layer_types is null or has a known kind for each layer. */
static int check_layers(const struct config_reader *reader) {
    static const char key[] = "layer_types";
    const cJSON *types = json_member(reader->root, key), *type;
    int64_t count = 0;
    if (is_null(reader, key)) return 0;
    cJSON_ArrayForEach(type, types) count +=
        text_is(type, "full_attention") || text_is(type, "sliding_attention");
    return cJSON_IsArray(types) && count == cJSON_GetArraySize(types) &&
                   count == reader->config->model.n_layer
               ? 0
               : refuse(reader, key, "\"full_attention\" or \"sliding_attention\" for each layer");
}

/* Sets has[l] if layer l has the window: all of Mistral's do. Qwen's files have the kind of each
 * layer, or the first layer with a window. Returns the number of layers that have it. */
static int64_t find_windows(bool *has, const struct config_reader *reader,
                            const struct huggingface_class *class) {
    int64_t layers = reader->config->model.n_layer, count = 0, first = 28; /* transformers' */
    const cJSON *types = json_member(reader->root, "layer_types");
    const cJSON *type = cJSON_IsArray(types) && !is_mistral(class) ? types->child : NULL;
    json_whole(&first, reader->root, "max_window_layers", 0, INT32_MAX);
    for (int64_t l = 0; l < layers; l++) {
        has[l] = type ? text_is(type, "sliding_attention") : is_mistral(class) || l >= first;
        count += has[l];
        if (type) type = type->next;
    }
    return count;
}

/* Returns the N for which the layers from `from` on whose number, counted from 1, is a multiple of
 * N are those without a window, or -1. all: the first of them. */
static int64_t pattern_of(const bool *has, int64_t from, int64_t all, int64_t layers) {
    for (int64_t n = 2; n <= all + 1; n++) {
        bool same = (all + 1) % n == 0;
        for (int64_t l = from; same && l < layers; l++) same = has[l] == ((l + 1) % n != 0);
        if (same) return n;
    }
    return -1;
}

/* Sets model.window and the keys that give its layers, of which one or more have it. Returns false
 * if those keys cannot. */
static bool set_windows(const struct config_reader *reader, int64_t window, const bool *has) {
    int64_t layers = reader->config->model.n_layer, from = 0, all = 0;
    while (!has[from]) from++;
    for (all = from; all < layers && has[all];) all++;
    const int64_t pattern = all < layers ? pattern_of(has, from, all, layers) : 0;
    if (pattern < 0) return false;
    set(reader, "model.window", (double)window);
    set(reader, "model.window_from", (double)from);
    set(reader, "model.window_pattern", (double)pattern);
    return true;
}

/* Reads the attention window, if the model's longest context exceeds it. If the keys of the config
 * cannot name the layers that have it, the window limits the context. */
static int read_window(const struct config_reader *reader, const struct huggingface_class *class) {
    struct config *config = reader->config;
    bool used = is_mistral(class);
    int64_t window = class->window;
    set(reader, "model.window", 0);
    set(reader, "model.window_from", 0);
    set(reader, "model.window_pattern", 0);
    if (window == 0) return 0; /* Llama ignores such keys */
    if (!used && check_layers(reader)) return -1;
    if (!used && read_flag(&used, reader, "use_sliding_window")) return -1;
    bool absent = is_absent(reader, "sliding_window");
    if (!used || (!absent && is_null(reader, "sliding_window"))) return 0;
    if (!absent && !json_whole(&window, reader->root, "sliding_window", 1, INT64_C(1) << 40))
        return refuse(reader, "sliding_window", "null, or a number of tokens from 1 on");
    if (window >= config->model.n_positions) return 0;
    bool *has = calloc((size_t)config->model.n_layer, sizeof *has);
    if (!has) return fail(reader->error, "out of memory");
    bool set = find_windows(has, reader, class) == 0 || set_windows(reader, window, has);
    free(has);
    if (set) return 0;
    if (window < config->data.seq_len && config_given(config, "data.seq_len"))
        return refuse(
            reader, "sliding_window",
            "at least data.seq_len, unless model.window_from and model.window_pattern can "
            "name the layers that have the window");
    config->model.n_positions = window;
    return 0;
}

static int read_llama(const struct config_reader *reader, const struct huggingface_class *class) {
    set(reader, "model.type", is_mistral(class) ? CONFIG_CLASS_MISTRAL : CONFIG_CLASS_AUTO);
    set(reader, "model.norm", NORM_RMSNORM);
    set(reader, "model.qk_norm", class->qk_norm);
    set(reader, "model.mlp", MLP_SWIGLU);
    if (read_table(reader, class->keys) || read_bias(reader, class) || read_rope(reader)) return -1;
    return read_window(reader, class);
}

/* ---- models of other parts */

#define X(size)       "model." #size,
#define Y(type, part) "model." #part,
const char *const huggingface_own_keys[] = {MODEL_SIZES(X) MODEL_PARTS(Y) NULL};
#undef X
#undef Y

/* Keys that are no flags and that older files lack, as they may any flag. */
static const char *const newer_keys[] = {"model.window",         "model.window_from",
                                         "model.window_pattern", "model.rope_attention_factor",
                                         "model.rope_beta_fast", "model.rope_beta_slow"};

/* An absent key of those means the option's default. */
static int read_own(const struct config_reader *reader) {
    for (const char *const *path = huggingface_own_keys; *path; path++) {
        const struct config_option *option = config_option_of(*path);
        bool newer = option->type == CONFIG_BOOLEAN;
        for (size_t i = 0; i < sizeof newer_keys / sizeof *newer_keys; i++)
            newer |= strcmp(*path, newer_keys[i]) == 0;
        double absent = newer ? option->initial : NAN;
        if (read_key(reader, config_option_name(option), *path, absent, NAN)) return -1;
    }
    return 0;
}

/* ---- the file */

static int read_family(struct config_reader *reader) {
    const cJSON *type = json_member(reader->root, "model_type");
    if (text_is(type, "gpt2")) return read_table(reader, IN_GPT2);
    reader->family = "own model";
    if (text_is(type, "mantissa")) return read_own(reader);
    for (int i = 0; i < HUGGINGFACE_CLASSES; i++) {
        const struct huggingface_class *class = &huggingface_classes[i];
        reader->family = class->family;
        if (text_is(type, class->type)) return read_llama(reader, class);
    }
    reader->family = "list of models";
    return refuse(reader, "model_type", "\"gpt2\", \"llama\", \"mistral\", \"qwen2\" or \"qwen3\"");
}

void huggingface_fetch_advice(char text[300], const char *directory) {
    const char *slash = strchr(directory, '/');
    const bool is_run = strncmp(directory, "runs/", 5) == 0;
    const bool is_name = slash && slash != directory && slash[1] && !strchr(slash + 1, '/') &&
                         *directory != '.' && strncmp(directory, "datasets/", 9) != 0 && !is_run;
    if (is_name)
        snprintf(text, 300,
                 "fetch it: scripts/get_model.sh %.100s, which puts it into datasets/%.100s",
                 directory, slash + 1);
    else if (is_run)
        snprintf(text, 300, "train that run first: ./train --config configs/%.200s.json",
                 directory + 5);
    else snprintf(text, 300, "fetch it: scripts/get_model.sh ORG/NAME %.200s", directory);
}

int huggingface_read_config(struct config *config, const char *directory, struct error *error) {
    struct json_file file;
    struct config read = *config;
    if (json_file_open_in(&file, directory, "config.json", error)) return -1;
    struct config_reader reader = {file.root, &read, file.where, "", "GPT-2", error};
    int status = read_family(&reader);
    if (status == 0) *config = read;
    json_file_close(&file);
    return status;
}

/* Returns the token in a JSON value, or -1 if it is none of the vocabulary. */
static int64_t token_of(const cJSON *value, const struct config *config) {
    double token = cJSON_IsNumber(value) ? value->valuedouble : -1;
    return token >= 0 && token < (double)config->model.vocab_size ? (int64_t)token : -1;
}

/* Returns the token of a key; an absent key has the default of the model's class. */
static int64_t read_token(const cJSON *root, const char *key, int64_t absent,
                          const struct config *config) {
    const cJSON *member = json_member(root, key),
                value = {.type = cJSON_Number, .valuedouble = (double)absent};
    if (cJSON_IsArray(member)) member = member->child;
    return token_of(json_member(root, key) ? member : &value, config);
}

/* Adds the tokens of "eos_token_id", which is one or a list. */
static int add_ends(struct huggingface_tokens *tokens, const struct json_file *file,
                    const struct config *config, struct error *error) {
    const cJSON *member = json_member(file->root, "eos_token_id");
    const cJSON *value = cJSON_IsArray(member) ? member->child : member;
    for (; value; value = cJSON_IsArray(member) ? value->next : NULL)
        if (!huggingface_add_end(tokens, token_of(value, config)))
            return fail(error, "%s: eos_token_id has more than %d tokens", file->where,
                        HUGGINGFACE_ENDS_MAX);
    return 0;
}

int huggingface_read_tokens(struct huggingface_tokens *tokens, const struct config *config,
                            const char *directory, struct error *error) {
    struct json_file file;
    if (json_file_open_in(&file, directory, "config.json", error)) return -1;
    const cJSON *type = json_member(file.root, "model_type");
    bool gpt2 = text_is(type, "gpt2"), llama = text_is(type, "llama") || text_is(type, "mistral");
    int64_t begin = gpt2 ? GPT2_END_OF_TEXT : llama ? 1 : -1;
    int64_t end = gpt2 ? GPT2_END_OF_TEXT : llama ? 2 : -1;
    *tokens = (struct huggingface_tokens){
        .begin = read_token(file.root, "bos_token_id", begin, config),
        .pad = read_token(file.root, "pad_token_id", -1, config),
    };
    huggingface_add_end(tokens, read_token(file.root, "eos_token_id", end, config));
    int status = add_ends(tokens, &file, config, error);
    json_file_close(&file);
    if (status || json_file_open_optional(&file, directory, "generation_config.json", error))
        return -1;
    status = add_ends(tokens, &file, config, error);
    json_file_close(&file);
    return status;
}
