/* Lists the input files that the command line names.
 *
 * A name is a file, a folder, - for standard input, or a pattern with * ? [] or a leading ~. A name
 * that exists is never treated as a pattern. A folder stands for the files in it and its subfolders
 * whose names end in one of inputs_endings, in any case, and do not begin with a dot. They are
 * sorted by name. Links are followed, but each folder is visited once. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"

extern const char *const inputs_endings[]; /* ends with NULL */

struct input {
    char *name; /* a path, or "-" */
    bool is_jsonl;
};

struct inputs {
    struct input *list;    /* stb_ds array */
    uint64_t bytes;        /* total size of all inputs, if known */
    bool bytes_known;      /* false if an input is a pipe */
    uint64_t skipped;      /* number of files skipped in folders, not counting hidden ones */
    char *skipped_example; /* path of one of them, or NULL */
};

/* Lists the files of names[0 .. count). Files that end in .jsonl, .ndjson or .json hold rows, and
 * so does every input if all_jsonl. Fails if a name matches nothing, if a file cannot be read, and
 * for compressed files and tables, with the command that unpacks them. Call inputs_close
 * afterwards, also on failure. */
int inputs_open(struct inputs *inputs, char **names, int count, bool all_jsonl,
                struct error *error);

/* Fails if [bytes], the first ones of the standard input, which has no name with an ending, are
 * those of a compressed file or of a table that is not text. */
int inputs_check_first_bytes(const char *bytes, size_t size, struct error *error);

void inputs_close(struct inputs *inputs);
