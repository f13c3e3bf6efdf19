#include "model/lab/words.h"

#include <stdio.h>
#include <string.h>

#define POLICY_LOWER   true
#define POLICY_INPUT   true
#define POLICY_FLOAT32 false

static const struct {
    const char *name;
    bool is_choice;
} operations[] = {
#define X(id, name, policy) [OPERATION_##id] = {name, policy},
    AUTOCAST_OPERATIONS(X)
#undef X
};

const char *word_name(enum autocast_operation operation) {
    return operations[operation].name;
}

bool word_is_choice(enum autocast_operation operation) {
    return operations[operation].is_choice;
}

unsigned words_of_config(const struct config *config) {
    unsigned words = 0;
    for (int i = 0; i < config->autocast.float32.count; i++)
        for (int id = 0; id < AUTOCAST_OPERATION_COUNT; id++)
            if (strcmp(config->autocast.float32.items[i], operations[id].name) == 0)
                words |= 1u << id;
    return words;
}

void words_set(struct config *config, unsigned words) {
    struct config_words *list = &config->autocast.float32;
    list->count = 0;
    for (int id = 0; id < AUTOCAST_OPERATION_COUNT; id++)
        if (words & (1u << id) && operations[id].is_choice)
            list->items[list->count++] = operations[id].name;
}

void words_text(char text[WORDS_TEXT_MAX], unsigned words) {
    size_t used = 0;
    text[0] = '\0';
    for (int id = 0; id < AUTOCAST_OPERATION_COUNT; id++)
        if (words & (1u << id))
            used += (size_t)snprintf(text + used, WORDS_TEXT_MAX - used, "%s\"%s\"",
                                     used > 0 ? ", " : "", operations[id].name);
}
