#include "model/files/config_init.h"

#include <stdarg.h>
#include <string.h>

#include "data/base/files.h"
#include "data/text/tokenizer.h"
#include "model/config/config_keys.h"
#include "model/files/huggingface.h"

/* Whether nothing is left that the model could say. */
static bool is_complete(const struct config *config) {
#define X(size) config_given(config, "model." #size) &&
    return MODEL_SIZES(X) config_given(config, "data.tokenizer");
#undef X
}

enum config_tokenizer config_tokenizer_of_model(int64_t vocab_size, const char *directory) {
    bool has_files = vocab_size != 256 && tokenizer_in_directory(directory);
    return has_files || vocab_size >= 50257 ? CONFIG_TOKENIZER_GPT2 : CONFIG_TOKENIZER_BYTES;
}

/* The message begins with where model.init_from got its value. */
__attribute__((format(printf, 3, 4))) static int
refuse(const struct config_origins *origins, struct error *error, const char *format, ...) {
    char where[CONFIG_WHERE_MAX];
    struct error message;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message.text, sizeof message.text, format, arguments);
    va_end(arguments);
    config_where(where, origins, config_option_index("model.init_from", strlen("model.init_from")));
    return fail(error, "%s: %s", where, message.text);
}

int config_init(struct config *config, const struct config_origins *origins, struct error *error) {
    const char *directory = config->model.init_from;
    struct config read = *config;
    struct error reason;
    if (!directory[0] || is_complete(config)) return 0;
    if (!file_exists(directory) && !config_given(config, "model.n_layer"))
        return refuse(origins, error,
                      "there is no %.400s (from the current folder)\nfetch it, for instance with "
                      "scripts/get_gpt2.sh; a run that began with it resumes\nwithout it by "
                      "--config runs/NAME/config.json --resume",
                      directory);
    if (file_exists_in(directory, "checkpoints"))
        return refuse(
            origins, error,
            "model.init_from: %.300s is the folder of a run\nname one of its checkpoints, "
            "such as %.300s/checkpoints/step-00001000",
            directory, directory);
    if (!file_exists_in(directory, "config.json")) return 0;
    if (huggingface_read_config(&read, directory, &reason))
        return refuse(origins, error, "model.init_from: %s", reason.text);
#define X(size)                                                                              \
    if (config->model.preset == CONFIG_PRESET_NONE && !config_given(config, "model." #size)) \
        config->model.size = read.model.size;
    MODEL_SIZES(X)
#undef X
    if (!config_given(config, "data.tokenizer"))
        config->data.tokenizer = config_tokenizer_of_model(read.model.vocab_size, directory);
    return 0;
}
