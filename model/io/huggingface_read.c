#include "model/io/huggingface.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "data/util/files.h"
#include "data/util/json.h"
#include "model/config/config_keys.h"
#include "model/io/huggingface_reader.h"

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
    SET("vocab_size", IN_GPT2 | IN_LLAMAS, "model.vocab_size"),
    SET_OR("rms_norm_eps", IN_LLAMAS, "model.norm_eps", 1e-6, NAN),
    SET_OR("tie_word_embeddings", IN_LLAMAS, "model.tied_head", 0, NAN),
    NEED("hidden_act", IN_LLAMAS, "\"silu\" \"swish\""),
    NEED("pretraining_tp", IN_LLAMA, "null 1"),
    NEED("attention_bias", IN_QWEN3 | IN_GEMMA, "false"),

    /* Gemma2Config, Gemma3TextConfig */
    SET_OR("num_hidden_layers", IN_GEMMA, "model.n_layer", 26, NAN),
    SET_OR("num_attention_heads", IN_GEMMA, "model.n_head", 8, NAN),
    SET_OR("num_key_value_heads", IN_GEMMA, "model.n_kv_head", 4, NAN),
    SET_OR("head_dim", IN_GEMMA, "model.head_dim", 256, NAN),
    SET_OR("hidden_size", IN_GEMMA, "model.n_embd", 2304, NAN),
    SET_OR("intermediate_size", IN_GEMMA, "model.n_inner", 9216, NAN),
    SET_OR("max_position_embeddings", IN_GEMMA2, "model.n_positions", 8192, NAN),
    SET_OR("max_position_embeddings", IN_GEMMA3, "model.n_positions", 131072, NAN),
    SET_OR("vocab_size", IN_GEMMA2, "model.vocab_size", 256000, NAN),
    SET_OR("vocab_size", IN_GEMMA3, "model.vocab_size", 262208, NAN),
    SET_OR("rms_norm_eps", IN_GEMMA, "model.norm_eps", 1e-6, NAN),
    SET_OR("tie_word_embeddings", IN_GEMMA, "model.tied_head", 1, NAN),
    SET_OR("query_pre_attn_scalar", IN_GEMMA, "model.query_pre_attn_scalar", 256, NAN),
    SET_OR("attn_logit_softcapping", IN_GEMMA2, "model.attention_softcap", 50, 0),
    NEED("attn_logit_softcapping", IN_GEMMA3, "null"),
    SET_OR("final_logit_softcapping", IN_GEMMA2, "model.logit_softcap", 30, 0),
    SET_OR("final_logit_softcapping", IN_GEMMA3, "model.logit_softcap", 0, 0),
    NEED("hidden_activation", IN_GEMMA, "\"gelu_pytorch_tanh\" null"),
    NEED("use_bidirectional_attention", IN_GEMMA, "false null"),
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
    if (reader_lacks(reader, row->key) || is_allowed(row, json_member(reader->root, row->key)))
        return 0;
    snprintf(wanted, sizeof wanted, "%s%s", strchr(row->allowed, ' ') ? "one of " : "",
             row->allowed);
    return reader_refuse(reader, row->key, row->remedy ? row->remedy : wanted);
}

/* Reads a row's key of the config in the spelling that counts. */
static int read_row(const struct config_reader *reader, const struct huggingface_key *row) {
    const char *key = row->key;
    if (row->last && reader_lacks(reader, key) && !reader_lacks(reader, row->last)) key = row->last;
    if (row->first && !reader_lacks(reader, row->first)) key = row->first;
    return reader_key(reader, key, row->path, row->absent, row->null);
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
    [HUGGINGFACE_LLAMA] = {"llama", "Llama", IN_LLAMA, BIAS_NONE, false, 0, 0},
    [HUGGINGFACE_MISTRAL] = {"mistral", "Mistral", IN_MISTRAL, BIAS_NONE, false, 4096, 0},
    [HUGGINGFACE_QWEN2] = {"qwen2", "Qwen2", IN_QWEN2, BIAS_QKV, false, 4096, 0},
    [HUGGINGFACE_QWEN3] = {"qwen3", "Qwen3", IN_QWEN3, BIAS_NONE, true, 4096, 0},
    [HUGGINGFACE_GEMMA2] = {"gemma2", "Gemma2", IN_GEMMA2, BIAS_NONE, false, 4096, 2},
    [HUGGINGFACE_GEMMA3] = {"gemma3_text", "Gemma3", IN_GEMMA3, BIAS_NONE, true, 4096, 6},
};

