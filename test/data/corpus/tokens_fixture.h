/* Shared by the tests of token shards: files in a folder of their own. */
#pragma once

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/files.h"
#include "data/corpus/tokens.h"
#include "test/data/corpus/shard_put.h"
#include "test/data/tokenize/token_at.h"
#include "test/scratch.h"

/* Writes a shard with any header, without the code under test. */
static inline void write_raw(const char *name, uint32_t magic, uint32_t version, uint32_t count,
                             const void *tokens, size_t bytes) {
    uint32_t header[256] = {magic, version, count};
    FILE *file = fopen(in_folder("%s", name), "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(header, sizeof header, 1, file), 1);
    if (bytes) cr_assert_eq(fwrite(tokens, bytes, 1, file), 1);
    cr_assert_eq(fclose(file), 0);
}

static inline void write_good(const char *name, uint16_t first, uint32_t count) {
    uint16_t *tokens = malloc(count * sizeof *tokens);
    for (uint32_t i = 0; i < count; i++) tokens[i] = (uint16_t)(first + i);
    write_raw(name, 20240520, 1, count, tokens, count * sizeof *tokens);
    free(tokens);
}

static inline int open_in_folder(struct tokens *tokens, const char *pattern) {
    error.text[0] = '\0';
    return tokens_open(tokens, in_folder("%s", pattern), &error);
}

static inline struct tokens opened(const char *pattern) {
    struct tokens tokens;
    cr_assert_eq(open_in_folder(&tokens, pattern), 0, "%s", error.text);
    return tokens;
}

/* Expects a failure whose message names the file and contains both texts. */
static inline void expect_refusal(const char *name, const char *what, const char *remedy) {
    struct tokens tokens;
    cr_expect_eq(open_in_folder(&tokens, name), -1, "%s", name);
    cr_expect_not_null(strstr(error.text, name), "%s", error.text);
    cr_expect_not_null(strstr(error.text, what), "%s", error.text);
    cr_expect_not_null(strstr(error.text, remedy), "%s", error.text);
    tokens_close(&tokens);
}

/* A file of write_raw, and part of the message that refuses it. */
struct damaged {
    const char *name;
    uint32_t magic, version, count;
    size_t bytes;
    const char *what, *remedy;
};

static inline void expect_damage(const struct damaged *files, size_t count, const void *tokens) {
    for (const struct damaged *file = files; file < files + count; file++) {
        write_raw(file->name, file->magic, file->version, file->count, tokens, file->bytes);
        expect_refusal(file->name, file->what, file->remedy);
    }
}

/* Writes a file of exactly these bytes. */
static inline void write_plain(const char *name, const void *bytes, size_t size) {
    cr_assert_eq(file_write_whole(in_folder("%s", name), bytes, size, NULL, &error), 0, "%s",
                 error.text);
}

static inline int exists(const char *name) {
    return file_exists(in_folder("%s", name));
}

static inline void open_writer(struct shard_writer *writer, const char *name, int vocab_size,
                               uint64_t shard_tokens) {
    cr_assert_eq(shard_writer_open(writer, in_folder("%s", name), vocab_size, shard_tokens, &error),
                 0, "%s", error.text);
}

static inline void publish(struct shard_writer *writer) {
    cr_assert_eq(shard_writer_finish(writer, &error), 0, "%s", error.text);
    cr_assert_eq(shard_writer_publish(writer, &error), 0, "%s", error.text);
}
