#include "model/config_init.h"

#include <string.h>

#include "data/error.h"
#include "data/files.h"
#include "model/huggingface.h"

static bool exists_in(const char *directory, const char *name) {
    char path[FILE_PATH_MAX];
    return (size_t)snprintf(path, sizeof path, "%s/%s", directory, name) < sizeof path &&
           file_exists(path);
}

int config_init(struct config *config, char *error) {
    const char *directory = config->model.init_from;
    struct config read = *config;
    if (!directory[0] || config->model.preset != CONFIG_PRESET_NONE) return 0;
    if (exists_in(directory, "checkpoints"))
        return fail(error,
                    "model.init_from: %.400s is the folder of a run\nname one of its checkpoints, "
                    "such as %.400s/checkpoints/step-00001000",
                    directory, directory);
    if (!exists_in(directory, "config.json")) return 0;
    if (huggingface_read_config(&read, directory, error)) return -1;
#define FILL(field) \
    if (!config_given(config, "model." #field)) config->model.field = read.model.field;
    FILL(n_layer)
    FILL(n_head)
    FILL(n_embd)
    FILL(n_positions)
    FILL(vocab_size)
#undef FILL
    if (!config_given(config, "data.tokenizer") && read.model.vocab_size > 256)
        config->data.tokenizer = CONFIG_TOKENIZER_GPT2;
    return 0;
}
