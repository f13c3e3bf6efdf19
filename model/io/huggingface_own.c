#include "model/io/huggingface_own.h"

#include <inttypes.h>
#include <string.h>

#include "data/util/json.h"
#include "model/config/config_print.h"

#define X(size)       "model." #size,
#define Y(type, part) "model." #part,
static const char *const keys[] = {MODEL_SIZES(X) MODEL_PARTS(Y)};
#undef X
#undef Y
enum { KEYS = sizeof keys / sizeof *keys };

static int read_word(const struct huggingface_source *source, const struct config_option *option,
                     void *field) {
    char allowed[320];
    const cJSON *member = json_member(source->root, config_option_name(option));
    for (unsigned i = 0; cJSON_IsString(member) && option->words[i]; i++)
        if (strcmp(option->words[i], member->valuestring) == 0) {
            memcpy(field, &i, sizeof i);
            return 0;
        }
    config_describe_allowed(option, allowed, sizeof allowed);
    return huggingface_refuse(source, config_option_name(option), allowed);
}

/* Reads a flag. Files older than the flag lack it, which means the option's default. */
static int read_flag(const struct huggingface_source *source, const struct config_option *option,
                     bool *field) {
    *field = option->initial > 0;
    if (huggingface_is_absent(source, config_option_name(option))) return 0;
    const cJSON *member = json_member(source->root, config_option_name(option));
    *field = cJSON_IsTrue(member);
    if (cJSON_IsBool(member)) return 0;
    return huggingface_refuse(source, config_option_name(option), "true or false");
}

int huggingface_read_own(struct huggingface_source *source, struct config *config) {
    int status = 0;
    source->family = "own model";
    for (int i = 0; status == 0 && i < KEYS; i++) {
        int row = config_option_index(keys[i], strlen(keys[i]));
        const struct config_option *option = &config_options[row];
        const char *name = config_option_name(option);
        void *field = (char *)config + option->offset;
        if (option->type == CONFIG_INTEGER)
            status = huggingface_read_whole(source, name, keys[i], field, config);
        else if (option->type == CONFIG_NUMBER)
            status = huggingface_read_number(source, name, keys[i], field, config);
        else if (option->type == CONFIG_ENUM) status = read_word(source, option, field);
        else status = read_flag(source, option, field);
        config->sources[row] = CONFIG_SOURCE_FILE;
    }
    return status;
}

static void print_value(FILE *out, const struct config_option *option, const void *field) {
    char text[CONFIG_NUMBER_MAX];
    if (option->type == CONFIG_INTEGER) fprintf(out, "%" PRId64, *(const int64_t *)field);
    else if (option->type == CONFIG_NUMBER)
        fputs(config_format_number(text, *(const double *)field), out);
    else if (option->type == CONFIG_ENUM)
        fprintf(out, "\"%s\"", option->words[*(const unsigned *)field]);
    else fputs(*(const bool *)field ? "true" : "false", out);
}

void huggingface_print_own(FILE *out, const struct config *config,
                           const struct huggingface_tokens *tokens, const char *dtype) {
    fputs("{\n  \"model_type\": \"mantissa\",\n", out);
    for (int i = 0; i < KEYS; i++) {
        const struct config_option *option =
            &config_options[config_option_index(keys[i], strlen(keys[i]))];
        fprintf(out, "  \"%s\": ", config_option_name(option));
        print_value(out, option, (const char *)config + option->offset);
        fputs(",\n", out);
    }
    const struct {
        const char *key;
        int64_t token;
    } ids[] = {{"bos_token_id", tokens->begin},
               {"eos_token_id", tokens->end},
               {"pad_token_id", tokens->pad}};
    for (int i = 0; i < 3; i++)
        if (ids[i].token >= 0) fprintf(out, "  \"%s\": %" PRId64 ",\n", ids[i].key, ids[i].token);
    fprintf(out, "  \"torch_dtype\": \"%s\"\n}\n", dtype);
}
