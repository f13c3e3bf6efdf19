#include "data/tokenize/subwords_builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/tokenize/unicode.h"

/* An added token is compared with the text at each byte, so encoding time grows with its size. */
enum { NAME_SHOWN = 40, ADDED_BYTES_MAX = 1024 };

/* A token, whose name is in the pool. */
struct subwords_entry {
    size_t start;
    uint32_t size;
    enum { ENTRY_NONE, ENTRY_PIECE, ENTRY_NOT_LETTERS, ENTRY_ADDED } state;
    int32_t added; /* 1 + index into subwords->added; 0: not added */
};

struct subwords_number {
    char *key;
    int32_t value;
};

int subwords_builder_open(struct subwords_builder *builder, struct subwords *subwords,
                          const struct json_reader *json) {
    *subwords = (struct subwords){0};
    *builder = (struct subwords_builder){.subwords = subwords, .reader = json, .added_max = -1};
    if (json_reader_parse(&builder->root, json)) return -1;
    byte_alphabet_fill(&builder->alphabet);
    subwords->atoms = unicode_atoms();
    return 0;
}

int subwords_builder_close(struct subwords_builder *builder, int status) {
    arrfree(builder->entries);
    arrfree(builder->pool);
    arrfree(builder->scratch);
    arrfree(builder->forms[0]);
    arrfree(builder->forms[1]);
    shfree(builder->numbers);
    cJSON_Delete(builder->root);
    if (status) subwords_free(builder->subwords);
    return status;
}

static int refuse(const struct subwords_builder *builder, const void *name, size_t size,
                  const char *what) {
    const char *text = name;
    if (size > NAME_SHOWN)
        for (size = NAME_SHOWN; size > 0 && (text[size] & 0xc0) == 0x80;) size--;
    return json_reader_fail(builder->reader, ": the token \"%.*s\" %s", (int)size, text, what);
}

static int put(struct subwords_builder *builder, const void *name, size_t size, int32_t token,
               int state) {
    if (size == 0) return refuse(builder, name, size, "is empty");
    if (token < 0 || token >= VOCABULARY_MAX)
        return refuse(builder, name, size, "has no valid number");
    while (arrlen(builder->entries) <= token)
        arrput(builder->entries, ((struct subwords_entry){.state = ENTRY_NONE}));
    struct subwords_entry *entry = &builder->entries[token];
    if (entry->state != ENTRY_NONE)
        return refuse(builder, name, size, "has the number of another token");
    *entry = (struct subwords_entry){
        .start = arrlenu(builder->pool), .size = (uint32_t)size, .state = (uint8_t)state};
    memcpy(arraddnptr(builder->pool, size), name, size);
    return 0;
}

int subwords_builder_add_token(struct subwords_builder *builder, const uint8_t *name, size_t size,
                               int32_t token) {
    return put(builder, name, size, token, ENTRY_PIECE);
}

/* Decodes letters into scratch. Returns the number of bytes, or a negative number if a character is
 * not in the alphabet. */
static ptrdiff_t read_letters(struct subwords_builder *builder, const char *letters) {
    arrsetlen(builder->scratch, strlen(letters) + 1);
    return byte_alphabet_read(&builder->alphabet, builder->scratch, letters);
}

int subwords_builder_add_letters(struct subwords_builder *builder, const char *name,
                                 int32_t token) {
    const ptrdiff_t size = read_letters(builder, name);
    if (size < 0) return put(builder, name, strlen(name), token, ENTRY_NOT_LETTERS);
    return put(builder, builder->scratch, (size_t)size, token, ENTRY_PIECE);
}

void subwords_builder_number(struct subwords_builder *builder, const char *name, int32_t token) {
    shput(builder->numbers, name, token);
    builder->vocabulary_count++;
}

int32_t subwords_builder_find_number(struct subwords_builder *builder, const char *name) {
    const ptrdiff_t found = shgeti(builder->numbers, name);
    return found >= 0 ? builder->numbers[found].value : -1;
}

int32_t subwords_builder_added_number(struct subwords_builder *builder, const char *text) {
    const int32_t found = subwords_builder_find_number(builder, text);
    if (found >= 0) return found;
    return builder->added_max >= builder->vocabulary_count ? builder->added_max + 1
                                                           : builder->vocabulary_count;
}

/* Returns true if an entry has the name that an added token has in the file: its text, or letters
 * that stand for the entry's bytes. */
