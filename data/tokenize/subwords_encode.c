/* The encoder of data/tokenize/subwords.h. */
#include "data/tokenize/subwords.h"

#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/utf8.h"

enum { MARK_BYTES = sizeof SUBWORDS_SPACE - 1 };

/* Limit of the size of a normal form. SentencePiece turns a space into 3 bytes and prepends 3; NFC
 * makes a text at most 3 times as long. */
#define LONGEST_FORM(size) (8 * (size) + 64)

struct subwords_encoder {
    const struct subwords *subwords;
    struct pretokenizer pretokenizer;
    struct merges_scratch scratch;
    struct piece_cache cache;
    struct piece piece; /* the piece to encode next */
    uint8_t *forms[2];  /* stb_ds: normal forms, used alternately */
    uint8_t *marked;    /* stb_ds: the section with spaces added or replaced by U+2581 */
    bool special;
    int status; /* -1 once encoding the text has failed, with a message */
    struct error *error;
};

struct subwords_encoder *subwords_encoder_open(const struct subwords *subwords) {
    struct subwords_encoder *encoder = calloc(1, sizeof *encoder);
    if (!encoder) return NULL;
    encoder->subwords = subwords;
    piece_cache_open(&encoder->cache);
    return encoder;
}

void subwords_encoder_close(struct subwords_encoder *encoder) {
    if (!encoder) return;
    merges_scratch_free(&encoder->scratch);
    piece_cache_close(&encoder->cache);
    arrfree(encoder->forms[0]);
    arrfree(encoder->forms[1]);
    arrfree(encoder->marked);
    free(encoder);
}

/* ---- a piece */

/* Returns the token of the character that a text begins with, or of its byte, or -1. */
static int32_t first_token(const struct subwords *subwords, const uint8_t *text, size_t size,
                           size_t *count) {
    *count = subwords->byte_level ? 0 : utf8_character(text, size);
    if (*count > 0) return subwords_find(subwords, text, *count);
    *count = 1;
    return subwords->byte_level ? subwords->bytes.tokens[*text] : -1;
}

/* Appends the tokens that spell a character. Returns false if it lacks one of them. */
static bool spell(const struct subwords *subwords, int32_t **tokens, const uint8_t *character,
                  size_t count) {
    for (size_t i = 0; i < count; i++)
        if (subwords->spelled[character[i]][0] < 0) return false;
    for (size_t i = 0; i < count; i++)
        for (int j = 0; j < 2 && subwords->spelled[character[i]][j] >= 0; j++)
            arrput(*tokens, subwords->spelled[character[i]][j]);
    return true;
}

static void fail_unknown(struct subwords_encoder *encoder, uint8_t byte) {
    if (encoder->status == 0)
        encoder->status =
            fail(encoder->error,
                 "the text has a character (first byte 0x%02x) without a token, and the "
                 "tokenizer's unk_token\nis no token either: remove the character, or use another "
                 "tokenizer",
                 (unsigned)byte);
}

/* Appends the tokens of characters or bytes, before merging. As in Hugging Face's tokenizers, the
 * unknown token comes before the next token of the vocabulary, but after those of byte_fallback. */
static void add_characters(struct subwords_encoder *encoder, int32_t **tokens, const uint8_t *piece,
                           size_t size) {
    const struct subwords *subwords = encoder->subwords;
    bool has_unknown = false; /* the unknown token is to be added */
    for (size_t at = 0, count; at < size; at += count) {
        const int32_t token = first_token(subwords, piece + at, size - at, &count);
        if (token < 0 && spell(subwords, tokens, piece + at, count)) continue;
        if (token < 0 && subwords->unknown == SUBWORDS_UNKNOWN_FAILS)
            fail_unknown(encoder, piece[at]);
        if (has_unknown && (token >= 0 || !subwords->fuse_unknown))
            arrput(*tokens, subwords->unknown);
        has_unknown = token < 0 && subwords->unknown >= 0;
        if (token >= 0) arrput(*tokens, token);
    }
    if (has_unknown) arrput(*tokens, subwords->unknown);
}

/* True if each byte of the piece has a token. */
static bool has_tokens(const struct subwords *subwords, const struct piece *piece) {
    for (size_t i = 0; subwords->lacks_bytes && i < piece->size; i++)
        if (subwords->bytes.tokens[piece->bytes[i]] < 0) return false;
    return true;
}

