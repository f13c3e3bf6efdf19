/* A token is the number of a vocabulary entry, an int32_t in memory. Only files of small
 * vocabularies store it in 16 bits (data/corpus/tokens.h). */
#pragma once

enum {
    VOCABULARY_MAX = 1 << 20,  /* model.vocab_size and sample.top_k have the same limit */
    VOCABULARY_16_BITS = 65536 /* the largest vocabulary whose tokens fit in 16 bits */
};
