#include "model/config/config_keys.h"

#include <assert.h>
#include <string.h>

#include "kernels/arena.h"
#include "model/config/config_table.h"

static void set_default(struct config *config, const struct config_option *option) {
    char *field = (char *)config + option->offset;
    int64_t whole = (int64_t)option->initial;
    unsigned word = (unsigned)option->initial;
    bool condition = option->initial != 0;
    switch (option->type) {
    case CONFIG_STRING: memcpy(field, option->text, strlen(option->text) + 1); break;
    case CONFIG_ENUM: memcpy(field, &word, sizeof word); break;
    case CONFIG_INTEGER: memcpy(field, &whole, sizeof whole); break;
    case CONFIG_NUMBER: memcpy(field, &option->initial, sizeof option->initial); break;
    case CONFIG_BOOLEAN: memcpy(field, &condition, sizeof condition); break;
    case CONFIG_LIST: memset(field, 0, sizeof(struct config_words)); break;
    }
}

void config_defaults(struct config *config) {
    memset(config, 0, sizeof *config);
    for (int i = 0; i < config_option_count; i++) set_default(config, &config_options[i]);
}

bool config_given(const struct config *config, const char *name) {
    int row = config_option_index(name, strlen(name));
    if (row >= 0) return config->sources[row] != CONFIG_SOURCE_DEFAULT;
    int block = config_block_index(name, strlen(name));
    assert(block >= 0);
    for (int i = 0; i < config_option_count; i++)
        if (config_option_block(&config_options[i]) == block &&
            config->sources[i] != CONFIG_SOURCE_DEFAULT)
            return true;
    return false;
}

struct gpt_shape config_shape(const struct config *config) {
    return (struct gpt_shape){
#define X(size) .size = config->model.size,
        MODEL_SIZES(X)
#undef X
            .padded_vocab = round_up(config->model.vocab_size, VOCAB_ALIGNMENT),
    };
}

static const char *word_of(const char *key, unsigned value) {
    return config_options[config_option_index(key, strlen(key))].words[value];
}

const char *config_precision_name(enum config_precision precision) {
    return word_of("precision", precision);
}

const char *config_schedule_name(enum config_schedule schedule) {
    return word_of("optimizer.schedule", schedule);
}

const char *config_recompute_name(enum config_recompute recompute) {
    return word_of("train.recompute", recompute);
}

const char *config_tokenizer_name(enum config_tokenizer tokenizer) {
    return word_of("data.tokenizer", tokenizer);
}
