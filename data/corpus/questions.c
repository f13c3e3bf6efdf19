#include "data/corpus/questions.h"

#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/files.h"
#include "data/corpus/jsonl.h"
#include "data/corpus/question_rows.h"
#include "data/corpus/tales_questions.h"

enum { FILE_BYTES_MAX = 1 << 30 };

/* Refuses files of other kinds, which are common for these data. */
static int check_kind(const char *text, size_t size, const char *name, struct error *error) {
    if (size >= 4 && memcmp(text, "PAR1", 4) == 0)
        return fail(error,
                    "%s: this is a Parquet file, and JSON Lines are read. Convert it:\n"
                    "python3 -c 'import sys, pandas; pandas.read_parquet(sys.argv[1])"
                    ".to_json(sys.argv[2], orient=\"records\", lines=True)' IN.parquet OUT.jsonl",
                    name);
    if (text[strspn(text, " \t\r\n")] == '[')
        return fail(error,
                    "%s: this is a JSON array, and JSON Lines are read: one object on each line. "
                    "Convert it:\njq -c '.[]' IN.json > OUT.jsonl",
                    name);
    return 0;
}

static int read_rows(struct question_set *set, char *text, const char *name, size_t size,
                     struct error *error) {
    size_t line = 1;
    for (char *row = text, *end = text + size, *next; row < end; row = next, line++) {
        char *stop = memchr(row, '\n', (size_t)(end - row));
        next = stop ? stop + 1 : end;
        if (!stop) stop = end;
        *stop = '\0';
        const size_t length = (size_t)(stop - row);
        if (jsonl_is_blank(row, length)) continue;
        if (question_row(set, row, length, name, line, error)) return -1;
    }
    return arrlenu(set->questions) > 0 ? 0 : fail(error, "%s:1: the file has no rows", name);
}

int questions_open(struct question_set *set, const char *path, struct error *error) {
    char *text, name[FILE_SHOWN_MAX];
    size_t size;
    *set = (struct question_set){0};
    if (strcmp(path, "tales") == 0) return tales_questions(set, error);
    if (file_read_all(&text, &size, path, FILE_BYTES_MAX, error)) return -1;
    file_path_shown(name, path);
    const size_t mark = size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    const int status = check_kind(text + mark, size - mark, name, error) ||
                               read_rows(set, text + mark, name, size - mark, error)
                           ? -1
                           : 0;
    free(text);
    if (status) questions_close(set);
    return status;
}
