/* Reads the documents of many inputs one after the other, in pieces. Memory does not depend on the
 * size of the inputs.
 *
 * Each row of JSON Lines is a document of one or several pieces (data/corpus/rows.h). Blank lines
 * and a byte order mark at the beginning of a file are skipped. A file whose first character is [
 * is one list of rows instead.
 *
 * A text file is one document. With split_documents, the characters <|endoftext|> end a document
 * and begin another, and belong to neither; a byte order mark at the beginning of a file is
 * skipped. All other bytes are unchanged. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/corpus/inputs.h"
#include "data/corpus/rows.h"

enum { DOCUMENT_ROW_BYTES_MAX = 256 << 20 };

struct document_piece {
    const char *text; /* [size], valid until the next piece is read */
    size_t size;      /* at least 1, except for rows: an empty string is a document, too */
    bool begins;      /* true if a document begins with this piece */
    bool is_row;      /* true for a row of JSON Lines */
    bool in_loss;     /* true if the piece counts in the loss */
    enum document_form form;
    uint8_t marks; /* of the document's first token if it begins one of a pair, or 0 */
    bool is_plain; /* true if special tokens are not recognized in it */
};

struct row_place {
    uint64_t line; /* from 1 */
    size_t column; /* number of characters of the line before it */
};

struct documents {
    const struct inputs *inputs;
    const bool *lacking;  /* [256] bytes without a token, or NULL */
    struct rows rows;     /* what rows of JSON Lines are */
    bool split_documents; /* recognize <|endoftext|> and byte order marks in text files */
    bool skip_bad_rows;   /* count bad rows instead of failing */
    size_t next_input;    /* index of the input to open next */
    int fd;               /* file descriptor of the current input, or -1 */
    bool at_end, begins;  /* state of the current input */
    bool unread;          /* nothing has been read from the current input yet */
    char *buffer;         /* [capacity] */
    size_t capacity, at, filled, searched;
    enum { ROW_LINES, LIST_BEGINS, LIST_GOES_ON } layout; /* of the current input's rows */
    size_t next_segment;         /* index of the segment of rows returned next */
    size_t next_document;        /* index of the document of rows that begins next */
    struct row_place begin, end; /* of the last row */
    uint64_t bytes_read;         /* bytes read from all inputs */
    uint64_t row_count;          /* number of rows read from all inputs */
    uint64_t bad_rows;           /* number of rows skipped */
    char *first_bad_row;         /* message about the first of them, or NULL */
    const char *misread;         /* name of the first input read as text that begins like rows */
    bool misread_as_json;        /* they begin like JSON, else like a table */
    uint64_t binary;             /* number of inputs that begin with NUL bytes or invalid UTF-8 */
    const char *first_binary;    /* name of the first of them, or NULL */
    uint64_t lacking_count;      /* bytes without a token in all texts */
    char first_lacking[600];     /* the first of them and its place */
    size_t row_bytes_max;        /* DOCUMENT_ROW_BYTES_MAX; smaller in tests */
};

/* Prepares to read inputs, which must outlive documents, like tokenizer. field: members of rows, as
 * rows_open takes it. */
int documents_open(struct documents *documents, const struct inputs *inputs, const char *field,
                   const struct tokenizer *tokenizer, struct error *error);
void documents_close(struct documents *documents);

/* Reads the next piece. Returns 0, RESULT_NONE at the end, or -1. It fails if an input cannot be
 * read, if rows_parse or rows_finish refuses a row, if a row is longer than DOCUMENT_ROW_BYTES_MAX,
 * and after an interrupt. A message about a row names the file, line and column. */
int documents_next(struct documents *documents, struct document_piece *piece, struct error *error);

/* Fails with the message for an interrupt by a signal (data/util/signals.h). */
int documents_interrupted(struct error *error);
