/* The documents of many inputs, one after the other, in pieces, in memory that does not depend on
 * the inputs' size.
 *
 * Of JSON Lines each row is a document: the string of one member, in one piece; or a pair, a prompt
 * and its completion, in two. Blank lines are skipped, and so is a byte order mark at the beginning
 * of a file.
 * A text file is one document. If marks are watched, the characters <|endoftext|> end a document
 * and begin another, and belong to neither; and a byte order mark at the beginning of a file is
 * skipped. Apart from that no byte is changed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/corpus/inputs.h"
#include "data/corpus/jsonl.h"

enum { DOCUMENT_ROW_BYTES_MAX = 256 << 20 };

/* A pair is PIECE_PROMPT, which begins the document, then PIECE_COMPLETION, which ends it. */
enum document_part { PIECE_TEXT, PIECE_PROMPT, PIECE_COMPLETION };

struct document_piece {
    const char *text; /* [size], until the next piece is asked for */
    size_t size;      /* at least 1 but for rows: an empty string is a document as well */
    bool begins;      /* whether a document begins with it */
    bool is_row;      /* of JSON Lines */
    enum document_part part;
};

struct documents {
    const struct inputs *inputs;
    char *fields;        /* "NAME", or "NAME\0NAME": the members wanted of JSON Lines */
    int field_count;     /* 1, or 2 of pairs; 0: the first row decides */
    bool watch_marks;    /* <|endoftext|> and byte order marks in text files */
    bool skip_bad_rows;  /* count them instead of failing */
    size_t next_input;   /* the one to open next */
    int fd;              /* of the current one, or -1 */
    bool at_end, begins; /* of the current one */
    bool unread;         /* no byte of the current one has been read yet */
    char *buffer;        /* [capacity] */
    size_t capacity, at, filled, searched;
    struct jsonl_member pending; /* of the row read last: a completion to give next, if text */
    uint64_t line;               /* of the current input, from 1 */
    uint64_t bytes_read;         /* from all inputs */
    uint64_t bad_rows;           /* skipped */
    char *first_bad_row;         /* what was wrong with the first of them, or NULL */
    uint64_t binary;             /* inputs that begin with NUL bytes, or not in UTF-8 */
    const char *first_binary;    /* name of the first of them, or NULL */
    size_t row_bytes_max;        /* DOCUMENT_ROW_BYTES_MAX, which tests make smaller */
};

/* Sets up the reading of inputs, which must outlive it. field: the member of JSON Lines that holds
 * the text; or two with a comma between, those of a prompt and its completion; or NULL: "text" if
 * the first row has that, else "prompt,completion". All rows have the same. */
int documents_open(struct documents *documents, const struct inputs *inputs, const char *field,
                   struct error *error);
void documents_close(struct documents *documents);

/* The next piece. Returns 0, RESULT_NONE at the end, and -1 when an input cannot be read,
 * when a row is not as jsonl_row wants it or longer than DOCUMENT_ROW_BYTES_MAX, and after an
 * interrupt. A message about a row says the file, line and column. */
int documents_next(struct documents *documents, struct document_piece *piece, struct error *error);

/* Fails with what to say after a signal (data/util/signals.h). */
int documents_interrupted(struct error *error);
