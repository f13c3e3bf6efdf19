/* What a token is: the number of an entry of a vocabulary, an int32_t wherever tokens are handed
 * around. Only files of small vocabularies hold them in 16 bits (data/corpus/tokens.h). */
#pragma once

enum {
    VOCABULARY_MAX = 1 << 20,  /* so are model.vocab_size and sample.top_k, in config_keys.c */
    VOCABULARY_16_BITS = 65536 /* the largest whose tokens have room in 16 bits */
};
