/* A reader of GGUF files for tests, independent of the writer. Needs test/scratch.h before it. */
#pragma once

#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/files.h"

enum { READ_PAIRS_MAX = 64, READ_INFOS_MAX = 64 };

struct read_text {
    const char *bytes; /* [size] */
    uint64_t size;
};

struct read_pair {
    struct read_text key;
    uint32_t type;
    uint32_t item_type; /* of an array */
    uint64_t count;     /* items of an array */
    const uint8_t *at;  /* value, or first item */
};

struct read_info {
    struct read_text name;
    uint32_t dimensions, type;
    uint64_t shape[4];
    const uint8_t *data;
    uint64_t size; /* bytes of data */
};

struct read_gguf {
    char *bytes; /* owned */
    size_t size, at;
    uint64_t pair_count, info_count;
    struct read_pair pairs[READ_PAIRS_MAX];
    struct read_info infos[READ_INFOS_MAX];
};

static inline const uint8_t *read_bytes(struct read_gguf *file, size_t count) {
    cr_assert_leq(count, file->size - file->at, "the file ends early");
    file->at += count;
    return (const uint8_t *)file->bytes + file->at - count;
}

static inline uint64_t read_number(struct read_gguf *file, size_t size) {
    uint64_t value = 0;
    memcpy(&value, read_bytes(file, size), size);
    return value;
}

static inline struct read_text read_string(struct read_gguf *file) {
    uint64_t size = read_number(file, 8);
    return (struct read_text){(const char *)read_bytes(file, size), size};
}

/* Skips a value of a type that the exports use. */
static inline void skip_value(struct read_gguf *file, uint32_t type) {
    if (type == 8) read_string(file);
    else if (type == 7) cr_assert_leq(read_number(file, 1), 1u);
    else if (type == 4 || type == 5 || type == 6) read_number(file, 4);
    else cr_assert_fail("type %u", type);
}

static inline void read_pair(struct read_gguf *file, struct read_pair *pair) {
    pair->key = read_string(file);
    pair->type = (uint32_t)read_number(file, 4);
    if (pair->type == 9) {
        pair->item_type = (uint32_t)read_number(file, 4);
        pair->count = read_number(file, 8);
    }
    pair->at = (const uint8_t *)file->bytes + file->at;
    if (pair->type != 9) skip_value(file, pair->type);
    for (uint64_t i = 0; i < pair->count; i++) skip_value(file, pair->item_type);
}

static inline void read_info(struct read_gguf *file, struct read_info *info) {
    static const struct {
        uint32_t type, block, bytes;
    } types[] = {{0, 1, 4}, {1, 1, 2}, {30, 1, 2}, {8, 32, 34}, {2, 32, 18}};
    uint64_t values = 1;
    size_t i = 0;
    info->name = read_string(file);
    info->dimensions = (uint32_t)read_number(file, 4);
    cr_assert(info->dimensions == 1 || info->dimensions == 2);
    for (uint32_t d = 0; d < info->dimensions; d++) values *= info->shape[d] = read_number(file, 8);
    info->type = (uint32_t)read_number(file, 4);
    while (types[i].type != info->type) cr_assert_lt(++i, sizeof types / sizeof *types);
    cr_assert_eq(info->shape[0] % types[i].block, 0u);
    info->size = values / types[i].block * types[i].bytes;
    info->data = (const uint8_t *)file->bytes + read_number(file, 8); /* from the data section */
}

/* Skips zeros to a multiple of 32. */
static inline void skip_gap(struct read_gguf *file) {
    while (file->at % 32) cr_assert_eq(read_number(file, 1), 0u);
}

/* Reads a whole file: data follow each other in the order of the infos, and nothing comes after. */
static inline void read_gguf(struct read_gguf *file, const char *path) {
    *file = (struct read_gguf){0};
    SUCCEEDS(file_read_all(&file->bytes, &file->size, path, 1 << 24, &error));
    cr_assert_eq(memcmp(read_bytes(file, 4), "GGUF", 4), 0);
    cr_assert_eq(read_number(file, 4), 3u);
    file->info_count = read_number(file, 8);
    file->pair_count = read_number(file, 8);
    cr_assert(file->info_count <= READ_INFOS_MAX && file->pair_count <= READ_PAIRS_MAX);
    for (uint64_t i = 0; i < file->pair_count; i++) read_pair(file, &file->pairs[i]);
    for (uint64_t i = 0; i < file->info_count; i++) read_info(file, &file->infos[i]);
    skip_gap(file);
    const size_t start = file->at;
    for (uint64_t i = 0; i < file->info_count; i++) {
        file->infos[i].data += start;
        cr_assert_eq((const void *)file->infos[i].data, file->bytes + file->at);
        read_bytes(file, file->infos[i].size);
        skip_gap(file);
    }
    cr_assert_eq(file->at, file->size);
}

