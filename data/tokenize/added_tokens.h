/* Tokens that are found in a text before it is cut into pieces: of several that begin at one place
 * the longest. Their rules are those of Hugging Face's tokenizers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct added_token {
    char *text; /* [size], by malloc */
    size_t size;
    int32_t token;
    bool special;        /* not looked for where text is only text */
    bool single_word;    /* only where no character of words stands beside it */
    bool lstrip, rstrip; /* it takes the white space before it, behind it */
    bool normalized;     /* looked for in the normal form of the text */
};

/* A tree of bytes. Zeros to begin with; read-only once filled. */
struct added_tree {
    struct added_node *nodes; /* stb_ds */
    int32_t roots[256];       /* 0: no token begins with this byte */
    int count;
};

/* Adds a text that is found as `index`; one that is there already is found as the new index. */
void added_tree_add(struct added_tree *tree, const uint8_t *text, size_t size, int index);
void added_tree_free(struct added_tree *tree);

/* Looks for the first from text[*begin] on, sets where it begins and ends and returns its index; or
 * returns -1. */
int added_tree_find(const struct added_tree *tree, const uint8_t *text, size_t size, size_t *begin,
                    size_t *end);

/* The part of a text that a token found at begin .. end takes, between `floor`, where the one
 * before ended, and the text's end; false where it is none, because it stands within a word.
 * atoms: the table of data/tokenize/unicode.h. */
bool added_token_extend(const struct added_token *added, const uint8_t *atoms, const uint8_t *text,
                        size_t size, size_t floor, size_t *begin, size_t *end);
