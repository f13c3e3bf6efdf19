/* Members of rows and messages that are not read as texts: marks of messages that are not trained,
 * members that only a model's own template renders, and all others, which are counted. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "data/corpus/jsonl.h"

struct row_members {
    struct jsonl_others others; /* for jsonl_row */
    bool is_text;               /* rows hold no prompts or messages: nothing is refused */
    /* stb_ds map: number of members left out, by name. */
    struct member_count {
        char *key;
        uint64_t value;
    } * left_out;
};

/* members must not move until they are closed. */
void row_members_open(struct row_members *members);
void row_members_close(struct row_members *members);

/* Notes members that were left out, if there are any. */
void row_members_note(FILE *out, const struct row_members *members);