static inline bool text_is(struct read_text text, const char *wanted) {
    return text.size == strlen(wanted) && memcmp(text.bytes, wanted, text.size) == 0;
}

static inline const struct read_pair *find_pair(const struct read_gguf *file, const char *key) {
    const struct read_pair *found = NULL;
    for (uint64_t i = 0; i < file->pair_count; i++) {
        if (!text_is(file->pairs[i].key, key)) continue;
        cr_assert_null(found, "%s is there twice", key);
        found = &file->pairs[i];
    }
    return found;
}

static inline const struct read_info *find_info(const struct read_gguf *file, const char *name) {
    for (uint64_t i = 0; i < file->info_count; i++)
        if (text_is(file->infos[i].name, name)) return &file->infos[i];
    return NULL;
}

static inline struct read_text string_at(const uint8_t *at) {
    struct read_text text;
    memcpy(&text.size, at, 8);
    text.bytes = (const char *)at + 8;
    return text;
}

static inline void expect_string(const struct read_gguf *file, const char *key,
                                 const char *wanted) {
    const struct read_pair *pair = find_pair(file, key);
    cr_assert(pair && pair->type == 8, "%s", key);
    cr_expect(text_is(string_at(pair->at), wanted), "%s: %.*s, not %s", key,
              (int)string_at(pair->at).size, string_at(pair->at).bytes, wanted);
}

static inline uint32_t word_at(const uint8_t *at) {
    uint32_t word;
    memcpy(&word, at, 4);
    return word;
}

static inline void expect_uint32(const struct read_gguf *file, const char *key, int64_t wanted) {
    const struct read_pair *pair = find_pair(file, key);
    if (wanted < 0) {
        cr_expect_null(pair, "%s", key);
        return;
    }
    cr_assert(pair && pair->type == 4, "%s", key);
    cr_expect_eq((int64_t)word_at(pair->at), wanted, "%s: %u", key, word_at(pair->at));
}

static inline void expect_float32(const struct read_gguf *file, const char *key, float wanted) {
    const struct read_pair *pair = find_pair(file, key);
    float value;
    cr_assert(pair && pair->type == 6, "%s", key);
    memcpy(&value, pair->at, 4);
    cr_expect_eq(value, wanted, "%s: %g", key, (double)value);
}

static inline void expect_bool(const struct read_gguf *file, const char *key, bool wanted) {
    const struct read_pair *pair = find_pair(file, key);
    cr_assert(pair && pair->type == 7, "%s", key);
    cr_expect_eq(*pair->at, wanted, "%s", key);
}

/* Returns an item of an array of strings. */
static inline struct read_text string_item(const struct read_gguf *file, const char *key,
                                           uint64_t index) {
    const struct read_pair *pair = find_pair(file, key);
    cr_assert(pair && pair->type == 9 && pair->item_type == 8 && index < pair->count, "%s", key);
    const uint8_t *at = pair->at;
    for (; index > 0; index--) at += 8 + string_at(at).size;
    return string_at(at);
}

static inline void expect_item(const struct read_gguf *file, const char *key, uint64_t index,
                               const char *wanted) {
    struct read_text text = string_item(file, key, index);
    cr_expect(text_is(text, wanted), "%s, %d: \"%.*s\", not \"%s\"", key, (int)index,
              (int)text.size, text.bytes, wanted);
}

/* Returns an item of an array of a type of 32 bits. */
static inline uint32_t word_item(const struct read_gguf *file, const char *key, uint32_t type,
                                 uint64_t index) {
    const struct read_pair *pair = find_pair(file, key);
    cr_assert(pair && pair->type == 9 && pair->item_type == type && index < pair->count, "%s", key);
    return word_at(pair->at + 4 * index);
}
