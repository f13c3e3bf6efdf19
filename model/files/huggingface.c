#include "model/files/huggingface.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/base/json_escape.h"
#include "data/base/files.h"
#include "model/config/config_read.h"
#include "data/base/json.h"

enum { GPT2_END_OF_TEXT = 50256, SHOWN_MAX = 80 };

/* The token if the vocabulary has it, else none. */
static int64_t known_token(const struct config *config, int64_t token) {
    return token < config->model.vocab_size ? token : -1;
}

struct huggingface_tokens huggingface_tokens_of(const struct config *config,
                                                const struct tokenizer *tokenizer) {
    int token = config->data.tokenizer == CONFIG_TOKENIZER_GPT2 ? GPT2_END_OF_TEXT : -1;
    int64_t known = known_token(config, tokenizer ? tokenizer->end_of_text : token);
    return (struct huggingface_tokens){known, known, -1};
}

/* "float32", "float16", "bfloat16". */
static const char *dtype_name_of(enum dtype dtype) {
    static const char *const names[DTYPE_COUNT] = {
#define X(NAME, name, bytes, huggingface, ...) huggingface,
        DTYPES(X)
#undef X
    };
    return names[dtype];
}

static void print_token(FILE *out, const char *key, int64_t token) {
    fprintf(out, "  \"%s\": ", key);
    if (token >= 0) fprintf(out, "%" PRId64 ",\n", token);
    else fputs("null,\n", out);
}

void huggingface_print_config(FILE *out, const struct config *config,
                              const struct huggingface_tokens *tokens, enum dtype dtype) {
    fputs("{\n"
          "  \"activation_function\": \"gelu_new\",\n"
          "  \"architectures\": [\"GPT2LMHeadModel\"],\n"
          "  \"attn_pdrop\": 0.0,\n"
          "  \"embd_pdrop\": 0.0,\n"
          "  \"initializer_range\": 0.02,\n"
          "  \"layer_norm_epsilon\": 1e-05,\n"
          "  \"model_type\": \"gpt2\",\n",
          out);
    print_token(out, "bos_token_id", tokens->begin);
    print_token(out, "eos_token_id", tokens->end);
    print_token(out, "pad_token_id", tokens->pad);
    fprintf(out,
            "  \"n_ctx\": %" PRId64 ",\n"
            "  \"n_embd\": %" PRId64 ",\n"
            "  \"n_head\": %" PRId64 ",\n"
            "  \"n_inner\": null,\n"
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
            config->model.n_positions, config->model.n_embd, config->model.n_head,
            config->model.n_layer, config->model.n_positions, dtype_name_of(dtype),
            config->model.vocab_size);
}

void huggingface_print_generation_config(FILE *out, const struct huggingface_tokens *tokens) {
    fputs("{\n", out);
    if (tokens->begin >= 0) print_token(out, "bos_token_id", tokens->begin);
    if (tokens->end >= 0) print_token(out, "eos_token_id", tokens->end);
    if (tokens->pad >= 0) print_token(out, "pad_token_id", tokens->pad);
    fputs("  \"_from_model_config\": true\n}\n", out);
}

/* The token between texts of a tokenizer whose own it is. */
static void print_ends(FILE *out, const struct tokenizer *tokenizer) {
    static const char *const keys[] = {"bos_token", "eos_token"};
    char name[256] = "";
    size_t size;
    const void *bytes = tokenizer_bytes(tokenizer, tokenizer->end_of_text, &size);
    if (size == 0 || size >= sizeof name) return;
    memcpy(name, bytes, size);
    for (int i = 0; i < 2; i++) {
        fprintf(out, "  \"%s\": ", keys[i]);
        json_print_string(out, name);
        fputs(",\n", out);
    }
}

