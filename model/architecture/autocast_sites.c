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

#define WORD_LOWER(word) word,
#define WORD_INPUT(word) word,
#define WORD_FLOAT32(word)
const char *const autocast_words[AUTOCAST_WORD_COUNT + 1] = {
#define X(SITE, word, policy) WORD_##policy(word)
    AUTOCAST_SITES(X)
#undef X
        NULL};

const char *autocast_site_name(enum autocast_site site) {
    return sites[site].name;
}

enum autocast_policy autocast_site_policy(enum autocast_site site) {
    return sites[site].policy;
}

bool autocast_site_is_choice(enum autocast_site site) {
    return sites[site].policy != POLICY_FLOAT32;
}
