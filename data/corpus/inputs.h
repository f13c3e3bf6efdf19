/* Which files text is read from: what a person names on the command line, spelled out.
 *
 * A name is a file, a folder, - for the standard input, or a pattern with * ? [] or a leading ~; a
 * name that exists is never taken for a pattern. Of a folder, and of folders in it, those files are
 * taken whose names end in one of inputs_endings (in capitals too) and do not begin with a dot, in
 * the order of their names. Links are followed, into each folder once. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "data/util/error.h"

extern const char *const inputs_endings[]; /* ends with NULL */

struct input {
    char *name; /* a path, or "-" */
    bool is_jsonl;
};

struct inputs {
    struct input *list;  /* stb_ds array */
    uint64_t bytes;      /* of all together, if known */
    bool bytes_known;    /* not with pipes */
    uint64_t passed_by;  /* files of folders that were not taken, hidden ones not counted */
    char *passed_by_one; /* the path of one of them, or NULL */
};

/* Spells out names[0 .. count). JSON Lines are files that end in .jsonl or .ndjson, and all of them
 * if all_jsonl. Fails when a name stands for nothing, when a file cannot be read, when the standard
 * input is named twice, and for compressed files, with the command that unpacks them. Afterwards
 * inputs_close, on failure too. */
int inputs_open(struct inputs *inputs, char **names, int count, bool all_jsonl,
                struct error *error);
void inputs_close(struct inputs *inputs);
