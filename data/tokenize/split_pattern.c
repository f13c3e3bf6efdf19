#include "data/tokenize/split_pattern.h"

#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

void split_pattern_close(struct split_pattern *pattern) {
    if (!pattern) return;
    for (size_t i = 0; i < arrlenu(pattern->nodes); i++) arrfree(pattern->nodes[i].branches);
    arrfree(pattern->nodes);
    free(pattern->text);
    free(pattern);
}

const char *split_pattern_text(const struct split_pattern *pattern) {
    return pattern->text;
}

/* The set of bytes with which a match from a node on may begin, and whether the match may be
 * empty. */
struct beginning {
    bool is_known, can_be_empty;
    bool bytes[256];
};

static void add_beginning(struct beginning *sum, const struct beginning *other) {
    sum->can_be_empty |= other->can_be_empty;
    for (int byte = 0; byte < 256; byte++) sum->bytes[byte] |= other->bytes[byte];
}

/* Fills all[index], an array with one entry per node, and the entries it depends on, each once. */
static const struct beginning *find_beginning(const struct split_pattern *pattern, int index,
                                              struct beginning *all) {
    const struct split_node *node = &pattern->nodes[index];
    struct beginning *own = &all[index];
    if (own->is_known) return own;
    own->is_known = true;
    if (node->kind == SPLIT_ACCEPT || node->kind == SPLIT_END) {
        memset(own->bytes, true, 256);
        own->can_be_empty =
            node->kind == SPLIT_ACCEPT || find_beginning(pattern, node->next, all)->can_be_empty;
    }
    if (node->kind == SPLIT_TAKE) {
        for (int byte = 0; byte < 128; byte++) own->bytes[byte] = node->set.ascii[byte];
        if (split_set_has_wide(&node->set)) memset(own->bytes + 128, true, 128);
    }
    if (node->kind == SPLIT_CHOOSE)
        for (int i = 0; i < node->branch_count; i++)
            add_beginning(own, find_beginning(pattern, node->branches[i], all));
    if (node->kind == SPLIT_JOIN || node->kind == SPLIT_AHEAD ||
        (node->kind == SPLIT_TAKE && node->minimum == 0))
        add_beginning(own, find_beginning(pattern, node->next, all));
    return own;
}

static void fill_by_byte(const struct split_pattern *pattern, struct split_node *node,
                         struct beginning *all) {
    for (int i = 0; i < node->branch_count; i++) {
        const bool *first = find_beginning(pattern, node->branches[i], all)->bytes;
        for (int byte = 0; byte < 256; byte++) node->by_byte[byte] |= (uint64_t)first[byte] << i;
    }
}

/* True if giving back characters of the set cannot help the rest of the pattern: it either cannot
 * begin with one of them, or matches anyway. A node in seen [nodes] needs no second visit, since
 * the search ends at the first node where giving back helps. */
static bool cannot_help(const struct split_pattern *pattern, int index,
                        const struct split_set *given, bool *seen) {
    const struct split_node *node = &pattern->nodes[index];
    if (seen[index]) return true;
    seen[index] = true;
    switch (node->kind) {
    case SPLIT_ACCEPT: return true;
    case SPLIT_TAKE:
        return split_sets_disjoint(&node->set, given) &&
               (node->minimum > 0 || cannot_help(pattern, node->next, given, seen));
    case SPLIT_JOIN: return cannot_help(pattern, node->next, given, seen);
    case SPLIT_CHOOSE:
        for (int i = 0; i < node->branch_count; i++)
            if (!cannot_help(pattern, node->branches[i], given, seen)) return false;
        return true;
    default: return false;
    }
}

int split_pattern_fail(const struct split_pattern *pattern, struct error *error) {
    return fail(error,
                "the tokenizer's pattern \"%.60s\" takes too long on this text: its steps are out "
                "of proportion to the text's size\nuse a tokenizer with another pattern",
                pattern->text);
}

/* Precomputes the tables that make matching fast, and refuses patterns that match the empty
 * text. */
static int finish_pattern(struct split_pattern *pattern, struct error *error) {
    const size_t count = arrlenu(pattern->nodes);
    struct beginning *all = calloc(count, sizeof *all);
    bool *seen = malloc(count * sizeof *seen);
    int status = all && seen ? 0 : fail_memory(error, "a tokenizer");
    if (!status && find_beginning(pattern, pattern->start, all)->can_be_empty)
        status = fail(error, "the pattern that cuts text, \"%.60s\": it matches the empty text",
                      pattern->text);
    for (size_t i = 0; !status && i < count; i++) {
        struct split_node *node = &pattern->nodes[i];
        memset(seen, false, count * sizeof *seen);
        if (node->kind == SPLIT_TAKE && cannot_help(pattern, node->next, &node->set, seen))
            node->possessive = true;
        if (node->kind == SPLIT_CHOOSE) fill_by_byte(pattern, node, all);
    }
    free(all);
    free(seen);
    return status;
}

struct split_pattern *split_pattern_open(const char *text, enum split_dialect dialect,
                                         const uint8_t *atoms, struct error *error) {
    struct split_pattern *pattern = calloc(1, sizeof *pattern);
    if (pattern) *pattern = (struct split_pattern){.text = strdup(text), .atoms = atoms};
    if (!pattern || !pattern->text) fail_memory(error, "a tokenizer");
    else if (!split_parse(pattern, text, dialect, error) && !finish_pattern(pattern, error))
        return pattern;
    split_pattern_close(pattern);
    return NULL;
}

/* A search for matches that cross from other characters into white space. */
struct crossing {
    const struct split_pattern *pattern;
    char space;
    bool *seen; /* [nodes][2] */
};

/* True if no match from a node on goes from other characters into this white space. after_other:
 * the last character taken may have been no white space. */
static bool ends_before(const struct crossing *crossing, int index, bool after_other) {
    const struct split_node *node = &crossing->pattern->nodes[index];
    if (crossing->seen[2 * index + after_other]) return true;
    crossing->seen[2 * index + after_other] = true;
    switch (node->kind) {
    case SPLIT_ACCEPT: return true;
    case SPLIT_JOIN: return ends_before(crossing, node->next, after_other);
    case SPLIT_TAKE: {
        const bool has_others = split_set_has(&node->set, false);
        if (node->set.ascii[(int)crossing->space] &&
            (after_other || (has_others && node->maximum > 1)))
            return false;
        return (!has_others || ends_before(crossing, node->next, true)) &&
               (!split_set_has(&node->set, true) || ends_before(crossing, node->next, false)) &&
               (node->minimum > 0 || ends_before(crossing, node->next, after_other));
    }
    case SPLIT_CHOOSE:
        for (int i = 0; i < node->branch_count; i++)
            if (!ends_before(crossing, node->branches[i], after_other)) return false;
        return true;
    case SPLIT_AHEAD:
        return !after_other && ends_before(crossing, node->branches[0], false) &&
               ends_before(crossing, node->next, false);
    default: return !after_other && ends_before(crossing, node->next, false);
    }
}

bool split_pattern_ends_before(const struct split_pattern *pattern, char space) {
    struct crossing crossing = {.pattern = pattern, .space = space};
    crossing.seen = calloc(2 * arrlenu(pattern->nodes), sizeof *crossing.seen);
    const bool ends = crossing.seen && ends_before(&crossing, pattern->start, false);
    free(crossing.seen);
    return ends;
}