static bool has_name(struct subwords_builder *builder, int32_t token, const char *text) {
    const struct subwords_entry *entry = &builder->entries[token];
    const uint8_t *name = builder->pool + entry->start;
    const size_t size = strlen(text);
    if (entry->size == size && memcmp(name, text, size) == 0) return true;
    if (!builder->subwords->byte_level || entry->state != ENTRY_PIECE) return false;
    const ptrdiff_t bytes = read_letters(builder, text);
    return bytes == (ptrdiff_t)entry->size && memcmp(name, builder->scratch, entry->size) == 0;
}

int subwords_builder_add_added(struct subwords_builder *builder, struct added_token added,
                               const char *text) {
    struct subwords *subwords = builder->subwords;
    added.size = strlen(text);
    if (added.size > ADDED_BYTES_MAX)
        return refuse(builder, text, added.size, "is an added token of more than 1,024 bytes");
    const bool is_new = added.token >= arrlen(builder->entries) ||
                        builder->entries[added.token < 0 ? 0 : added.token].state == ENTRY_NONE;
    if (added.token < 0 || is_new) {
        if (put(builder, text, added.size, added.token, ENTRY_ADDED)) return -1;
    } else if (!has_name(builder, added.token, text)) {
        return refuse(builder, text, added.size, "is added with the number of another token");
    }
    struct subwords_entry *entry = &builder->entries[added.token];
    if (entry->added > 0) {
        added.text = subwords->added[entry->added - 1].text;
        subwords->added[entry->added - 1] = added;
        return 0;
    }
    added.text = strdup(text);
    if (!added.text) return fail_memory(builder->reader->error, "a tokenizer");
    arrput(subwords->added, added);
    entry->added = (int32_t)arrlen(subwords->added);
    if (added.token > builder->added_max) builder->added_max = added.token;
    if (shgeti(builder->numbers, text) < 0)
        shput(builder->numbers, subwords->added[entry->added - 1].text, added.token);
    return 0;
}

/* ---- the vocabulary */

/* Appends the text of a token made of characters: U+2581 is a space, <0xXX> a byte. */
static void decode_name(uint8_t **out, const uint8_t *name, size_t size, bool byte_fallback) {
    static const char mark[] = SUBWORDS_SPACE;
    const size_t length = sizeof mark - 1;
    unsigned byte;
    char text[8] = "";
    if (size == 6) memcpy(text, name, size);
    if (byte_fallback && size == 6 && sscanf(text, "<0x%2X>", &byte) == 1 && text[5] == '>') {
        arrput(*out, (uint8_t)byte);
        return;
    }
    for (size_t at = 0; at < size;) {
        const bool is_mark = size - at >= length && memcmp(name + at, mark, length) == 0;
        arrput(*out, is_mark ? ' ' : name[at]);
        at += is_mark ? length : 1;
    }
}

/* Writes the names in the order of tokens. */
static bool *write_names(struct subwords_builder *builder, bool byte_fallback) {
    struct subwords *subwords = builder->subwords;
    struct subwords_texts *names = &subwords->names, *decoded = &subwords->decoded;
    bool *is_name = NULL;
    subwords->vocab_size = (int)arrlen(builder->entries);
    arrput(names->starts, 0);
    if (!subwords->byte_level) arrput(decoded->starts, 0);
    for (int32_t token = 0; token < subwords->vocab_size; token++) {
        const struct subwords_entry *entry = &builder->entries[token];
        const uint8_t *name = builder->pool + entry->start;
        if (entry->size > 0) memcpy(arraddnptr(names->bytes, entry->size), name, entry->size);
        arrput(names->starts, (uint32_t)arrlenu(names->bytes));
        arrput(is_name, entry->state == ENTRY_PIECE);
        if (subwords->byte_level) continue;
        decode_name(&decoded->bytes, name, entry->size, byte_fallback);
        arrput(decoded->starts, (uint32_t)arrlenu(decoded->bytes));
    }
    return is_name;
}

/* Checks that looking up the name of each piece finds its own token. An added token may have the
 * bytes of a piece, which is written in letters; the added token is found first in a text. */
static int check_names(const struct subwords_builder *builder) {
    for (int32_t token = 0; token < builder->subwords->vocab_size; token++) {
        const struct subwords_entry *entry = &builder->entries[token];
        const uint8_t *name = builder->pool + entry->start;
        if (entry->state == ENTRY_NOT_LETTERS && entry->added == 0)
            return refuse(builder, name, entry->size,
                          "is not written in GPT-2's alphabet of bytes, and not an added token");
        if (entry->state != ENTRY_PIECE) continue;
        const int32_t found = subwords_find(builder->subwords, name, entry->size);
        if (found >= 0 && found != token)
            return refuse(builder, name, entry->size, "appears twice");
    }
    return 0;
}

