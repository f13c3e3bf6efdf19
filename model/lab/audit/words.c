#include "model/lab/audit/words.h"

#include <stdio.h>
#include <string.h>

unsigned words_of_config(const struct config *config) {
    unsigned words = 0;
    for (int i = 0; i < config->autocast.float32.count; i++)
        for (enum autocast_site id = 0; id < AUTOCAST_SITE_COUNT; id++)
            if (strcmp(config->autocast.float32.items[i], autocast_site_name(id)) == 0)
                words |= 1u << id;
    return words;
}

void words_set(struct config *config, unsigned words) {
    struct config_words *list = &config->autocast.float32;
    list->count = 0;
    for (enum autocast_site id = 0; id < AUTOCAST_SITE_COUNT; id++)
        if (words & (1u << id) && autocast_site_is_choice(id))
            list->items[list->count++] = autocast_site_name(id);
}

void words_text(char text[WORDS_TEXT_MAX], unsigned words) {
    size_t used = 0;
    text[0] = '\0';
    for (enum autocast_site id = 0; id < AUTOCAST_SITE_COUNT; id++)
        if (words & (1u << id))
            used += (size_t)snprintf(text + used, WORDS_TEXT_MAX - used, "%s\"%s\"",
                                     used > 0 ? ", " : "", autocast_site_name(id));
}
