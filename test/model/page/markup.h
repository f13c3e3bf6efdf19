/* Output captured in memory, and a check that it is well-formed: elements are closed in order,
 * attributes quoted, & and < escaped. */
#pragma once

#include <criterion/criterion.h>
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/utf8.h"

/* FILE *out = printed_begin(&text); ...; printed_end(out); free(text); */
static char *printed;
static size_t printed_size;

static inline FILE *printed_begin(void) {
    free(printed);
    FILE *out = open_memstream(&printed, &printed_size);
    cr_assert_not_null(out);
    return out;
}

static inline void printed_end(FILE *out) {
    cr_assert_eq(fclose(out), 0);
    cr_assert_eq(strlen(printed), printed_size, "a NUL in it");
}

static inline int occurrences(const char *text, const char *part) {
    int count = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) count++;
    return count;
}

/* Removes the style from the page: it is not markup, and must contain none. */
static inline void cut_style(void) {
    char *from = strstr(printed, "<style>"), *to = strstr(printed, "</style>");
    cr_assert(from && to && from < to);
    *to = '\0';
    cr_expect_null(strpbrk(from + 7, "<&"));
    cr_expect_eq(occurrences(from, "{"), occurrences(from, "}"));
    *to = '<';
    memmove(from + 7, to, strlen(to) + 1);
}

/* Returns the end of an entity at text, or NULL. */
static inline const char *entity_end(const char *text) {
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&quot;"};
    for (int i = 0; i < 4; i++)
        if (strncmp(text, entities[i], strlen(entities[i])) == 0) return text + strlen(entities[i]);
    return NULL;
}

/* Returns the end of the attributes at text, '>' or "/>"; NULL if they are malformed. */
static inline const char *attributes_end(const char *text) {
    while (isspace((unsigned char)*text)) {
        while (isspace((unsigned char)*text)) text++;
        const char *name = text;
        if (*text == '>' || *text == '/') break;
        while (isalnum((unsigned char)*text) || *text == '-' || *text == ':') text++;
        if (text == name || text[strspn(text, " ")] != '=') return NULL;
        text += strspn(text, " =");
        char quote = *text++;
        if (quote != '"' && quote != '\'') return NULL;
        for (; *text != quote; text++)
            if (!*text || *text == '<' || (*text == '&' && !entity_end(text))) return NULL;
        text++;
    }
    return *text == '>' || strncmp(text, "/>", 2) == 0 ? text : NULL;
}

static inline void expect_well_formed(const char *text) {
    struct {
        const char *name;
        int size;
    } open[64];
    int depth = 0;
    cr_expect(utf8_valid(text, strlen(text)));
    for (const char *at = text; *at; at++) {
        cr_assert(*at != '>' && (*at != '&' || entity_end(at)), "bare: %.60s", at);
        if (*at != '<' || strncmp(at, "<!DOCTYPE html>", 15) == 0) {
            if (*at == '<') at += 14;
            continue;
        }
        bool closes = at[1] == '/';
        const char *name = at + 1 + closes;
        int size = (int)strspn(name, "abcdefghijklmnopqrstuvwxyzCF123456");
        const char *end = closes ? name + size : attributes_end(name + size);
        cr_assert(size > 0 && end && (!closes || *end == '>'), "malformed: %.60s", at);
        if (closes) {
            cr_assert(depth > 0 && open[depth - 1].size == size &&
                          strncmp(open[depth - 1].name, name, (size_t)size) == 0,
                      "closes what is not open: %.60s", at);
            depth--;
        } else if (*end == '>' && strncmp(name, "meta", 4) != 0) {
            cr_assert_lt(depth, 64);
            open[depth].name = name;
            open[depth++].size = size;
        }
        at = *end == '/' ? end + 1 : end;
    }
    cr_assert_eq(depth, 0, "%.20s is not closed", depth ? open[depth - 1].name : "");
}