static void encode_uncached(struct subwords_encoder *encoder, int32_t **tokens,
                            const struct piece *piece) {
    const struct subwords *subwords = encoder->subwords;
    const size_t before = arrlenu(*tokens);
    const int32_t whole = subwords->ignore_merges ? subwords_find_piece(subwords, piece) : -1;
    if (whole >= 0) {
        arrput(*tokens, whole);
    } else if (subwords->byte_level && has_tokens(subwords, piece)) {
        byte_tokens_merge(&subwords->bytes, &subwords->merges, &encoder->scratch, tokens,
                          piece->bytes, piece->size);
    } else {
        add_characters(encoder, tokens, piece->bytes, piece->size);
        const size_t left = merges_apply(&subwords->merges, &encoder->scratch, *tokens + before,
                                         arrlenu(*tokens) - before);
        arrsetlen(*tokens, before + left);
    }
}

/* Encodes the previous piece and looks this one up. It is encoded by the next call, when its memory
 * has arrived in the cache. */
static void encode_piece(struct subwords_encoder *encoder, int32_t **tokens, const uint8_t *bytes,
                         size_t size) {
    const struct piece piece = encoder->piece;
    encoder->piece = piece_cache_lookup(&encoder->cache, bytes, size);
    if (encoder->subwords->ignore_merges) subwords_fetch(encoder->subwords, &encoder->piece);
    if (piece.size == 0 || piece_cache_take(&piece, tokens)) return;
    const size_t before = arrlenu(*tokens);
    encode_uncached(encoder, tokens, &piece);
    if (encoder->status == 0) piece_cache_put(&piece, *tokens + before, arrlenu(*tokens) - before);
}

static void encode_last_piece(struct subwords_encoder *encoder, int32_t **tokens) {
    encode_piece(encoder, tokens, NULL, 0);
}

/* ---- what lies between added tokens */

static void append(uint8_t **out, const void *bytes, size_t size) {
    if (size > 0) memcpy(arraddnptr(*out, size), bytes, size);
}

static bool begins_with(const uint8_t *text, size_t size, const char *word, size_t length) {
    return size >= length && memcmp(text, word, length) == 0;
}

/* Replaces all occurrences of `from`. Stops, with more than `most` bytes in out, if the result
 * would be longer than that. */
static void replace_all(uint8_t **out, const uint8_t *text, size_t size, const char *from,
                        const char *to, size_t most) {
    const size_t from_size = strlen(from), to_size = strlen(to);
    const uint8_t *end = text + size, *found;
    while (arrlenu(*out) <= most && (found = memmem(text, (size_t)(end - text), from, from_size))) {
        append(out, text, (size_t)(found - text));
        append(out, to, to_size);
        text = found + from_size;
    }
    append(out, text, (size_t)(end - text));
}

/* Cuts before each U+2581, or only before the first of several in a row. */
static void encode_words(struct subwords_encoder *encoder, int32_t **tokens, const uint8_t *text,
                         size_t size) {
    const bool each = encoder->subwords->cuts_at_marks;
    size_t begin = 0, after = SIZE_MAX; /* the end of the last mark */
    for (size_t at = 0; at + MARK_BYTES <= size;) {
        if (!begins_with(text + at, size - at, SUBWORDS_SPACE, MARK_BYTES)) {
            at++;
            continue;
        }
        if (at > begin && (each || after != at)) {
            encode_piece(encoder, tokens, text + begin, at - begin);
            begin = at;
        }
        after = at += MARK_BYTES;
    }
    if (size > begin) encode_piece(encoder, tokens, text + begin, size - begin);
}

static void encode_characters(struct subwords_encoder *encoder, int32_t **tokens,
                              const uint8_t *text, size_t size, bool is_first) {
    const struct subwords *subwords = encoder->subwords;
    if (subwords->marks_spaces) {
        const bool has_mark = text[0] == ' ' || begins_with(text, size, SUBWORDS_SPACE, MARK_BYTES);
        arrsetlen(encoder->marked, 0);
        if (!has_mark && (subwords->prepend == SUBWORDS_ALWAYS ||
                          (subwords->prepend == SUBWORDS_FIRST && is_first)))
            append(&encoder->marked, SUBWORDS_SPACE, MARK_BYTES);
        replace_all(&encoder->marked, text, size, " ", SUBWORDS_SPACE, SIZE_MAX);
        text = encoder->marked;
        size = arrlenu(encoder->marked);
    }
    if (subwords->cuts_at_marks || subwords->cuts_at_words)
        encode_words(encoder, tokens, text, size);
    else encode_piece(encoder, tokens, text, size);
    encode_last_piece(encoder, tokens);
}

