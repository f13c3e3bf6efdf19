/* Reads the documents of many inputs one after the other, in pieces. Memory does not depend on the
 * size of the inputs.
 *
 * Each row of JSON Lines is a document: the string of one member, in one piece; or a prompt and its
 * completion, a conversation (data/corpus/chat.h) or a list of segments, in several. Blank lines
 * and a byte order mark at the beginning of a file are skipped.
 *
 * A text file is one document. With split_documents, the characters <|endoftext|> end a document
 * and begin another, and belong to neither; a byte order mark at the beginning of a file is
 * skipped. All other bytes are unchanged. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/corpus/chat.h"
#include "data/corpus/inputs.h"
#include "data/corpus/jsonl.h"

enum { DOCUMENT_ROW_BYTES_MAX = 256 << 20 };

enum document_form {
    DOCUMENT_TEXT,     /* a text, all of which counts in the loss */
    DOCUMENT_PAIR,     /* a prompt and its completion, encoded separately */
    DOCUMENT_RENDERED, /* segments of one text that holds all its special tokens */
};

struct document_piece {
    const char *text; /* [size], valid until the next piece is read */
    size_t size;      /* at least 1, except for rows: an empty string is a document, too */
    bool begins;      /* true if a document begins with this piece */
    bool is_row;      /* true for a row of JSON Lines */
    bool in_loss;     /* true if the piece counts in the loss */
    enum document_form form;
};

struct documents {
    const struct inputs *inputs;
    const struct tokenizer *tokenizer; /* decides how conversations are rendered; NULL: not */
    const struct chat_template *chat;  /* set by the first conversation */
    const struct row_form *rows;       /* members of rows; NULL: the first row decides */
    char *fields;                      /* "NAME" or "NAME\0NAME": members to read from JSON Lines */
    bool split_documents; /* recognize <|endoftext|> and byte order marks in text files */
    bool skip_bad_rows;   /* count bad rows instead of failing */
    size_t next_input;    /* index of the input to open next */
    int fd;               /* file descriptor of the current input, or -1 */
    bool at_end, begins;  /* state of the current input */
    bool unread;          /* nothing has been read from the current input yet */
    char *buffer;         /* [capacity] */
    size_t capacity, at, filled, searched;
    struct segment *segments;   /* stb_ds array: segments of the last row */
    size_t next_segment;        /* index of the segment returned next */
    struct jsonl_member *items; /* stb_ds array: messages or segments of the row, reused */
    uint64_t line;              /* line in the current input, from 1 */
    uint64_t bytes_read;        /* bytes read from all inputs */
    uint64_t bad_rows;          /* number of rows skipped */
    char *first_bad_row;        /* message about the first of them, or NULL */
    uint64_t binary;            /* number of inputs that begin with NUL bytes or invalid UTF-8 */
    const char *first_binary;   /* name of the first of them, or NULL */
    size_t row_bytes_max;       /* DOCUMENT_ROW_BYTES_MAX; smaller in tests */
};

/* Prepares to read inputs, which must outlive documents. field: the member of JSON Lines that holds
 * the text, or two names with a comma between, for a prompt and its completion. "messages" are
 * conversations, "segments" parts of a text. NULL means the first of "text", "messages", "segments"
 * and "prompt,completion" that the first row has. The choice holds for all rows. */
int documents_open(struct documents *documents, const struct inputs *inputs, const char *field,
                   struct error *error);
void documents_close(struct documents *documents);

/* Reads the next piece. Returns 0, RESULT_NONE at the end, or -1. It fails if an input cannot be
 * read, if jsonl_row or chat_render refuses a row, if a row is longer than DOCUMENT_ROW_BYTES_MAX,
 * and after an interrupt. A message about a row names the file, line and column. */
int documents_next(struct documents *documents, struct document_piece *piece, struct error *error);

/* Fails with the message for an interrupt by a signal (data/util/signals.h). */
int documents_interrupted(struct error *error);
