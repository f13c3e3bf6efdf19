/* What kind each character is, as Hugging Face's tokenizers see it: general categories of
 * Unicode 16, white space, and what is a character of words. The tables are made by
 * scripts/unicode_tables.py. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Each character is one of these; a class such as \p{L} is a set of them. */
enum unicode_atom {
    UNICODE_OTHER,
    UNICODE_LU,
    UNICODE_LL,
    UNICODE_LT,
    UNICODE_LM,
    UNICODE_LO,
    UNICODE_M,
    UNICODE_ND,
    UNICODE_N, /* numbers but digits */
    UNICODE_P,
    UNICODE_S,
    UNICODE_SPACE, /* what has the property White_Space */
    /* Characters of words (\w) among numbers, punctuation, signs and others; letters, marks and
     * digits all are. */
    UNICODE_N_WORD,
    UNICODE_P_WORD,
    UNICODE_S_WORD,
    UNICODE_OTHER_WORD,
    UNICODE_ATOMS
};

enum { UNICODE_CODES = 0x110000 };

#define UNICODE_SET(atom) (1u << (atom))
#define UNICODE_ALL       ((1u << UNICODE_ATOMS) - 1)
#define UNICODE_SET_L                                                              \
    (UNICODE_SET(UNICODE_LU) | UNICODE_SET(UNICODE_LL) | UNICODE_SET(UNICODE_LT) | \
     UNICODE_SET(UNICODE_LM) | UNICODE_SET(UNICODE_LO))
#define UNICODE_SET_N \
    (UNICODE_SET(UNICODE_ND) | UNICODE_SET(UNICODE_N) | UNICODE_SET(UNICODE_N_WORD))
#define UNICODE_SET_P (UNICODE_SET(UNICODE_P) | UNICODE_SET(UNICODE_P_WORD))
#define UNICODE_SET_S (UNICODE_SET(UNICODE_S) | UNICODE_SET(UNICODE_S_WORD))
#define UNICODE_SET_WORD                                                                       \
    (UNICODE_SET_L | UNICODE_SET(UNICODE_M) | UNICODE_SET(UNICODE_ND) |                        \
     UNICODE_SET(UNICODE_N_WORD) | UNICODE_SET(UNICODE_P_WORD) | UNICODE_SET(UNICODE_S_WORD) | \
     UNICODE_SET(UNICODE_OTHER_WORD))

/* A table of every character's atom, [UNICODE_CODES], to be freed; NULL when memory is short. */
uint8_t *unicode_atoms(void);
