/* The pieces that GPT-2 cuts text into before it merges bytes: a word, a number or a run of signs,
 * each with the space before it; the English endings 's 't 're 've 'm 'll 'd; white space.
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * White space (\s) is what has the property White_Space, as in tiktoken and Hugging Face's
 * tokenizers: U+0009 to U+000D, U+0020, U+0085, U+00A0, U+1680, U+2000 to U+200A, U+2028, U+2029,
 * U+202F, U+205F, U+3000. Letters and numbers are those of Unicode 16, as there: PCRE2's own, of
 * its Unicode, and what 15 and 16 added (9272 letters and 120 numbers that PCRE2 10.42, of Unicode
 * 14, lacks). A PCRE2 of Unicode 14 to 16 thus cuts every character as they do; with an older or
 * newer one, letters that were assigned in between may be cut as signs, or the other way round.
 *
 * Bytes that are no characters of UTF-8 cut the text: a longest run of them is one piece, and what
 * lies between two runs is cut as if it stood alone. All pieces together are the text. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/base/error.h"

/* One thread's cutter. */
struct pieces {
    struct pcre2_real_code_8 *pattern;
    struct pcre2_real_match_context_8 *limits;
    struct pcre2_real_match_data_8 *match;
    bool is_compiled; /* to machine code */
    const uint8_t *text;
    size_t size;
    size_t at;        /* all before is cut */
    size_t valid_end; /* from `at` up to here there are only whole characters */
};

/* Fails when memory is short or the PCRE2 of this machine lacks Unicode. On failure there is
 * nothing to close, though closing is harmless. */
int pieces_open(struct pieces *pieces, struct error *error);
void pieces_close(struct pieces *pieces);

/* Begins with a text, which must stay until its last piece is taken. */
void pieces_begin(struct pieces *pieces, const void *text, size_t size);

/* The next piece: text[*begin] up to text[*end - 1]. Returns false at the end of the text. Takes
 * time in proportion to the text over all its pieces. Memory shortage ends the program. */
bool pieces_next(struct pieces *pieces, size_t *begin, size_t *end);
