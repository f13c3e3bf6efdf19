/* Patterns of well-known models that split text, with the expected pieces. */
#pragma once

#include <criterion/criterion.h>
#include <string.h>

#include "data/tokenize/pretokenizer.h"

#define GPT2_PATTERN \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

#define LLAMA3_PATTERN                                                         \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| " \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

#define QWEN_PATTERN                                                      \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| " \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

#define O200K_PATTERN                                                                           \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+" \
    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| "                 \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* bars: the text with a bar after each piece. */
static inline void expect_cut_by(const struct pretokenizer_rule *rules, int count,
                                 const char *bars) {
    char text[512], found[1024] = "";
    size_t size = 0, length = 0, from, to;
    struct pretokenizer pretokenizer;
    for (const char *c = bars; *c; c++)
        if (*c != '|') text[size++] = *c;
    pretokenizer_begin(&pretokenizer, rules, count, text, size);
    while (pretokenizer_next(&pretokenizer, &from, &to)) {
        memcpy(found + length, text + from, to - from);
        length += to - from;
        found[length++] = '|';
    }
    cr_expect_str_eq(found, bars);
}
