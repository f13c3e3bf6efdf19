#include "data/corpus/tales.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/corpus/tales_grammar.h"

enum { RULES = sizeof TALES / sizeof TALES[0] };

int tales_generate(uint8_t **text, size_t *bytes, uint64_t seed, size_t at_least_bytes,
                   struct error *error) {
    struct grammar grammar = grammar_compile(TALES, RULES);
    struct grammar_text story = {0};
    for (uint64_t number = 0; (size_t)arrlen(story.bytes) < at_least_bytes; number++)
        grammar_expand(&grammar, seed, number, &story);
    grammar_free(&grammar);
    *bytes = (size_t)arrlen(story.bytes);
    *text = malloc(*bytes ? *bytes : 1);
    if (*text && *bytes) memcpy(*text, story.bytes, *bytes);
    arrfree(story.bytes);
    return *text ? 0 : fail_memory(error, "%zu bytes of tales", *bytes);
}

double tales_nats_per_byte(void) {
    struct grammar grammar = grammar_compile(TALES, RULES);
    struct grammar_measure mean = grammar_expect(&grammar);
    grammar_free(&grammar);
    return mean.bits * log(2.0) / mean.bytes;
}

int tales_tokens(struct tokens *tokens, int is_validation, struct error *error) {
    /* The seeds are constants: if the run's seed changed the corpus, runs could not be compared. */
    uint64_t seed = is_validation ? 0x7a1e5eed : 0x7a1e5;
    uint8_t *text;
    size_t bytes;
    if (tales_generate(&text, &bytes, seed, is_validation ? 200000 : 2000000, error)) return -1;
    int32_t *owned = malloc(bytes * sizeof *owned);
    if (!owned) {
        free(text);
        return fail_memory(error, "%zu tokens of tales", bytes);
    }
    for (size_t i = 0; i < bytes; i++) owned[i] = text[i];
    free(text);
    return tokens_from_memory(tokens, owned, bytes, is_validation ? "tales (validation)" : "tales",
                              error);
}
