#include "model/io/huggingface.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "data/util/files.h"
#include "data/util/json.h"
#include "data/util/program_names.h"
#include "model/config/config_keys.h"
#include "model/io/huggingface_larger.h"
#include "model/io/huggingface_reader.h"
#include "model/io/quantized_tensors.h"

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

    /* LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, SmolLM3Config, Olmo2Config,
     * Olmo3Config, Exaone4Config */
    SET("num_hidden_layers", IN_LLAMAS, "model.n_layer"),
    SET("num_attention_heads", IN_LLAMAS, "model.n_head"),
    SET_OR("num_key_value_heads", (IN_BIASED & ~IN_SMOLLM3) | IN_PHI3 | IN_GRANITE4,
           "model.n_kv_head", 0, 0),
    SET_OR("num_key_value_heads", IN_GLM4, "model.n_kv_head", 2, NAN),
    SET_OR("num_key_value_heads", IN_OLMO, "model.n_kv_head", 0, 0),
    SET_OR("num_key_value_heads", IN_SMOLLM3, "model.n_kv_head", 4, 0),
    SET_OR("num_key_value_heads", IN_MISTRAL | IN_SEED_OSS | IN_MINISTRAL3, "model.n_kv_head", 8,
           0),
    SET_OR("num_key_value_heads", IN_QWEN | IN_EXAONE4, "model.n_kv_head", 32, 0),
    SET_OR("num_key_value_heads", IN_QWEN3_5, "model.n_kv_head", 4, NAN),
    SET_OR("head_dim", IN_QWEN3_5, "model.head_dim", 256, NAN),
    SET_OR("head_dim", IN_LLAMAS & ~(IN_HEAD_OF_128 | IN_QWEN3_5), "model.head_dim", 0, 0),
    SET_OR("head_dim", IN_HEAD_OF_128, "model.head_dim", 128, 0),
    SET("hidden_size", IN_LLAMAS, "model.n_embd"),
    SET("intermediate_size", IN_LLAMAS & ~IN_GRANITE4, "model.n_inner"),
    SET_OR("shared_intermediate_size", IN_GRANITE4, "model.n_inner", 1024, NAN),
    SET("max_position_embeddings", IN_LLAMAS, "model.n_positions"),
    SET("vocab_size", IN_GPT2 | IN_LLAMAS, "model.vocab_size"),
    SET_OR("rms_norm_eps", IN_LLAMAS & ~(IN_EPSILON_1E_5 | IN_GLM4), "model.norm_eps", 1e-6, NAN),
    SET_OR("rms_norm_eps", IN_EPSILON_1E_5, "model.norm_eps", 1e-5, NAN),
    SET_OR("rms_norm_eps", IN_GLM4, "model.norm_eps", 1.5625e-7, NAN),
    SET_OR("tie_word_embeddings", IN_LLAMAS & ~IN_SMOLLM3, "model.tied_head", 0, NAN),
    SET_OR("tie_word_embeddings", IN_SMOLLM3, "model.tied_head", 1, NAN),
    NEED("hidden_act", IN_LLAMAS & ~IN_ARCEE, "\"silu\" \"swish\""),
    NEED("hidden_act", IN_ARCEE, "\"relu2\""),
    NEED("pretraining_tp", IN_LLAMA, "null 1"),
    NEED("attention_bias", IN_QWEN3 | IN_QWEN3_5 | IN_GEMMA | IN_OLMO, "false"),
    NEED("attention_bias", IN_SEED_OSS, "true"),
    NEED("use_sliding_window", IN_SMOLLM3, "false"),
    NEED("attention_out_bias", IN_SEED_OSS, "false"),
    NEED("mlp_bias", IN_SEED_OSS, "false"),
    NEED("attention_bias", IN_GRANITE4, "false"),
    NONE("sliding_window", IN_MINISTRAL3, "null", "null: all layers attend to all tokens"),

    /* Qwen3_5TextConfig, whose layer_types have code elsewhere */
    NEED("attn_output_gate", IN_QWEN3_5, "true"),
    SET_OR("linear_num_key_heads", IN_QWEN3_5, "model.linear_num_key_heads", 16, NAN),
    SET_OR("linear_num_value_heads", IN_QWEN3_5, "model.linear_num_value_heads", 32, NAN),
    SET_OR("linear_key_head_dim", IN_QWEN3_5, "model.linear_key_head_dim", 128, NAN),
    SET_OR("linear_value_head_dim", IN_QWEN3_5, "model.linear_value_head_dim", 128, NAN),
    SET_OR("linear_conv_kernel_dim", IN_QWEN3_5, "model.linear_conv_kernel_dim", 4, NAN),

    /* GraniteConfig, HyperCLOVAXConfig, whose logits_scaling and use_post_norm have code below */
    SET_OR("embedding_multiplier", IN_GRANITES, "model.embedding_multiplier", 1, NAN),
    SET_OR("attention_multiplier", IN_GRANITE | IN_GRANITE4, "model.attention_multiplier", 1, NAN),
    SET_OR("attention_multiplier", IN_HYPERCLOVAX, "model.attention_multiplier", 0, 0),
    SET_OR("residual_multiplier", IN_GRANITES, "model.residual_multiplier", 1, NAN),
    SET_OR("logits_scaling", IN_GRANITES, "model.logits_scaling", 1, NAN),

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

