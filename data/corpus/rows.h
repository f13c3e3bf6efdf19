/* Types of rows of JSON Lines, and the texts that each becomes:
 *
 *     {"text"}                              a text
 *     {"prompt", "completion"}              a prompt and its answer
 *     {"instruction", "input", "output"}    Alpaca's rows; input may be missing, null or empty
 *     {"messages": [{"role", "content"}]}   a conversation, see data/corpus/chat.h
 *     {"conversations": [{"from", "value"}]}  ShareGPT's form of it
 *     {"segments": [{"text", "train"}]}     parts of a text that holds all its special tokens
 *     {"prompt", "chosen", "rejected"}      a pair of answers, or without "prompt", see
 *                                           data/corpus/pair_rows.h
 *     {"prompt", "completion", "label"}     an answer and true if it is desirable
 *
 * Messages with a "weight", "train", "training", "loss" or "loss_mask" of 0 or false do not count.
 *
 * Prompts and answers are strings, or lists of messages or parts. Either list of messages takes
 * either pair of names. An instruction becomes a conversation of two messages if the tokenizer has
 * a chat template, the user's being the instruction, a line feed and the input. Otherwise it
 * becomes a prompt and its answer, with the prompt that Alpaca was trained with
 * (github.com/tatsu-lab/stanford_alpaca). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "data/corpus/chat.h"
#include "data/corpus/jsonl.h"
#include "data/corpus/pair_rows.h"
#include "data/corpus/row_members.h"
#include "data/tokenize/tokenizer.h"
#include "data/util/error.h"

enum document_form {
    DOCUMENT_TEXT,     /* a text, all of which counts in the loss */
    DOCUMENT_ANSWER,   /* a prompt and its answer */
    DOCUMENT_RENDERED, /* segments of one text that holds all its special tokens */
};

struct rows {
    const struct row_type *type;       /* type of all rows; NULL: the first good row decides */
    char *names[JSONL_MEMBERS_MAX];    /* members to read, set with type; NULL: none */
    const struct tokenizer *tokenizer; /* decides about conversations; NULL: no template */
    const struct chat_template *chat;  /* set by the first conversation */
    struct jsonl_member *items[JSONL_MEMBERS_MAX]; /* stb_ds arrays of the row's lists, reused */
    char *text;                 /* stb_ds array: text put together for the row, reused */
    struct row_members members; /* members that are not read */
    struct row_texts texts;     /* documents of the last row */
    struct pair_rows pairs;     /* state of rows with answers */
    char *original;             /* stb_ds array: a row with answers before it is overwritten */
    bool without_system;        /* some conversations have no message of the system */
    bool special_as_text;       /* special tokens in strings stay text */
    /* Special tokens in strings so far, rows with one, and the last one found. */
    uint64_t special_count, special_rows;
    int special_token;
};

/* field names the members to read: "NAME" for a text, "NAME,NAME" for a prompt and its completion,
 * "NAME,NAME,NAME" for an instruction, its input and output; "messages", "conversations" and
 * "segments" are lists. The members of pairs are given by their own names, as MEMBER or
 * MEMBER=NAME: "prompt=question,chosen,rejected". NULL lets the first row decide: the first type of
 * ROWS in rows.c whose members it has. Call rows_close afterwards, also on failure. */
int rows_open(struct rows *rows, const char *field, const struct tokenizer *tokenizer,
              struct error *error);
void rows_close(struct rows *rows);

/* Parses row[0 .. size), which it overwrites, into rows->texts, which are valid until the
 * next call. The first row with a label has none, and the second those of both.
 * Returns 0; RESULT_NONE if the row is bad, with the reason and *column, its place in the row in
 * characters from 1 (the row is then unchanged); or -1 on other errors. */
int rows_parse(struct rows *rows, char *row, size_t size, size_t *column, struct error *error);

/* Fails if a row still waits for another: a single one with a label. */
int rows_finish(const struct rows *rows, struct error *error);

/* Returns how the texts of rows are encoded. rows->type must be known. */
enum document_form rows_form(const struct rows *rows);

/* True if rows are pairs of answers or have labels. */
bool rows_are_pairs(const struct rows *rows);
bool rows_are_labelled(const struct rows *rows);

/* Writes the names of the members that are read, with commas between. */
void rows_names(const struct rows *rows, char *text, size_t size);

/* Writes what a row must have, as for example: strings named "prompt" and "completion". */
void rows_describe(const struct rows *rows, char *text, size_t size);