static void encode_plain(struct subwords_encoder *encoder, int32_t **tokens, const uint8_t *text,
                         size_t size, bool is_first) {
    const struct subwords *subwords = encoder->subwords;
    size_t begin, end;
    if (!subwords->byte_level) {
        encode_characters(encoder, tokens, text, size, is_first);
        return;
    }
    if (subwords->adds_space && text[0] != ' ') {
        arrsetlen(encoder->marked, 0);
        append(&encoder->marked, " ", 1);
        append(&encoder->marked, text, size);
        text = encoder->marked;
        size = arrlenu(encoder->marked);
    }
    if (subwords->is_gpt2 &&
        subwords->rule_count == 0) { /* includes bytes that are not valid UTF-8 */
        encode_piece(encoder, tokens, text, size);
        encode_last_piece(encoder, tokens);
        return;
    }
    pretokenizer_begin(&encoder->pretokenizer, subwords->rules, subwords->rule_count, text, size);
    while (pretokenizer_next(&encoder->pretokenizer, &begin, &end))
        encode_piece(encoder, tokens, text + begin, end - begin);
    encode_last_piece(encoder, tokens);
    if (encoder->pretokenizer.failed)
        encoder->status = split_pattern_fail(encoder->pretokenizer.failed, encoder->error);
}

static int fail_to_normalize(const struct subwords_normalizer *part, size_t size,
                             struct error *error) {
    if (part->kind == SUBWORDS_NFC)
        return fail(error, "the tokenizer's normalizer makes too long a text of %zu bytes", size);
    return fail(error,
                "the tokenizer's normalizer, %s \"%.30s\", makes more than %zu bytes of a text of "
                "%zu\nuse another tokenizer",
                part->kind == SUBWORDS_PREPEND ? "Prepend" : "Replace by", part->to,
                LONGEST_FORM(size), size);
}

int subwords_normalize(const struct subwords *subwords, uint8_t *forms[2], const uint8_t **text,
                       size_t *size, struct error *error) {
    const size_t first = *size, most = LONGEST_FORM(first);
    for (int i = 0; *size > 0 && i < subwords->normalizer_count; i++) {
        const struct subwords_normalizer *part = &subwords->normalizers[i];
        uint8_t **out = &forms[i % 2];
        arrsetlen(*out, 0);
        switch (part->kind) {
        case SUBWORDS_NFC: nfc_apply(&subwords->nfc, out, *text, *size); break;
        case SUBWORDS_PREPEND:
            append(out, part->to, strlen(part->to));
            append(out, *text, *size);
            break;
        case SUBWORDS_REPLACE: replace_all(out, *text, *size, part->from, part->to, most); break;
        }
        *text = *out;
        *size = arrlenu(*out);
        if (*size > most) return fail_to_normalize(part, first, error);
    }
    return 0;
}

/* ---- added tokens */

typedef void encode_section(struct subwords_encoder *encoder, int32_t **tokens, const uint8_t *text,
                            size_t size, bool is_first);

/* Appends the added tokens that are found in the text and calls `section` for the text between
 * them. */
static void encode_around(struct subwords_encoder *encoder, int32_t **tokens,
                          const struct added_tree *tree, const uint8_t *text, size_t size,
                          bool is_first, encode_section *section) {
    const struct subwords *subwords = encoder->subwords;
    size_t done = 0, next = 0;
    while (encoder->status == 0) {
        size_t begin = next, end;
        const int index = added_tree_find(tree, text, size, &begin, &end);
        if (index < 0) break;
        const struct added_token *added = &subwords->added[index];
        next = end;
        if ((added->special && !encoder->special) ||
            !added_token_extend(added, subwords->atoms, text, size, done, &begin, &end))
            continue;
        if (done < begin)
            section(encoder, tokens, text + done, begin - done, is_first && done == 0);
        arrput(*tokens, added->token);
        done = end;
    }
    if (done < size && encoder->status == 0)
        section(encoder, tokens, text + done, size - done, is_first && done == 0);
}

/* Normalizes a section of the original text and encodes it. */
static void encode_raw(struct subwords_encoder *encoder, int32_t **tokens, const uint8_t *text,
                       size_t size, bool is_first) {
    const struct subwords *subwords = encoder->subwords;
    encoder->status = subwords_normalize(subwords, encoder->forms, &text, &size, encoder->error);
    if (size > 0 && encoder->status == 0)
        encode_around(encoder, tokens, &subwords->normalized, text, size, is_first, encode_plain);
}

int subwords_encode(struct subwords_encoder *encoder, int32_t **tokens, const void *text,
                    size_t size, bool special, struct error *error) {
    encoder->special = special;
    encoder->status = 0;
    encoder->error = error;
    if (size > 0)
        encode_around(encoder, tokens, &encoder->subwords->raw, text, size, true, encode_raw);
    return encoder->status;
}
