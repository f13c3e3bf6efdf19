#include "data/text/pieces.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/base/utf8.h"

/* PCRE2's own \s knows U+180E too, or, without PCRE2_UCP, ASCII alone. */
#define SPACES \
    "\\t-\\r " \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

/* What Unicode 15 and 16 added to \p{L} and \p{N}. */
#define LATER_LETTERS                                                                      \
    "\\x{1c89}-\\x{1c8a}\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{105c0}-\\x{105f3}"       \
    "\\x{10d4a}-\\x{10d65}\\x{10d6f}-\\x{10d85}\\x{10ec2}-\\x{10ec4}\\x{1123f}-\\x{11240}" \
    "\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}\\x{11390}-\\x{113b5}\\x{113b7}\\x{113d1}"   \
    "\\x{113d3}\\x{11bc0}-\\x{11be0}\\x{11f02}\\x{11f04}-\\x{11f10}\\x{11f12}-\\x{11f33}"  \
    "\\x{1342f}\\x{13441}-\\x{13446}\\x{13460}-\\x{143fa}\\x{16100}-\\x{1611d}"            \
    "\\x{16d40}-\\x{16d6c}\\x{18cff}\\x{1b132}\\x{1b155}\\x{1df25}-\\x{1df2a}"             \
    "\\x{1e030}-\\x{1e06d}\\x{1e4d0}-\\x{1e4eb}\\x{1e5d0}-\\x{1e5ed}\\x{1e5f0}\\x{2b739}"  \
    "\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"
#define LATER_NUMBERS                                                                      \
    "\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11f50}-\\x{11f59}" \
    "\\x{16130}-\\x{16139}\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1d2c0}-\\x{1d2d3}" \
    "\\x{1e4f0}-\\x{1e4f9}\\x{1e5f1}-\\x{1e5fa}"

/* The order differs from GPT-2's where no text can match both of two alternatives; possessive
 * quantifiers where giving back cannot help. */
static const char pattern_text[] = " ?+(?:\\p{L}++|[" LATER_LETTERS "]++)++"
                                   "|'(?:[stmd]|re|ve|ll)"
                                   "| ?+(?:\\p{N}++|[" LATER_NUMBERS "]++)++"
                                   "| ?+[^" SPACES "\\p{L}\\p{N}" LATER_LETTERS LATER_NUMBERS "]++"
                                   "|[" SPACES "]+(?![^" SPACES "])"
                                   "|[" SPACES "]++";

int pieces_open(struct pieces *pieces, struct error *error) {
    *pieces = (struct pieces){0};
    int code;
    PCRE2_SIZE place;
    pieces->pattern =
        pcre2_compile((PCRE2_SPTR)pattern_text, PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_ANCHORED | PCRE2_NO_START_OPTIMIZE, &code, &place, NULL);
    if (!pieces->pattern) {
        char reason[200] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
        return fail(error, "PCRE2 cannot cut text for GPT-2: %s\ninstall a PCRE2 with Unicode",
                    reason);
    }
    pieces->limits = pcre2_match_context_create(NULL);
    pieces->match = pcre2_match_data_create(1, NULL);
    if (!pieces->limits || !pieces->match) {
        pieces_close(pieces);
        return fail(error, "out of memory while opening a tokenizer");
    }
    /* No text is too long. */
    pcre2_set_match_limit(pieces->limits, UINT32_MAX);
    pcre2_set_depth_limit(pieces->limits, UINT32_MAX);
    pcre2_set_heap_limit(pieces->limits, UINT32_MAX);
    pieces->is_compiled = pcre2_jit_compile(pieces->pattern, PCRE2_JIT_COMPLETE) == 0;
    return 0;
}

void pieces_close(struct pieces *pieces) {
    pcre2_match_data_free(pieces->match);
    pcre2_match_context_free(pieces->limits);
    pcre2_code_free(pieces->pattern);
    *pieces = (struct pieces){0};
}

void pieces_begin(struct pieces *pieces, const void *text, size_t size) {
    pieces->text = text;
    pieces->size = size;
    pieces->at = pieces->valid_end = 0;
}

/* The end of the piece that begins at `at`, among whole characters. */
static size_t match_piece(struct pieces *pieces) {
    const uint32_t options = PCRE2_NO_UTF_CHECK;
    int found = PCRE2_ERROR_JIT_BADOPTION;
    if (pieces->is_compiled)
        found = pcre2_jit_match(pieces->pattern, pieces->text, pieces->valid_end, pieces->at,
                                options, pieces->match, pieces->limits);
    if (found < 0)
        found = pcre2_match(pieces->pattern, pieces->text, pieces->valid_end, pieces->at,
                            options | PCRE2_NO_JIT, pieces->match, pieces->limits);
    if (found == PCRE2_ERROR_NOMEMORY) {
        fputs("out of memory while cutting text into pieces\n", stderr);
        abort();
    }
    /* Every character begins a piece. */
    assert(found > 0);
    return pcre2_get_ovector_pointer(pieces->match)[1];
}

bool pieces_next(struct pieces *pieces, size_t *begin, size_t *end) {
    if (pieces->at == pieces->size) return false;
    *begin = pieces->at;
    if (pieces->at == pieces->valid_end)
        pieces->valid_end = utf8_skip_characters(pieces->text, pieces->size, pieces->at);
    if (pieces->at < pieces->valid_end) {
        *end = match_piece(pieces);
    } else {
        *end = utf8_skip_others(pieces->text, pieces->size, pieces->at);
        pieces->valid_end = *end;
    }
    assert(*end > *begin);
    pieces->at = *end;
    return true;
}
