/* Added tokens: tokens that are matched in a text before it is cut into pieces. At each position
 * the longest match wins. The rules are those of Hugging Face's tokenizers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct added_token {
    char *text; /* [size], by malloc */
    size_t size;
    int32_t token;
    bool special;        /* matched only when special tokens are allowed in the text */
    bool single_word;    /* matches only if no word character stands next to it */
    bool lstrip, rstrip; /* the match includes the white space before it, after it */
    bool normalized;     /* matched in the normalized text */
};

/* A byte trie. Zero-initialized when empty; read-only once filled. */
struct added_tree {
    struct added_node *nodes; /* stb_ds */
    int32_t roots[256];       /* node of a first byte; 0: no token begins with it */
};

/* Adds a text under `index`. Adding the same text again replaces its index; with -1 it is no longer
 * found. */
void added_tree_add(struct added_tree *tree, const uint8_t *text, size_t size, int index);
void added_tree_free(struct added_tree *tree);

/* Finds the first match at or after text[*begin], sets *begin and *end to its bounds and returns
 * its index, or returns -1. */
int added_tree_find(const struct added_tree *tree, const uint8_t *text, size_t size, size_t *begin,
                    size_t *end);

/* Extends a match begin .. end by the white space it includes, at most from previous_end, the
 * end of the previous match, to the end of the text. Returns false if single_word rules the match
 * out. atoms: the table of data/tokenize/unicode.h. */
bool added_token_extend(const struct added_token *added, const uint8_t *atoms, const uint8_t *text,
                        size_t size, size_t previous_end, size_t *begin, size_t *end);