/* Reads the keys of a family that need no code of their own, and fails at refused values. */
static int read_table(const struct config_reader *reader, enum model_family family) {
    for (size_t i = 0; i < huggingface_key_count; i++) {
        const struct huggingface_key *row = &huggingface_keys[i];
        if (!(row->families & 1 << family)) continue;
        if (row->path && read_row(reader, row)) return -1;
        if (row->allowed && check_value(reader, row)) return -1;
    }
    return 0;
}

/* ---- Llama's family */

/* attention_bias covers all four matrices of attention, and mlp_bias all three of the MLP.
 * Supported are all biases together. Other classes have no such choice. */
static int read_bias(const struct config_reader *reader, enum model_family family) {
    bool attention = false, mlp = false;
    reader_set(reader, "model.bias", families[family].parts.bias);
    if (family == FAMILY_GLM4) {
        attention = true;
        if (reader_flag(&attention, reader, "attention_bias")) return -1;
        reader_set(reader, "model.bias", attention ? BIAS_QKV : BIAS_NONE);
    }
    if (!(1 << family & IN_BIASED)) return 0;
    if (reader_flag(&attention, reader, "attention_bias") || reader_flag(&mlp, reader, "mlp_bias"))
        return -1;
    if (attention != mlp) return reader_refuse(reader, "attention_bias", "that of mlp_bias");
    if (attention) reader_set(reader, "model.bias", BIAS_ALL);
    return 0;
}

/* HyperCLOVA X multiplies the logits by what divides those of Granite, and its scale of scores may
 * be null: that of the head size. Without norms after branches it is a Granite. */
static int read_hyperclovax(const struct config_reader *reader) {
    const struct model_shape s = config_shape(reader->config);
    bool post_norm = true;
    if (reader_flag(&post_norm, reader, "use_post_norm")) return -1;
    reader_set(reader, "model.post_norm", post_norm);
    reader_set(reader, "model.logits_scaling", s.logits_scaling > 0 ? 1 / s.logits_scaling : 0);
    if (s.attention_multiplier == 0)
        reader_set(reader, "model.attention_multiplier", 1 / sqrt((double)s.head_dim));
    return 0;
}

/* Other models of the class have experts, layers of Mamba, or no rope, and so do files without
 * these keys. */
static int check_granite4(const struct config_reader *reader) {
    const cJSON *experts = json_member(reader->root, "num_local_experts"), *type;
    const char *const key =
        reader_lacks(reader, "layer_types") ? "layers_block_type" : "layer_types";
    bool all = cJSON_GetArraySize(json_member(reader->root, key)) == reader->config->model.n_layer;
    cJSON_ArrayForEach(type, json_member(reader->root, key)) all &=
        reader_is_text(type, "attention") || reader_is_text(type, "full_attention");
    if (!cJSON_IsNumber(experts) || experts->valuedouble != 0)
        return reader_refuse(reader, "num_local_experts", "0: it has no mixture of experts");
    if (!all) return reader_refuse(reader, key, "\"attention\" for each layer");
    if (!reader_is_text(json_member(reader->root, "position_embedding_type"), "rope"))
        return reader_refuse(reader, "position_embedding_type", "\"rope\"");
    return 0;
}

/* A factor of 0 is none in a config of mantissa, but takes all away in transformers. */
static int refuse_zero_factors(const struct config_reader *reader) {
    static const char *const keys[] = {"embedding_multiplier", "attention_multiplier",
                                       "residual_multiplier", "logits_scaling"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const cJSON *value = json_member(reader->root, keys[i]);
        if (cJSON_IsNumber(value) && value->valuedouble == 0)
            return reader_refuse(reader, keys[i], "a number above 0");
    }
    return 0;
}

