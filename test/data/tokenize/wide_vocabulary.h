/* A tokenizer of GPT-2's kind with more than 65536 tokens. Most of them appear in no text; the
 * tokens after the first 65536 are "th", "the" and <|endoftext|>. */
#pragma once

#include <criterion/criterion.h>
#include <stdio.h>

#include "test/small_bpe.h"

enum { WIDE_TH = 70000, WIDE_THE, WIDE_END_OF_TEXT, WIDE_VOCABULARY };

/* Writes vocab.json and merges.txt into a directory, which must exist. */
static inline void write_wide_vocabulary(const char *directory) {
    char path[4096];
    snprintf(path, sizeof path, "%s/vocab.json", directory);
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file, "%s", path);
    fputs("{", file);
    print_bytes(file);
    for (int token = 256; token < WIDE_TH; token++) fprintf(file, ", \"#%d\": %d", token, token);
    fprintf(file, ", \"th\": %d, \"the\": %d, \"<|endoftext|>\": %d}\n", WIDE_TH, WIDE_THE,
            WIDE_END_OF_TEXT);
    cr_assert_eq(fclose(file), 0);
    snprintf(path, sizeof path, "%s/merges.txt", directory);
    file = fopen(path, "w");
    cr_assert_not_null(file, "%s", path);
    fputs("t h\nth e\n", file);
    cr_assert_eq(fclose(file), 0);
}
