#include "data/tokenize/subwords.h"

#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

static void free_texts(struct subwords_texts *texts) {
    arrfree(texts->bytes);
    arrfree(texts->starts);
}

void subwords_free(struct subwords *subwords) {
    free_texts(&subwords->names);
    free_texts(&subwords->decoded);
    arrfree(subwords->slots);
    merges_free(&subwords->merges);
    for (int i = 0; i < subwords->normalizer_count; i++) {
        free(subwords->normalizers[i].from);
        free(subwords->normalizers[i].to);
    }
    nfc_close(&subwords->nfc);
    for (int i = 0; i < subwords->rule_count; i++) split_pattern_close(subwords->rules[i].pattern);
    arrfree(subwords->atoms);
    for (size_t i = 0; i < arrlenu(subwords->added); i++) free(subwords->added[i].text);
    arrfree(subwords->added);
    added_tree_free(&subwords->raw);
    added_tree_free(&subwords->normalized);
    *subwords = (struct subwords){0};
}

/* ---- names */

static const uint8_t *text_of(const struct subwords_texts *texts, int32_t token, size_t *size) {
    *size = texts->starts[token + 1] - texts->starts[token];
    return texts->bytes + texts->starts[token];
}

/* A slot is 0, or a bit that marks it as used, some bits of the name's hash, and the token. */
enum { TOKEN_BITS = 20, HASH_BITS = 11 };
#define SLOT_TAKEN  (UINT32_C(1) << (TOKEN_BITS + HASH_BITS))
#define TOKENS_MASK ((UINT32_C(1) << TOKEN_BITS) - 1)

_Static_assert(VOCABULARY_MAX <= 1 << TOKEN_BITS, "a token has room in a slot");

static uint32_t slot_value(uint64_t hash, int32_t token) {
    return SLOT_TAKEN | (uint32_t)(hash >> (64 - HASH_BITS)) << TOKEN_BITS | (uint32_t)token;
}

static size_t first_slot(const struct subwords *subwords, uint64_t hash) {
    return hash & (arrlenu(subwords->slots) - 1);
}

/* Returns the slot of the name, or the empty slot where it belongs. */
static size_t slot_of(const struct subwords *subwords, const uint8_t *name, size_t size,
                      uint64_t hash) {
    const size_t mask = arrlenu(subwords->slots) - 1;
    for (size_t at = first_slot(subwords, hash);; at = (at + 1) & mask) {
        const uint32_t slot = subwords->slots[at];
        if (slot == 0) return at;
        if ((slot ^ slot_value(hash, 0)) & ~TOKENS_MASK) continue;
        size_t length;
        const uint8_t *other = text_of(&subwords->names, (int32_t)(slot & TOKENS_MASK), &length);
        if (length == size && memcmp(name, other, size) == 0) return at;
    }
}

int32_t subwords_find(const struct subwords *subwords, const uint8_t *name, size_t size) {
    const struct piece piece = {.bytes = name, .size = size, .hash = piece_hash(name, size)};
    return subwords_find_piece(subwords, &piece);
}

int32_t subwords_find_piece(const struct subwords *subwords, const struct piece *piece) {
    const uint32_t slot =
        subwords->slots[slot_of(subwords, piece->bytes, piece->size, piece->hash)];
    return slot == 0 ? -1 : (int32_t)(slot & TOKENS_MASK);
}

void subwords_fetch(const struct subwords *subwords, const struct piece *piece) {
    __builtin_prefetch(&subwords->slots[first_slot(subwords, piece->hash)]);
}

/* True if U+2581 follows another character in a name. */
static bool has_inner_mark(const uint8_t *name, size_t size) {
    const size_t length = sizeof SUBWORDS_SPACE - 1;
    size_t at = 0;
    while (at + length <= size && memcmp(name + at, SUBWORDS_SPACE, length) == 0) at += length;
    return memmem(name + at, size - at, SUBWORDS_SPACE, length) != NULL;
}

void subwords_index(struct subwords *subwords, const bool *is_name) {
    size_t slots = 64, size;
    while (slots < 2 * (size_t)subwords->vocab_size) slots *= 2;
    arrsetlen(subwords->slots, slots);
    memset(subwords->slots, 0, slots * sizeof *subwords->slots);
    subwords->cuts_at_words = true;
    for (int32_t token = 0; token < subwords->vocab_size; token++) {
        const uint8_t *name = text_of(&subwords->names, token, &size);
        if (!is_name[token] || size == 0) continue;
        const uint64_t hash = piece_hash(name, size);
        subwords->slots[slot_of(subwords, name, size, hash)] = slot_value(hash, token);
        byte_tokens_join(&subwords->bytes, name, size);
        if (has_inner_mark(name, size)) subwords->cuts_at_words = false;
    }
    if (subwords_find(subwords, (const uint8_t *)SUBWORDS_SPACE, sizeof SUBWORDS_SPACE - 1) < 0)
        subwords->cuts_at_words = false;
}

const uint8_t *subwords_bytes(const struct subwords *subwords, int32_t token, size_t *size) {
    *size = 0;
    if (token < 0 || token >= subwords->vocab_size) return subwords->names.bytes;
    return text_of(subwords->decoded.starts ? &subwords->decoded : &subwords->names, token, size);
}

/* True if an added token can be left out: pieces do not become it, and nothing puts it around a
 * text. */
static bool is_optional(const struct subwords *subwords, const struct added_token *added) {
    bool around = false;
    for (int i = 0; i < subwords->begin_count; i++) around |= subwords->begins[i] == added->token;
    for (int i = 0; i < subwords->end_count; i++) around |= subwords->ends[i] == added->token;
    return !around && !added->normalized &&
           subwords_find(subwords, (const uint8_t *)added->text, added->size) != added->token;
}

int subwords_leave_out(struct subwords *subwords, int64_t vocab_size) {
    const size_t count = arrlenu(subwords->added);
    size_t kept = count;
    while (kept > 0 && subwords->added[kept - 1].token >= vocab_size &&
           is_optional(subwords, &subwords->added[kept - 1]))
        kept--;
    if (kept == count || subwords->vocab_size - vocab_size != (int64_t)(count - kept)) return 0;
    for (size_t i = kept; i < count; i++) {
        const struct added_token *added = &subwords->added[i];
        added_tree_add(&subwords->raw, (const uint8_t *)added->text, added->size, -1);
        free(added->text);
    }
    arrsetlen(subwords->added, kept);
    subwords->vocab_size = (int)vocab_size;
    return (int)(count - kept);
}

/* True if a token contains a possible cut, or its match includes the white space after it. */
static bool contains_cut(const struct added_token *added) {
    for (size_t i = 1; i < added->size; i++)
        if (strchr(" \n\r\t", added->text[i]) && !strchr(" \n\r\t", added->text[i - 1]))
            return true;
    return added->rstrip;
}

bool subwords_cuts_before(const struct subwords *subwords, char space) {
    if (!subwords->byte_level || subwords->adds_space) return false;
    for (int i = 0; i < subwords->normalizer_count; i++)
        if (subwords->normalizers[i].kind != SUBWORDS_NFC) return false;
    for (size_t i = 0; i < arrlenu(subwords->added); i++)
        if (contains_cut(&subwords->added[i])) return false;
    if (subwords->is_gpt2 && subwords->merges.count == 0) return true;
    return pretokenizer_cuts_before(subwords->rules, subwords->rule_count, subwords->atoms, space);
}
