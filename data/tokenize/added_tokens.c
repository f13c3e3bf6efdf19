#include "data/tokenize/added_tokens.h"

#include <stb/stb_ds.h>

#include "data/util/utf8.h"
#include "data/tokenize/unicode.h"

/* Index 0 means no node. */
struct added_node {
    int32_t child, sibling;
    int32_t index; /* token that ends here, or -1 */
    uint8_t byte;
};

void added_tree_free(struct added_tree *tree) {
    arrfree(tree->nodes);
    *tree = (struct added_tree){0};
}

static int32_t find_node(const struct added_tree *tree, int32_t first, uint8_t byte) {
    while (first && tree->nodes[first].byte != byte) first = tree->nodes[first].sibling;
    return first;
}

void added_tree_add(struct added_tree *tree, const uint8_t *text, size_t size, int index) {
    const struct added_node none = {.index = -1};
    int32_t at = 0;
    if (!tree->nodes) arrput(tree->nodes, none);
    for (size_t i = 0; i < size; i++) {
        const int32_t first = i == 0 ? tree->roots[text[0]] : tree->nodes[at].child;
        int32_t next = find_node(tree, first, text[i]);
        if (!next) {
            const struct added_node node = {.sibling = first, .index = -1, .byte = text[i]};
            next = (int32_t)arrlen(tree->nodes);
            arrput(tree->nodes, node);
            *(i == 0 ? &tree->roots[text[0]] : &tree->nodes[at].child) = next;
        }
        at = next;
    }
    tree->nodes[at].index = index;
}

int added_tree_find(const struct added_tree *tree, const uint8_t *text, size_t size, size_t *begin,
                    size_t *end) {
    if (!tree->nodes) return -1;
    for (size_t at = *begin; at < size; at++) {
        int found = -1;
        int32_t node = tree->roots[text[at]];
        for (size_t next = at + 1; node; next++) {
            if (tree->nodes[node].index >= 0) {
                found = tree->nodes[node].index;
                *begin = at;
                *end = next;
            }
            if (next == size) break;
            node = find_node(tree, tree->nodes[node].child, text[next]);
        }
        if (found >= 0) return found;
    }
    return -1;
}

/* The two functions return the atom of the character that begins at `at`, or of the one that ends
 * there, and its size in bytes. Without such a character they return UNICODE_OTHER and 0. */
static enum unicode_atom atom_after(const uint8_t *atoms, const uint8_t *text, size_t size,
                                    size_t at, size_t *bytes) {
    *bytes = at < size ? utf8_character(text + at, size - at) : 0;
    return *bytes ? atoms[utf8_code(text + at, *bytes)] : UNICODE_OTHER;
}

static enum unicode_atom atom_before(const uint8_t *atoms, const uint8_t *text, size_t at,
                                     size_t *bytes) {
    for (*bytes = 1; *bytes <= 4 && *bytes <= at; ++*bytes) {
        if ((text[at - *bytes] & 0xc0) == 0x80) continue;
        if (utf8_character(text + at - *bytes, *bytes) != *bytes) break;
        return atoms[utf8_code(text + at - *bytes, *bytes)];
    }
    *bytes = 0;
    return UNICODE_OTHER;
}

static bool is_word(enum unicode_atom atom) {
    return UNICODE_SET_WORD >> atom & 1;
}

bool added_token_extend(const struct added_token *added, const uint8_t *atoms, const uint8_t *text,
                        size_t size, size_t previous_end, size_t *begin, size_t *end) {
    size_t bytes;
    if (added->single_word && (is_word(atom_before(atoms, text, *begin, &bytes)) ||
                               is_word(atom_after(atoms, text, size, *end, &bytes))))
        return false;
    if (added->lstrip) {
        while (*begin > previous_end && atom_before(atoms, text, *begin, &bytes) == UNICODE_SPACE)
            *begin -= bytes;
        if (*begin < previous_end) *begin = previous_end;
    }
    if (added->rstrip) {
        /* The previous token may already have taken the spaces after it. */
        if (*end < previous_end) *end = previous_end;
        while (atom_after(atoms, text, size, *end, &bytes) == UNICODE_SPACE) *end += bytes;
    }
    return true;
}
