/* Classes of characters, as in Hugging Face's tokenizers: general categories of Unicode 16, white
 * space, and word characters. scripts/unicode_tables.py makes the tables. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Each character belongs to exactly one atom; a class such as \p{L} is a set of atoms. */
enum unicode_atom {
    UNICODE_OTHER,
    UNICODE_LU,
    UNICODE_LL,
    UNICODE_LT,
    UNICODE_LM,
    UNICODE_LO,
    UNICODE_M,
    UNICODE_ND,
    UNICODE_N, /* numbers other than digits */
    UNICODE_P,
    UNICODE_S,
    UNICODE_SPACE, /* characters with the property White_Space */
    /* Word characters (\w) among numbers, punctuation, symbols and others. Letters, marks and
     * digits are always word characters. */
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

/* Returns a table of every character's atom, an stb_ds array [UNICODE_CODES]. */
uint8_t *unicode_atoms(void);