/* Decoding must give the bytes back, so nothing may tidy the spaces up. */
void huggingface_print_tokenizer_config(FILE *out, const struct config *config,
                                        const struct tokenizer *tokenizer) {
    bool gpt2 = tokenizer->kind == TOKENIZER_GPT2 && !tokenizer->subwords;
    fputs("{\n", out);
    if (gpt2)
        fputs("  \"add_bos_token\": false,\n"
              "  \"add_prefix_space\": false,\n",
              out);
    if (tokenizer->subwords) print_ends(out, tokenizer);
    else if (tokenizer->end_of_text >= 0) /* a token that is not there would be added */
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

/* A file being read, for messages. */
struct source {
    const cJSON *root;
    const char *where;
    struct error *error;
};

static int refuse(const struct source *source, const char *key, const char *wanted) {
    const cJSON *member = json_member(source->root, key);
    char *found = member ? cJSON_PrintUnformatted(member) : NULL;
    int status =
        fail(source->error, "%s: %s is %.*s,\nbut mantissa's GPT-2 needs %s", source->where, key,
             SHOWN_MAX, found ? found : "missing or there twice", wanted);
    cJSON_free(found);
    return status;
}

/* A key that is absent means GPT2Config's default, which is what we need. */
static bool is_absent(const struct source *source, const char *key) {
    return !cJSON_GetObjectItemCaseSensitive(source->root, key);
}

static int need_number(const struct source *source, const char *key, double wanted,
                       const char *text) {
    if (is_absent(source, key)) return 0;
    const cJSON *member = json_member(source->root, key);
    /* Some files hold values that went through fp32. */
    if (cJSON_IsNumber(member) && fabs(member->valuedouble - wanted) <= 1e-6 * wanted) return 0;
    return refuse(source, key, text);
}

static int need_boolean(const struct source *source, const char *key, bool wanted) {
    if (is_absent(source, key)) return 0;
    const cJSON *member = json_member(source->root, key);
    if (cJSON_IsBool(member) && cJSON_IsTrue(member) == wanted) return 0;
    return refuse(source, key, wanted ? "true" : "false");
}

static int check_kind(const struct source *source) {
    const cJSON *type = json_member(source->root, "model_type");
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "gpt2") != 0)
        return refuse(source, "model_type", "\"gpt2\"");
    const cJSON *activation = json_member(source->root, "activation_function");
    bool is_tanh =
        cJSON_IsString(activation) && (strcmp(activation->valuestring, "gelu_new") == 0 ||
                                       strcmp(activation->valuestring, "gelu_pytorch_tanh") == 0);
    if (!is_absent(source, "activation_function") && !is_tanh)
        return refuse(source, "activation_function", "\"gelu_new\" or \"gelu_pytorch_tanh\"");
    if (need_number(source, "layer_norm_epsilon", 1e-5, "1e-5")) return -1;
    if (need_boolean(source, "scale_attn_weights", true)) return -1;
    if (need_boolean(source, "scale_attn_by_inverse_layer_idx", false)) return -1;
    return need_boolean(source, "tie_word_embeddings", true);
}

/* key: in the file; path: ours. */
static int read_size(const struct source *source, const char *key, const char *path, int64_t *field,
                     struct config *config) {
    char allowed[320];
    int row = config_option_index(path, strlen(path));
    const struct config_option *option = &config_options[row];
    config_describe_allowed(option, allowed, sizeof allowed);
    if (!json_whole(field, source->root, key, (int64_t)option->minimum, (int64_t)option->maximum))
        return refuse(source, key, allowed);
    config->sources[row] = CONFIG_SOURCE_FILE;
    return 0;
}

/* Old files call n_positions n_ctx. */
static const char *key_of(const struct source *source, const char *size) {
    bool old = strcmp(size, "n_positions") == 0 && is_absent(source, size);
    return old && !is_absent(source, "n_ctx") ? "n_ctx" : size;
}

static int read_sizes(const struct source *source, struct config *config) {
#define X(size)                                                                                \
    if (read_size(source, key_of(source, #size), "model." #size, &config->model.size, config)) \
        return -1;
    MODEL_SIZES(X)
#undef X
    const cJSON *inner = json_member(source->root, "n_inner");
    if (is_absent(source, "n_inner") || cJSON_IsNull(inner)) return 0;
    return need_number(source, "n_inner", 4.0 * (double)config->model.n_embd, "null or 4 * n_embd");
}

static int open_config(struct json_file *file, char where[FILE_SHOWN_MAX], const char *directory,
                       struct error *error) {
    char path[FILE_PATH_MAX];
    if (file_path_join(path, directory, "config.json", error)) return -1;
    file_path_shown(where, path);
    return json_file_open(file, path, error);
}

int huggingface_read_config(struct config *config, const char *directory, struct error *error) {
    char where[FILE_SHOWN_MAX];
    struct json_file file;
    if (open_config(&file, where, directory, error)) return -1;
    struct source source = {file.root, where, error};
    struct config read = *config;
    int status = check_kind(&source);
    if (status == 0) status = read_sizes(&source, &read);
    if (status == 0) *config = read;
    json_file_close(&file);
    return status;
}

/* An absent key means GPT2Config's default. */
static int64_t read_token(const cJSON *root, const char *key, int64_t absent,
                          const struct config *config) {
    const cJSON *member = json_member(root, key);
    if (!cJSON_GetObjectItemCaseSensitive(root, key)) return known_token(config, absent);
    if (cJSON_IsArray(member)) member = member->child;
    if (!cJSON_IsNumber(member) || !(member->valuedouble >= 0)) return -1;
    return member->valuedouble < (double)config->model.vocab_size ? (int64_t)member->valuedouble
                                                                  : -1;
}

int huggingface_read_tokens(struct huggingface_tokens *tokens, const struct config *config,
                            const char *directory, struct error *error) {
    char where[FILE_SHOWN_MAX];
    struct json_file file;
    if (open_config(&file, where, directory, error)) return -1;
    tokens->begin = read_token(file.root, "bos_token_id", GPT2_END_OF_TEXT, config);
    tokens->end = read_token(file.root, "eos_token_id", GPT2_END_OF_TEXT, config);
    tokens->pad = read_token(file.root, "pad_token_id", -1, config);
    json_file_close(&file);
    return 0;
}
