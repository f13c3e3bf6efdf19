/* Autocast sites: the operations whose dtype autocast determines. */
#pragma once

#include <stdbool.h>

#include "model/architecture/architecture.h"

enum autocast_site {
#define X(SITE, word, policy) SITE_##SITE,
    AUTOCAST_SITES(X)
#undef X
        AUTOCAST_SITE_COUNT
};

enum autocast_policy { POLICY_LOWER, POLICY_LINEAR, POLICY_INPUT, POLICY_FLOAT32 };

const char *autocast_site_name(enum autocast_site site);
enum autocast_policy autocast_site_policy(enum autocast_site site);

/* True if autocast.float32 accepts the site's name; sites that always run in fp32 are not
 * accepted. */
bool autocast_site_is_choice(enum autocast_site site);

/* Names that autocast.float32 accepts, ended by NULL. */
#define X(SITE, word, policy) +(POLICY_##policy != POLICY_FLOAT32)
enum { AUTOCAST_NAME_COUNT = AUTOCAST_SITES(X) };
#undef X
extern const char *const autocast_names[AUTOCAST_NAME_COUNT + 1];

/* Linear layers of a block, in the order of the sites, and their names, which autocast.lower16
 * accepts, ended by NULL. linear_index returns the index of a site in that list. */
#define X(SITE, word, policy) +(POLICY_##policy == POLICY_LINEAR)
enum { LINEAR_COUNT = AUTOCAST_SITES(X) };
#undef X
extern const char *const linear_names[LINEAR_COUNT + 1];
int linear_index(enum autocast_site site); /* -1: not a linear layer */