/* Llama's attention_bias covers all four matrices of attention, and mlp_bias all three of the MLP.
 * Supported are all biases together. Other classes have no such choice. */
static int read_bias(const struct config_reader *reader, const struct huggingface_class *class) {
    bool attention = false, mlp = false;
    reader_set(reader, "model.bias", class->bias);
    if (class != &huggingface_classes[HUGGINGFACE_LLAMA]) return 0;
    if (reader_flag(&attention, reader, "attention_bias") || reader_flag(&mlp, reader, "mlp_bias"))
        return -1;
    if (attention != mlp) return reader_refuse(reader, "attention_bias", "that of mlp_bias");
    if (attention) reader_set(reader, "model.bias", BIAS_ALL);
    return 0;
}

static int read_llama(const struct config_reader *reader, const struct huggingface_class *class) {
    const bool gemma = huggingface_is_gemma(class), mistral = huggingface_is_mistral(class);
    reader_set(reader, "model.type", mistral ? CONFIG_CLASS_MISTRAL : CONFIG_CLASS_AUTO);
    reader_set(reader, "model.norm", NORM_RMSNORM);
    reader_set(reader, "model.qk_norm", class->qk_norm);
    reader_set(reader, "model.mlp", gemma ? MLP_GEGLU : MLP_SWIGLU);
    reader_set(reader, "model.norm_zero_centered", gemma);
    reader_set(reader, "model.post_norm", gemma);
    reader_set(reader, "model.scale_embedding", gemma);
    reader_set(reader, "model.query_pre_attn_scalar", 0);
    reader_set(reader, "model.attention_softcap", 0);
    reader_set(reader, "model.logit_softcap", 0);
    reader_set(reader, "model.rope_theta_window", 0);
    const bool kinds = class->keys == IN_GEMMA3;
    if (read_table(reader, class->keys) || read_bias(reader, class) ||
        (kinds ? reader_rope_of_kinds(reader) : reader_rope(reader)))
        return -1;
    return reader_window(reader, class);
}

/* ---- models of other parts */

#define X(size)       "model." #size,
#define Y(type, part) "model." #part,
const char *const huggingface_own_keys[] = {MODEL_SIZES(X) MODEL_PARTS(Y) NULL};
#undef X
#undef Y

/* Older files lack some of the parts: an absent flag, number or window means the option's default.
 */
static int read_own(const struct config_reader *reader) {
    for (const char *const *path = huggingface_own_keys; *path; path++) {
        const struct config_option *option = config_option_of(*path);
        bool needed = option->type == CONFIG_ENUM ||
                      (option->type == CONFIG_INTEGER && !strstr(*path, "window"));
        double absent = needed ? NAN : option->initial;
        if (reader_key(reader, config_option_name(option), *path, absent, NAN)) return -1;
    }
    return 0;
}

/* ---- the file */

/* A model of images and text, whose text is modelled by a Gemma3ForCausalLM. */
static const char image_model[] = "gemma3";

/* Returns the object of the text's model, or NULL if the file is of such a model without one. */
static const cJSON *text_config(const cJSON *root) {
    const cJSON *text = json_member(root, "text_config");
    if (!reader_is_text(json_member(root, "model_type"), image_model)) return root;
    return cJSON_IsObject(text) ? text : NULL;
}

