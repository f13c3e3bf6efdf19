#include "model/io/huggingface.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/util/json_escape.h"
#include "data/util/files.h"
#include "data/util/json.h"
#include "model/config/config_keys.h"
#include "model/config/config_read.h"
#include "model/io/huggingface_llama.h"
#include "model/io/huggingface_own.h"
#include "model/io/huggingface_source.h"

enum { GPT2_END_OF_TEXT = 50256 };

/* Returns the token if it is in the vocabulary, else -1. */
static int64_t known_token(const struct config *config, int64_t token) {
    return token < config->model.vocab_size ? token : -1;
}

struct huggingface_tokens huggingface_tokens_of(const struct config *config,
                                                const struct tokenizer *tokenizer) {
    int token = config->data.tokenizer == CONFIG_TOKENIZER_GPT2 ? GPT2_END_OF_TEXT : -1;
    int64_t begin = known_token(config, tokenizer ? tokenizer->end_of_text : token);
    int64_t end = known_token(config, tokenizer ? tokenizer->stop : token);
    return (struct huggingface_tokens){begin, end, -1};
}

/* "float32", "float16", "bfloat16". */
static const char *dtype_name_of(enum dtype dtype) {
    static const char *const names[DTYPE_COUNT] = {
#define X(NAME, name, bits, huggingface, ...) huggingface,
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

static void print_gpt2(FILE *out, const struct config *config,
                       const struct huggingface_tokens *tokens, enum dtype dtype) {
    char text[CONFIG_NUMBER_MAX], inner[32] = "null";
    struct gpt_shape shape = config_shape(config);
    if (shape.n_inner != 4 * shape.n_embd) snprintf(inner, sizeof inner, "%" PRId64, shape.n_inner);
    fputs("{\n"
          "  \"activation_function\": \"gelu_new\",\n"
          "  \"architectures\": [\"GPT2LMHeadModel\"],\n"
          "  \"attn_pdrop\": 0.0,\n"
          "  \"embd_pdrop\": 0.0,\n"
          "  \"initializer_range\": 0.02,\n",
          out);
    fprintf(out, "  \"layer_norm_epsilon\": %s,\n",
            config->model.norm_eps == 1e-5 ? "1e-05"
                                           : config_format_number(text, config->model.norm_eps));
    fputs("  \"model_type\": \"gpt2\",\n", out);
    print_token(out, "bos_token_id", tokens->begin);
    print_token(out, "eos_token_id", tokens->end);
    print_token(out, "pad_token_id", tokens->pad);
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
            config->model.n_positions, config->model.n_embd, config->model.n_head, inner,
            config->model.n_layer, config->model.n_positions, dtype_name_of(dtype),
            config->model.vocab_size);
}

void huggingface_print_config(FILE *out, const struct config *config,
                              const struct huggingface_tokens *tokens, enum dtype dtype) {
    struct gpt_shape shape = config_shape(config);
    if (shape_is_gpt2(&shape)) print_gpt2(out, config, tokens, dtype);
    else if (shape_is_llama(&shape))
        huggingface_print_llama(out, config, tokens, dtype_name_of(dtype));
    else huggingface_print_own(out, config, tokens, dtype_name_of(dtype));
}

void huggingface_print_generation_config(FILE *out, const struct huggingface_tokens *tokens) {
    fputs("{\n", out);
    if (tokens->begin >= 0) print_token(out, "bos_token_id", tokens->begin);
    if (tokens->end >= 0) print_token(out, "eos_token_id", tokens->end);
    if (tokens->pad >= 0) print_token(out, "pad_token_id", tokens->pad);
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
        print_token_name(out, "eos_token", tokenizer, tokenizer->stop);
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

/* Checks settings of GPT-2 of which only one value is supported. Absent keys have GPT2Config's
 * defaults. */
static int check_gpt2(const struct huggingface_source *source) {
    const cJSON *activation = json_member(source->root, "activation_function");
    bool is_tanh =
        cJSON_IsString(activation) && (strcmp(activation->valuestring, "gelu_new") == 0 ||
                                       strcmp(activation->valuestring, "gelu_pytorch_tanh") == 0);
    if (!huggingface_is_absent(source, "activation_function") && !is_tanh)
        return huggingface_refuse(source, "activation_function",
                                  "\"gelu_new\" or \"gelu_pytorch_tanh\"");
    if (huggingface_need_boolean(source, "scale_attn_weights", true)) return -1;
    if (huggingface_need_boolean(source, "scale_attn_by_inverse_layer_idx", false)) return -1;
    return huggingface_need_boolean(source, "tie_word_embeddings", true);
}

static int read_gpt2(const struct huggingface_source *source, struct config *config) {
    /* Old files call n_positions n_ctx. */
    bool old =
        huggingface_is_absent(source, "n_positions") && !huggingface_is_absent(source, "n_ctx");
    const struct {
        const char *key, *path;
        int64_t *field;
    } sizes[] = {
        {"n_layer", "model.n_layer", &config->model.n_layer},
        {"n_head", "model.n_head", &config->model.n_head},
        {"n_embd", "model.n_embd", &config->model.n_embd},
        {old ? "n_ctx" : "n_positions", "model.n_positions", &config->model.n_positions},
        {"vocab_size", "model.vocab_size", &config->model.vocab_size},
    };
    if (check_gpt2(source)) return -1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (huggingface_read_whole(source, sizes[i].key, sizes[i].path, sizes[i].field, config))
            return -1;
    if (!huggingface_is_null(source, "n_inner") &&
        huggingface_read_whole(source, "n_inner", "model.n_inner", &config->model.n_inner, config))
        return -1;
    if (huggingface_is_absent(source, "layer_norm_epsilon")) return 0;
    return huggingface_read_number(source, "layer_norm_epsilon", "model.norm_eps",
                                   &config->model.norm_eps, config);
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
    struct huggingface_source source = {file.root, where, "GPT-2", error};
    struct config read = *config;
    const cJSON *type = json_member(file.root, "model_type");
    const char *name = cJSON_IsString(type) ? type->valuestring : "";
    int status = strcmp(name, "gpt2") == 0       ? read_gpt2(&source, &read)
                 : strcmp(name, "mantissa") == 0 ? huggingface_read_own(&source, &read)
                                                 : huggingface_read_llama(&source, &read);
    if (status == 0) *config = read;
    json_file_close(&file);
    return status;
}

/* Reads a token; an absent key has GPT2Config's default. */
static int64_t read_token(const cJSON *root, const char *key, int64_t absent,
                          const struct config *config) {
    const cJSON *member = json_member(root, key);
    if (!member) return known_token(config, absent);
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
