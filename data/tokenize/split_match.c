/* The matcher of data/tokenize/split_pattern.h. */
#include "data/tokenize/split_pattern.h"

#include "data/util/min_max.h"

#define NO_MATCH SIZE_MAX

struct matcher {
    const struct split_pattern *pattern;
    const uint8_t *text;
    size_t size;
    uint64_t steps; /* steps left */
};

/* Decodes a complete character of two or more bytes. */
static uint32_t decode(const uint8_t *at, size_t *count) {
    if (at[0] < 0xe0) {
        *count = 2;
        return (at[0] & 0x1fu) << 6 | (at[1] & 0x3fu);
    }
    if (at[0] < 0xf0) {
        *count = 3;
        return (at[0] & 0xfu) << 12 | (at[1] & 0x3fu) << 6 | (at[2] & 0x3fu);
    }
    *count = 4;
    return (at[0] & 0x7u) << 18 | (at[1] & 0x3fu) << 12 | (at[2] & 0x3fu) << 6 | (at[3] & 0x3fu);
}

static bool holds_wide(const struct split_set *set, const uint8_t *atoms, uint32_t code) {
    if (set->range_count == 0) return set->atoms >> atoms[code] & 1;
    for (int i = 0; i < set->range_count; i++)
        if (code >= set->ranges[i].first && code <= set->ranges[i].last) return !set->negated;
    return set->atoms >> atoms[code] & 1;
}

/* Takes as many characters of the set as possible from `at` on, at most node->maximum, and returns
 * their end. */
static size_t take(struct matcher *matcher, const struct split_node *node, size_t at,
                   uint32_t *taken) {
    const struct split_set *set = &node->set;
    const uint8_t *text = matcher->text;
    uint32_t count = 0;
    while (count < node->maximum && at < matcher->size) {
        if (text[at] < 0x80) {
            if (!set->ascii[text[at]]) break;
            at++;
        } else {
            size_t bytes;
            if (!holds_wide(set, matcher->pattern->atoms, decode(text + at, &bytes))) break;
            at += bytes;
        }
        count++;
    }
    matcher->steps -= MIN(count, matcher->steps);
    *taken = count;
    return at;
}

static size_t match(struct matcher *matcher, int index, size_t at);

/* Takes as many characters as possible and gives back one at a time until the rest matches. */
static size_t match_take(struct matcher *matcher, const struct split_node *node, size_t at) {
    uint32_t taken;
    size_t end = take(matcher, node, at, &taken);
    for (;; taken--) {
        if (taken < node->minimum) return NO_MATCH;
        const size_t found = match(matcher, node->next, end);
        if (found != NO_MATCH || taken == 0) return found;
        do end--;
        while ((matcher->text[end] & 0xc0) == 0x80);
    }
}

static size_t match_choice(struct matcher *matcher, const struct split_node *node, size_t at) {
    const int count = node->branch_count;
    uint64_t left = at < matcher->size ? node->by_byte[matcher->text[at]]
                                       : UINT64_MAX >> (SPLIT_BRANCHES_MAX - count);
    for (; left; left &= left - 1) {
        const size_t found = match(matcher, node->branches[__builtin_ctzll(left)], at);
        if (found != NO_MATCH) return found;
    }
    return NO_MATCH;
}

/* Recursion is at most as deep as there are nodes. Once no steps are left nothing matches, so all
 * callers return. */
static size_t match(struct matcher *matcher, int index, size_t at) {
    for (;;) {
        if (matcher->steps == 0) return NO_MATCH;
        matcher->steps--;
        const struct split_node *node = &matcher->pattern->nodes[index];
        uint32_t taken;
        switch (node->kind) {
        case SPLIT_ACCEPT: return at;
        case SPLIT_TAKE:
            if (!node->possessive) return match_take(matcher, node, at);
            at = take(matcher, node, at, &taken);
            if (taken < node->minimum) return NO_MATCH;
            break;
        case SPLIT_CHOOSE: return match_choice(matcher, node, at);
        case SPLIT_AHEAD:
            if ((match(matcher, node->branches[0], at) != NO_MATCH) == node->negative)
                return NO_MATCH;
            break;
        case SPLIT_END:
            if (at < matcher->size) return NO_MATCH;
            break;
        case SPLIT_JOIN: break;
        }
        index = node->next;
    }
}

size_t split_pattern_match(const struct split_pattern *pattern, const uint8_t *text, size_t size,
                           size_t at, uint64_t *steps) {
    struct matcher matcher = {.pattern = pattern, .text = text, .size = size, .steps = *steps};
    const size_t found = match(&matcher, pattern->start, at);
    *steps = matcher.steps;
    return found;
}
