#include "model/io/huggingface.h"

#include <math.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/util/files.h"
#include "data/util/json.h"
#include "model/config/config_print.h"
#include "model/io/huggingface_classes.h"

enum { SHOWN_MAX = 80 };

/* A config.json, or an object in it, while it is read into a config. */
struct config_reader {
    const cJSON *root;
    struct config *config;
    const char *where;  /* the path, for messages */
    const char *family; /* family whose rules apply: "GPT-2", "Llama" */
    struct error *error;
};

/* Fails with the value of the key and the expected one. */
static int refuse(const struct config_reader *reader, const char *key, const char *wanted) {
    const cJSON *member = json_member(reader->root, key);
    char *found = member ? cJSON_PrintUnformatted(member) : NULL;
    int status = fail(reader->error, "%s: %s is %.*s,\nbut mantissa's %s needs %s", reader->where,
                      key, SHOWN_MAX, found ? found : "missing", reader->family, wanted);
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

/* A key of a file and its key of the config. Without a value for an absent key, or for null, there
 * must be another one. */
struct key {
    const char *key, *path;
    double absent, null; /* NAN: none */
};

static int read_key(const struct config_reader *reader, const struct key *key) {
    const struct config_option *option = config_option_of(key->path);
    const cJSON *member = json_member(reader->root, key->key);
    double value = !member ? key->absent : cJSON_IsNull(member) ? key->null : NAN;
    char allowed[320];
    if (isnan(value) && !value_of(&value, option, member)) {
        config_describe_allowed(option, allowed, sizeof allowed);
        return refuse(reader, key->key, allowed);
    }
    set(reader, key->path, value);
    return 0;
}

static int read_keys(const struct config_reader *reader, const struct key *keys, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (read_key(reader, &keys[i])) return -1;
    return 0;
}

#define READ_KEYS(reader, keys) read_keys(reader, keys, sizeof(keys) / sizeof *(keys))

/* ---- GPT-2 */

static int read_gpt2(const struct config_reader *reader) {
    /* Old files call n_positions n_ctx. */
    bool old = is_absent(reader, "n_positions") && !is_absent(reader, "n_ctx");
    const struct key sizes[] = {
        {"n_layer", "model.n_layer", NAN, NAN},
        {"n_head", "model.n_head", NAN, NAN},
        {"n_embd", "model.n_embd", NAN, NAN},
        {old ? "n_ctx" : "n_positions", "model.n_positions", NAN, NAN},
        {"vocab_size", "model.vocab_size", NAN, NAN},
    };
    const struct key inner = {"n_inner", "model.n_inner", NAN, NAN};
    const struct key eps = {"layer_norm_epsilon", "model.norm_eps", NAN, NAN};
    const cJSON *root = reader->root, *activation = json_member(root, "activation_function");
    if (need(reader, "activation_function",
             text_is(activation, "gelu_new") || text_is(activation, "gelu_pytorch_tanh"),
             "\"gelu_new\" or \"gelu_pytorch_tanh\"") ||
        need(reader, "scale_attn_weights", cJSON_IsTrue(json_member(root, "scale_attn_weights")),
             "true") ||
        need(reader, "scale_attn_by_inverse_layer_idx",
             cJSON_IsFalse(json_member(root, "scale_attn_by_inverse_layer_idx")), "false") ||
        need(reader, "tie_word_embeddings", cJSON_IsTrue(json_member(root, "tie_word_embeddings")),
             "true") ||
        READ_KEYS(reader, sizes))
        return -1;
    if (!is_null(reader, inner.key) && read_key(reader, &inner)) return -1;
    return is_absent(reader, eps.key) ? 0 : read_key(reader, &eps);
}

/* ---- Llama's family */

const struct huggingface_class huggingface_classes[] = {
    [HUGGINGFACE_LLAMA] = {"llama", "Llama", BIAS_NONE, false, 0, 0, 0},
    [HUGGINGFACE_MISTRAL] = {"mistral", "Mistral", BIAS_NONE, false, 8, 0, 4096},
    [HUGGINGFACE_QWEN2] = {"qwen2", "Qwen2", BIAS_QKV, false, 32, 0, 4096},
    [HUGGINGFACE_QWEN3] = {"qwen3", "Qwen3", BIAS_NONE, true, 32, 128, 4096},
};

/* Reads the keys common to rope_scaling of older files and rope_parameters of newer ones. */
static int read_scaling(const struct config_reader *reader) {
    static const struct key keys[] = {
        {"factor", "model.rope_factor", NAN, NAN},
        {"low_freq_factor", "model.rope_low_freq_factor", NAN, NAN},
        {"high_freq_factor", "model.rope_high_freq_factor", NAN, NAN},
        {"original_max_position_embeddings", "model.rope_original_positions", NAN, NAN},
    };
    const char *key = is_absent(reader, "rope_type") ? "type" : "rope_type";
    const cJSON *type = json_member(reader->root, key);
    if (text_is(type, "default")) return 0;
    if (!text_is(type, "llama3")) return refuse(reader, key, "\"default\" or \"llama3\"");
    set(reader, "model.rope_scaling", ROPE_LLAMA3);
    return READ_KEYS(reader, keys);
}

static int read_rope(const struct config_reader *reader) {
    static const struct key theta = {"rope_theta", "model.rope_theta", 10000, 10000};
    bool renamed = !is_null(reader, "rope_parameters");
    const char *key = renamed ? "rope_parameters" : "rope_scaling";
    struct config_reader inner = *reader;
    inner.root = json_member(reader->root, key);
    set(reader, "model.positions", POSITIONS_ROPE);
    set(reader, "model.rope_scaling", ROPE_UNSCALED);
    if (!is_null(reader, key)) {
        if (!cJSON_IsObject(inner.root)) return refuse(reader, key, "an object");
        if (read_scaling(&inner)) return -1;
    }
    return read_key(renamed ? &inner : reader, &theta);
}

/* Llama's attention_bias covers all four matrices of attention, and mlp_bias all three of the MLP.
 * Supported are all biases together, or those of q, k and v. */
static int read_bias(const struct config_reader *reader, const struct huggingface_class *class) {
    bool attention = false, mlp = false;
    set(reader, "model.bias", class->bias);
    if (class->bias == BIAS_QKV) return 0;
    if (read_flag(&attention, reader, "attention_bias")) return -1;
    if (class->qk_norm && attention) return refuse(reader, "attention_bias", "false");
    if (read_flag(&mlp, reader, "mlp_bias")) return -1;
    if (attention != mlp) return refuse(reader, "attention_bias", "that of mlp_bias");
    if (attention) set(reader, "model.bias", BIAS_ALL);
    return 0;
}

static bool is_mistral(const struct huggingface_class *class) {
    return class == &huggingface_classes[HUGGINGFACE_MISTRAL];
}

/* Returns the number of layers that use the window: all of Mistral's. Qwen's files have the kind of
 * each layer, or the first layer with a window. */
static int64_t windowed_layers(const struct config_reader *reader,
                               const struct huggingface_class *class) {
    int64_t layers = reader->config->model.n_layer, count = 0, first = 28; /* transformers' */
    const cJSON *types = json_member(reader->root, "layer_types"), *type;
    if (is_mistral(class)) return layers;
    cJSON_ArrayForEach(type, types) count += text_is(type, "sliding_attention");
    if (cJSON_IsArray(types)) return count;
    json_whole(&first, reader->root, "max_window_layers", 0, INT32_MAX);
    return first < layers ? layers - first : 0;
}

/* Reads the attention window, if the model's longest context exceeds it. If only some layers have a
 * window, it limits the context, since model.window is that of all layers. */
static int read_window(const struct config_reader *reader, const struct huggingface_class *class) {
    struct config *config = reader->config;
    bool used = is_mistral(class);
    int64_t window = class->window;
    set(reader, "model.window", 0);
    if (window == 0) return 0; /* Llama ignores such keys */
    if (!used && read_flag(&used, reader, "use_sliding_window")) return -1;
    bool absent = is_absent(reader, "sliding_window");
    if (!used || (!absent && is_null(reader, "sliding_window"))) return 0;
    if (!absent && !json_whole(&window, reader->root, "sliding_window", 1, INT64_C(1) << 40))
        return refuse(reader, "sliding_window", "null, or a number of tokens from 1 on");
    int64_t layers = windowed_layers(reader, class);
    if (window >= config->model.n_positions || layers == 0) return 0;
    if (layers == config->model.n_layer) {
        set(reader, "model.window", (double)window);
        return 0;
    }
    if (window < config->data.seq_len && config_given(config, "data.seq_len"))
        return refuse(reader, "sliding_window",
                      "at least data.seq_len, unless all layers have the window");
    config->model.n_positions = window;
    return 0;
}

static int read_llama(const struct config_reader *reader, const struct huggingface_class *class) {
    const struct key sizes[] = {
        {"num_hidden_layers", "model.n_layer", NAN, NAN},
        {"num_attention_heads", "model.n_head", NAN, NAN},
        {"num_key_value_heads", "model.n_kv_head", (double)class->n_kv_head, 0},
        {"head_dim", "model.head_dim", (double)class->head_dim, 0},
        {"hidden_size", "model.n_embd", NAN, NAN},
        {"intermediate_size", "model.n_inner", NAN, NAN},
        {"max_position_embeddings", "model.n_positions", NAN, NAN},
        {"vocab_size", "model.vocab_size", NAN, NAN},
    };
    static const struct key parts[] = {
        {"rms_norm_eps", "model.norm_eps", 1e-6, NAN},
        {"tie_word_embeddings", "model.tied_head", false, NAN},
    };
    const cJSON *ranks = json_member(reader->root, "pretraining_tp");
    set(reader, "model.type", is_mistral(class) ? CONFIG_CLASS_MISTRAL : CONFIG_CLASS_AUTO);
    set(reader, "model.norm", NORM_RMSNORM);
    set(reader, "model.qk_norm", class->qk_norm);
    set(reader, "model.mlp", MLP_SWIGLU);
    if (need(reader, "pretraining_tp", cJSON_IsNumber(ranks) && ranks->valuedouble == 1, "1") ||
        READ_KEYS(reader, sizes) ||
        need(reader, "hidden_act", text_is(json_member(reader->root, "hidden_act"), "silu"),
             "\"silu\"") ||
        READ_KEYS(reader, parts) || read_bias(reader, class) || read_rope(reader))
        return -1;
    return read_window(reader, class);
}

/* ---- models of other parts */

#define X(size)       "model." #size,
#define Y(type, part) "model." #part,
const char *const huggingface_own_keys[] = {MODEL_SIZES(X) MODEL_PARTS(Y) NULL};
#undef X
#undef Y

/* Files older than a flag, or than the window, lack it, which means the option's default. */
static int read_own(const struct config_reader *reader) {
    for (const char *const *path = huggingface_own_keys; *path; path++) {
        const struct config_option *option = config_option_of(*path);
        bool newer = option->type == CONFIG_BOOLEAN || strcmp(*path, "model.window") == 0;
        double absent = newer ? option->initial : NAN;
        const struct key key = {config_option_name(option), *path, absent, NAN};
        if (read_key(reader, &key)) return -1;
    }
    return 0;
}

/* ---- the file */

static int read_family(struct config_reader *reader) {
    const cJSON *type = json_member(reader->root, "model_type");
    if (text_is(type, "gpt2")) return read_gpt2(reader);
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

static int open_config(struct json_file *file, const char *directory, struct error *error) {
    char path[FILE_PATH_MAX];
    return file_path_join(path, directory, "config.json", error) ||
                   json_file_open(file, path, error)
               ? -1
               : 0;
}

int huggingface_read_config(struct config *config, const char *directory, struct error *error) {
    struct json_file file;
    struct config read = *config;
    if (open_config(&file, directory, error)) return -1;
    struct config_reader reader = {file.root, &read, file.where, "GPT-2", error};
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
    static const char generation_name[] = "generation_config.json";
    struct json_file file;
    char path[FILE_PATH_MAX];
    if (open_config(&file, directory, error)) return -1;
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
    if (status || !file_exists_in(directory, generation_name)) return status;
    if (file_path_join(path, directory, generation_name, error) ||
        json_file_open(&file, path, error))
        return -1;
    status = add_ends(tokens, &file, config, error);
    json_file_close(&file);
    return status;
}