static int read_llama(const struct config_reader *reader, enum model_family family) {
    const struct model_shape *parts = &families[family].parts;
    reader_set(reader, "model.type",
               family == FAMILY_MISTRAL    ? CONFIG_CLASS_MISTRAL
               : family == FAMILY_SEED_OSS ? CONFIG_CLASS_SEED_OSS
                                           : CONFIG_CLASS_AUTO);
#define FIXED(part)    reader_set(reader, "model." #part, parts->part);
#define OPTIONAL(part) reader_set(reader, "model." #part, 0);
#define FREE(part)
#define X(type, part, in_a_family) in_a_family(part)
    MODEL_PARTS(X)
#undef X
    const cJSON *kv_heads = json_member(reader->root, "num_key_value_heads");
    if (cJSON_IsNumber(kv_heads) && kv_heads->valuedouble == 0)
        return reader_refuse(reader, "num_key_value_heads", "a number from 1 on");
    if ((1 << family & IN_GRANITES && refuse_zero_factors(reader)) || read_table(reader, family) ||
        read_bias(reader, family) || (family == FAMILY_HYPERCLOVAX && read_hyperclovax(reader)) ||
        (family == FAMILY_GRANITE4 && check_granite4(reader)) ||
        (parts->rope_theta_window > 0 ? reader_rope_of_kinds(reader, parts)
                                      : reader_rope(reader, family)))
        return -1;
    return reader_window(reader, family) ||
                   (parts->no_rope_interval > 0 && reader_no_rope(reader, family)) ||
                   (parts->full_attention_interval > 0 && reader_full_attention(reader))
               ? -1
               : 0;
}

/* ---- models of other parts */

#define X(size)            "model." #size,
#define Y(type, part, ...) "model." #part,
const char *const huggingface_own_keys[] = {MODEL_SIZES(X) MODEL_PARTS(Y) NULL};
#undef X
#undef Y

/* Older files lack some of the parts: an absent flag, number or window means the option's default.
 */
static int read_own(const struct config_reader *reader) {
    for (const char *const *path = huggingface_own_keys; *path; path++) {
        const struct config_option *option = config_option_of(*path);
        bool needed = option->type == CONFIG_ENUM ||
                      (option->type == CONFIG_INTEGER && !strstr(*path, "window") &&
                       !strstr(*path, "interval") && !strstr(*path, "linear"));
        double absent = needed ? NAN : option->initial;
        if (reader_key(reader, config_option_name(option), *path, absent, NAN)) return -1;
    }
    return 0;
}

/* ---- the file */

/* Fails with the types of all models that can be read. Names of keys show the commonest of others.
 */