/* Fails with the types of all models that can be read. */
static int refuse_type(struct config_reader *reader) {
    char wanted[200] = "\"gpt2\"";
    size_t used = strlen(wanted);
    for (int i = 0; i < HUGGINGFACE_CLASSES && used < sizeof wanted; i++)
        used += (size_t)snprintf(wanted + used, sizeof wanted - used, ", \"%s\"",
                                 huggingface_classes[i].type);
    if (used < sizeof wanted)
        snprintf(wanted + used, sizeof wanted - used, " or \"%s\"", image_model);
    reader->family = "list of models";
    return reader_refuse(reader, "model_type", wanted);
}

static int read_family(struct config_reader *reader) {
    const cJSON *type = json_member(reader->root, "model_type");
    if (reader_is_text(type, "gpt2")) return read_table(reader, IN_GPT2);
    reader->family = "own model";
    if (reader_is_text(type, "mantissa")) return read_own(reader);
    if (reader_is_text(type, image_model)) {
        if (!text_config(reader->root))
            return reader_refuse(reader, "text_config", "an object with the model of the text");
        reader->root = text_config(reader->root);
        reader->inside = "text_config.";
        type = json_member(reader->root, "model_type");
        reader->family = "Gemma3";
        if (!type) return read_llama(reader, &huggingface_classes[HUGGINGFACE_GEMMA3]);
    }
    for (int i = 0; i < HUGGINGFACE_CLASSES; i++) {
        const struct huggingface_class *class = &huggingface_classes[i];
        reader->family = class->family;
        if (reader_is_text(type, class->type)) return read_llama(reader, class);
    }
    return refuse_type(reader);
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

/* Adds the tokens of "eos_token_id" in an object of a file, which is one or a list. */
static int add_ends(struct huggingface_tokens *tokens, const struct json_file *file,
                    const cJSON *object, const struct config *config, struct error *error) {
    const cJSON *member = json_member(object, "eos_token_id");
    const cJSON *value = cJSON_IsArray(member) ? member->child : member;
    for (; value; value = cJSON_IsArray(member) ? value->next : NULL)
        if (!huggingface_add_end(tokens, token_of(value, config)))
            return fail(error, "%s: eos_token_id has more than %d tokens", file->where,
                        HUGGINGFACE_ENDS_MAX);
    return 0;
}

/* Tokens of classes in transformers, where a file has none; ended by those of other classes. */
static const struct class_tokens {
    const char *type;
    int64_t begin, end, pad;
} class_tokens[] = {
    {"gpt2", GPT2_END_OF_TEXT, GPT2_END_OF_TEXT, -1},
    {"llama", 1, 2, -1},
    {"mistral", 1, 2, -1},
    {"gemma2", 2, 1, 0},
    {"gemma3_text", 2, 1, 0},
    {NULL, -1, -1, -1},
};

int huggingface_read_tokens(struct huggingface_tokens *tokens, const struct config *config,
                            const char *directory, struct error *error) {
    struct json_file file;
    if (json_file_open_in(&file, directory, "config.json", error)) return -1;
    const struct class_tokens *of_class = class_tokens;
    const cJSON *root = text_config(file.root);
    const char *type = json_text(root, "model_type");
    if (!type && root != file.root) type = huggingface_classes[HUGGINGFACE_GEMMA3].type;
    while (of_class->type && !(type && strcmp(type, of_class->type) == 0)) of_class++;
    *tokens = (struct huggingface_tokens){
        .begin = read_token(root, "bos_token_id", of_class->begin, config),
        .pad = read_token(root, "pad_token_id", of_class->pad, config),
    };
    huggingface_add_end(tokens, read_token(root, "eos_token_id", of_class->end, config));
    int status = add_ends(tokens, &file, root, config, error) ||
                         add_ends(tokens, &file, file.root, config, error)
                     ? -1
                     : 0;
    json_file_close(&file);
    if (status || json_file_open_optional(&file, directory, "generation_config.json", error))
        return -1;
    status = add_ends(tokens, &file, file.root, config, error);
    json_file_close(&file);
    return status;
}
