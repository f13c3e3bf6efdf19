/* A small list of tiktoken ranks: a tokenizer that is not of GPT-2's kind. */
#pragma once

#include <criterion/criterion.h>
#include <stdio.h>

/* Returns the ranks of all bytes, whose rank is their value, followed by `more`. */
static inline char *bytes_and(const char *more) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    cr_assert_not_null(out);
    for (int byte = 0; byte < 256; byte++)
        fprintf(out, "%c%c== %d\n", digits[byte >> 2], digits[(byte & 3) << 4], byte);
    fputs(more, out);
    cr_assert_eq(fclose(out), 0);
    return text;
}

/* A tokenizer of 301 tokens. */
static const char usual_json[] = "{\"pattern\": \" ?\\\\p{L}+|\\\\s|[^\\\\s\\\\p{L}]+\", "
                                 "\"special_tokens\": {\"<|end|>\": 300}, \"begin\": \"<|end|>\"}";
static const char usual_more[] = "YWI= 256\r\nYWJj 257\nYmM= 258\nIGFi 260\n";