static int refuse_type(struct config_reader *reader) {
    static const char *const experts[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    char wanted[400] = "";
    size_t used = 0;
    for (int i = 0; i < FAMILY_COUNT && used < sizeof wanted; i++)
        used += (size_t)snprintf(wanted + used, sizeof wanted - used, "%s\"%s\"", i ? ", " : "",
                                 families[i].type);
    for (const struct larger_model *i = larger_models; i->type && used < sizeof wanted; i++)
        used += (size_t)snprintf(wanted + used, sizeof wanted - used, "%s\"%s\"",
                                 i[1].type ? ", " : " or ", i->type);
    reader->rules = "list of models";
    for (size_t i = 0; i < sizeof experts / sizeof *experts; i++)
        if (!reader_is_null(reader, experts[i]))
            return reader_refuse(reader, "model_type",
                                 "a dense model: it has no mixture of experts");
    const char *type = json_text(reader->root, "model_type");
    if (type && strncmp(type, "gemma4", strlen("gemma4")) == 0) {
        reader->rules = "Gemma";
        return reader_refuse(reader, "model_type",
                             "\"gemma2\", \"gemma3_text\" or \"gemma3\": layers of Gemma 4 have "
                             "heads of two sizes, which it does not compute");
    }
    return reader_refuse(reader, "model_type", wanted);
}

/* Sets what a class of the text has where its family has another default. */
static void set_larger_defaults(const struct config_reader *inner, const struct larger_model *row) {
    const cJSON *parameters = json_member(inner->root, "rope_parameters"),
                *scaling = json_member(inner->root, "rope_scaling");
    if (row->kv_heads > 0 && reader_lacks(inner, "num_key_value_heads"))
        reader_set(inner, "model.n_kv_head", row->kv_heads);
    if (row->epsilon > 0 && reader_lacks(inner, "rms_norm_eps"))
        reader_set(inner, "model.norm_eps", row->epsilon);
    if (row->rope_theta > 0 && reader_lacks(inner, "rope_theta") &&
        !json_member(parameters, "rope_theta") && !json_member(scaling, "rope_theta"))
        reader_set(inner, "model.rope_theta", row->rope_theta);
}

/* Reads the text's model of a larger one, whose outer object decides whether the head is tied, if
 * it says so. */
static int read_larger(const struct config_reader *reader) {
    static const char tied[] = "tie_word_embeddings";
    const cJSON *text = larger_model_text(reader->root);
    struct config_reader inner = *reader;
    enum model_family family;
    inner.root = text, inner.is_larger = true;
    if (!text) return reader_refuse(reader, "text_config", "an object with the model of the text");
    if (text != reader->root) inner.inside = "text_config.";
    inner.rules = larger_model_of(reader->root)->type;
    if (!larger_model_family(&family, reader->root))
        return reader_refuse(&inner, "model_type", "that of a model of text that can be read");
    inner.rules = families[family].class;
    if (read_llama(&inner, family)) return -1;
    set_larger_defaults(&inner, larger_model_of(reader->root));
    return reader_lacks(reader, tied) ? 0 : reader_key(reader, tied, "model.tied_head", NAN, NAN);
}

static int read_family(struct config_reader *reader) {
    const cJSON *type = json_member(reader->root, "model_type");
    if (reader_is_text(type, families[FAMILY_GPT2].type)) return read_table(reader, FAMILY_GPT2);
    reader->rules = "own model";
    if (reader_is_text(type, "mantissa")) return read_own(reader);
    if (larger_model_of(reader->root)) {
        reader->rules = larger_model_of(reader->root)->type;
        return read_larger(reader);
    }
    for (enum model_family i = FAMILY_GPT2 + 1; i < FAMILY_COUNT; i++) {
        reader->rules = families[i].class;
        if (reader_is_text(type, families[i].type)) return read_llama(reader, i);
    }
    return refuse_type(reader);
}

void huggingface_fetch_advice(char text[FETCH_ADVICE_MAX], const char *directory) {
    char named[PROGRAM_TEXT_MAX];
    const char *slash = strchr(directory, '/');
    const bool is_run = strncmp(directory, "runs/", 5) == 0;
    const bool is_name = slash && slash != directory && slash[1] && !strchr(slash + 1, '/') &&
                         *directory != '.' && strncmp(directory, "datasets/", 9) != 0 && !is_run;
    if (is_name)
        snprintf(
            text, FETCH_ADVICE_MAX,
            program_format(
                named, "fetch it: scripts/get_model.sh %.100s, which puts it into datasets/%.100s"),
            directory, slash + 1);
    else if (is_run)
        snprintf(
            text, FETCH_ADVICE_MAX,
            program_format(named, "train that run first: ./train --config configs/%.200s.json"),
            directory + 5);
    else
        snprintf(text, FETCH_ADVICE_MAX,
                 program_format(named, "fetch it: scripts/get_model.sh ORG/NAME %.200s"),
                 directory);
}

int huggingface_read_config(struct config *config, const char *directory, struct error *error) {
    struct json_file file;
    struct config read = *config;
    if (directory_refuse_file(directory, error)) return -1;
    if (json_file_open_in(&file, directory, "config.json", error)) return -1;
    struct config_reader reader = {file.root, &read, file.where, "", "GPT-2", error, false};
    int status = quantization_check(file.root, file.where, error) || read_family(&reader) ? -1 : 0;
    if (status == 0) *config = read;
    json_file_close(&file);
    return status;
}

/* Returns the token in a JSON value, or -1 if it is none of the vocabulary. */
static int64_t token_of(const cJSON *value, const struct config *config) {
    double token = cJSON_IsNumber(value) ? value->valuedouble : -1;
    return token >= 0 && token < (double)config->model.vocab_size ? (int64_t)token : -1;
}

/* Returns the token of a key; an absent key has the default of the model's family. */
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

int huggingface_read_tokens(struct huggingface_tokens *tokens, const struct config *config,
                            const char *directory, struct error *error) {
    struct json_file file;
    if (json_file_open_in(&file, directory, "config.json", error)) return -1;
    struct family absent = {.begin = -1, .end = -1, .pad = -1};
    enum model_family family;
    const cJSON *text = larger_model_text(file.root), *root = text ? text : file.root;
    const char *type = json_text(root, "model_type");
    if (larger_model_family(&family, file.root)) type = families[family].type;
    for (int i = 0; type && i < FAMILY_COUNT; i++)
        if (strcmp(type, families[i].type) == 0) absent = families[i];
    const struct larger_model *larger = larger_model_of(file.root);
    if (larger && larger->begin) absent.begin = larger->begin, absent.end = larger->end;
    *tokens = (struct huggingface_tokens){
        .begin = read_token(root, "bos_token_id", absent.begin, config),
        .pad = read_token(root, "pad_token_id", absent.pad, config),
    };
    huggingface_add_end(tokens, read_token(root, "eos_token_id", absent.end, config));
    /* The class has two more. */
    const cJSON glm4[] = {{.type = cJSON_Number, .valuedouble = 151336},
                          {.type = cJSON_Number, .valuedouble = 151338}};
    const bool has_glm4 =
        absent.end == families[FAMILY_GLM4].end &&
        (!json_member(root, "eos_token_id") || cJSON_IsNull(json_member(root, "eos_token_id")));
    for (int i = 0; i < 2 && has_glm4; i++) huggingface_add_end(tokens, token_of(&glm4[i], config));
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