/* Finds the tokens of bytes, and those of byte_fallback, which spell a character that has none. A
 * byte-level file writes each byte as a character, whose own bytes are spelled. */
static void find_bytes(struct subwords_builder *builder, bool byte_fallback) {
    struct subwords *subwords = builder->subwords;
    char name[8], letter[BYTE_ALPHABET_TEXT_MAX];
    int32_t fallback[256];
    for (int byte = 0; byte < 256; byte++) {
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
        fallback[byte] = byte_fallback ? subwords_find(subwords, (const uint8_t *)name, 6) : -1;
    }
    for (int byte = 0; byte < 256; byte++) {
        const uint8_t character = (uint8_t)byte;
        int32_t *spelled = subwords->spelled[byte];
        subwords->bytes.tokens[byte] = spelled[0] = fallback[byte];
        spelled[1] = -1;
        if (!subwords->byte_level) continue;
        subwords->bytes.tokens[byte] = subwords_find(subwords, &character, 1);
        byte_alphabet_write(&builder->alphabet, letter, character);
        spelled[0] = fallback[(uint8_t)letter[0]];
        if (letter[1]) spelled[1] = fallback[(uint8_t)letter[1]];
        if (letter[1] && spelled[1] < 0) spelled[0] = -1;
        if (subwords->bytes.tokens[byte] >= 0) continue;
        subwords->lacks_bytes = true;
        subwords->lacking[byte] = spelled[0] < 0;
    }
}

int subwords_builder_finish(struct subwords_builder *builder, bool byte_fallback) {
    bool *is_name = write_names(builder, byte_fallback);
    subwords_index(builder->subwords, is_name);
    arrfree(is_name);
    find_bytes(builder, byte_fallback);
    return check_names(builder);
}

/* ---- merges, trees */

static int32_t find_part(struct subwords_builder *builder, const char *name, size_t *size) {
    *size = strlen(name);
    if (!builder->subwords->byte_level)
        return subwords_find(builder->subwords, (const uint8_t *)name, *size);
    const ptrdiff_t bytes = read_letters(builder, name);
    if (bytes < 0) return -1;
    *size = (size_t)bytes;
    return subwords_find(builder->subwords, builder->scratch, *size);
}

int subwords_builder_add_merge(struct subwords_builder *builder, const char *left,
                               const char *right, uint32_t rank) {
    struct merge merge = {.rank = rank};
    size_t left_size, right_size;
    merge.left = find_part(builder, left, &left_size);
    if (merge.left < 0)
        return refuse(builder, left, strlen(left), "is merged, but not in the vocabulary");
    merge.right = find_part(builder, right, &right_size);
    if (merge.right < 0)
        return refuse(builder, right, strlen(right), "is merged, but not in the vocabulary");
    const struct subwords_texts *names = &builder->subwords->names;
    arrsetlen(builder->scratch, left_size + right_size);
    memcpy(builder->scratch, names->bytes + names->starts[merge.left], left_size);
    memcpy(builder->scratch + left_size, names->bytes + names->starts[merge.right], right_size);
    merge.token = subwords_find(builder->subwords, builder->scratch, left_size + right_size);
    if (merge.token < 0)
        return refuse(builder, left, strlen(left), "merges to a text that is not a token");
    if (merges_add(&builder->subwords->merges, merge)) return 0;
    return refuse(builder, left, strlen(left), "is merged with the same token twice");
}

int subwords_builder_build_tries(struct subwords_builder *builder) {
    struct subwords *subwords = builder->subwords;
    struct error error;
    for (int i = 0; i < (int)arrlen(subwords->added); i++) {
        const struct added_token *added = &subwords->added[i];
        const uint8_t *text = (const uint8_t *)added->text;
        size_t size = added->size;
        if (added->normalized && subwords_normalize(subwords, builder->forms, &text, &size, &error))
            return json_reader_fail(builder->reader, ": %s", error.text);
        if (size == 0) return refuse(builder, added->text, added->size, "has no normal form");
        added_tree_add(added->normalized ? &subwords->normalized : &subwords->raw, text, size, i);
    }
    return 0;
}
