/* Notes in tests: collected in memory, and as single lines. */
#pragma once

#include <stdio.h>
#include <string.h>

/* Undoes the breaks and indents of note() in place, so that a text is found in one piece. */
static inline char *unfold(char *text) {
    char *to = text;
    for (const char *from = text; *from;) {
        const size_t indent = *from == '\n' ? strspn(from + 1, " ") : 0;
        if (indent >= 4) *to++ = ' ', from += 5;
        else if (indent >= 2) *to++ = '\n', from += 3;
        else *to++ = *from++;
    }
    *to = '\0';
    return text;
}

enum { NOTES_MAX = 4096 };

/* A stream whose notes are in text once it is closed. */
struct notes {
    FILE *out;
    char text[NOTES_MAX];
};

static inline FILE *notes_open(struct notes *notes) {
    memset(notes->text, 0, sizeof notes->text);
    notes->out = fmemopen(notes->text, sizeof notes->text - 1, "w");
    return notes->out;
}

/* Returns the number of notes and warnings. */
static inline int notes_close(struct notes *notes) {
    int count = 0;
    fclose(notes->out);
    for (const char *at = unfold(notes->text); (at = strchr(at, '\n')); at++) count++;
    return count;
}
