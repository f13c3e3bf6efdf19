#include "model/architecture/autocast_sites.h"

#include <stddef.h>

static const struct {
    const char *name;
    enum autocast_policy policy;
} sites[] = {
#define X(SITE, word, policy) {word, POLICY_##policy},
    AUTOCAST_SITES(X)
#undef X
};

#define WORD_LOWER(word)  word,
#define WORD_LINEAR(word) word,
#define WORD_INPUT(word)  word,
#define WORD_FLOAT32(word)
const char *const autocast_names[AUTOCAST_NAME_COUNT + 1] = {
#define X(SITE, word, policy) WORD_##policy(word)
    AUTOCAST_SITES(X)
#undef X
        NULL};

#define LINEAR_LOWER(word)
#define LINEAR_LINEAR(word) word,
#define LINEAR_INPUT(word)
#define LINEAR_FLOAT32(word)
const char *const linear_names[LINEAR_COUNT + 1] = {
#define X(SITE, word, policy) LINEAR_##policy(word)
    AUTOCAST_SITES(X)
#undef X
        NULL};

int linear_index(enum autocast_site site) {
    int index = 0;
    if (sites[site].policy != POLICY_LINEAR) return -1;
    for (enum autocast_site i = 0; i < site; i++) index += sites[i].policy == POLICY_LINEAR;
    return index;
}

const char *autocast_site_name(enum autocast_site site) {
    return sites[site].name;
}

enum autocast_policy autocast_site_policy(enum autocast_site site) {
    return sites[site].policy;
}

bool autocast_site_is_choice(enum autocast_site site) {
    return sites[site].policy != POLICY_FLOAT32;
}
