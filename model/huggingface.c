#include "model/huggingface.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/error.h"
#include "data/files.h"
#include "model/config_read.h"
#include "model/json_file.h"

enum { GPT2_END_OF_TEXT = 50256, SHOWN_MAX = 80 };

void huggingface_print_config(FILE *out, const struct config *config) {
    char end_of_text[16] = "null";
    if (config->data.tokenizer == CONFIG_TOKENIZER_GPT2)
        snprintf(end_of_text, sizeof end_of_text, "%d", GPT2_END_OF_TEXT);
    fprintf(out,
            "{\n"
            "  \"activation_function\": \"gelu_new\",\n"
            "  \"architectures\": [\"GPT2LMHeadModel\"],\n"
            "  \"attn_pdrop\": 0.0,\n"
            "  \"bos_token_id\": %s,\n"
            "  \"embd_pdrop\": 0.0,\n"
            "  \"eos_token_id\": %s,\n"
            "  \"initializer_range\": 0.02,\n"
            "  \"layer_norm_epsilon\": 1e-05,\n"
            "  \"model_type\": \"gpt2\",\n",
            end_of_text, end_of_text);
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
            "  \"torch_dtype\": \"float32\",\n"
            "  \"use_cache\": true,\n"
            "  \"vocab_size\": %" PRId64 "\n"
            "}\n",
            config->model.n_positions, config->model.n_embd, config->model.n_head,
            config->model.n_layer, config->model.n_positions, config->model.vocab_size);
}

/* A file being read, for messages. */
struct source {
    const cJSON *root;
    const char *where;
    char *error;
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

static int read_size(const struct source *source, const char *key, int64_t *field,
                     struct config *config) {
    char path[64], allowed[320];
    snprintf(path, sizeof path, "model.%s", key);
    int row = config_option_index(path, strlen(path));
    const struct config_option *option = &config_options[row];
    config_describe_allowed(option, allowed, sizeof allowed);
    if (!json_whole(field, source->root, key, (int64_t)option->minimum, (int64_t)option->maximum))
        return refuse(source, key, allowed);
    config->sources[row] = CONFIG_SOURCE_FILE;
    return 0;
}

static int read_sizes(const struct source *source, struct config *config) {
    if (read_size(source, "n_layer", &config->model.n_layer, config)) return -1;
    if (read_size(source, "n_head", &config->model.n_head, config)) return -1;
    if (read_size(source, "n_embd", &config->model.n_embd, config)) return -1;
    if (read_size(source, "n_positions", &config->model.n_positions, config)) return -1;
    if (read_size(source, "vocab_size", &config->model.vocab_size, config)) return -1;
    const cJSON *inner = json_member(source->root, "n_inner");
    if (is_absent(source, "n_inner") || cJSON_IsNull(inner)) return 0;
    return need_number(source, "n_inner", 4.0 * (double)config->model.n_embd, "null or 4 * n_embd");
}

int huggingface_read_config(struct config *config, const char *directory, char *error) {
    char path[FILE_PATH_MAX], where[CONFIG_WHERE_MAX];
    struct json_file file;
    if ((size_t)snprintf(path, sizeof path, "%s/config.json", directory) >= sizeof path)
        return fail(error, "the path of a model is longer than %d bytes", FILE_PATH_MAX - 1);
    if (json_file_open(&file, path, error)) return -1;
    struct source source = {file.root, config_short_path(where, path), error};
    struct config read = *config;
    int status = check_kind(&source);
    if (status == 0) status = read_sizes(&source, &read);
    if (status == 0) *config = read;
    json_file_close(&file);
    return status;
}
