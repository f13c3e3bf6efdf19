/* Rows of preference data, and the two documents that each becomes (data/corpus/token_mask.h).
 *
 * A row with two answers becomes its prompt with the chosen one and its prompt with the rejected
 * one. Without a prompt, the common beginning of the answers is the prompt. It ends before the
 * space that precedes the first difference, and at the latest before the last character or message
 * of the shorter answer.
 *
 * A row with a completion and a label becomes its prompt with its own completion, and its prompt
 * with the completion of the row before. So the first such row becomes documents together with the
 * second, whose completion it takes.
 *
 * A row with a completion and no label is not of preference data, but has the same members. It
 * becomes one document.
 *
 * Prompts and answers are strings, messages or parts of a rendered text (data/corpus/rows.h). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/corpus/chat.h"
#include "data/corpus/jsonl.h"
#include "data/util/error.h"

enum { PAIR_PROMPT, PAIR_CHOSEN, PAIR_REJECTED, PAIR_COMPLETION = 1, PAIR_LABEL = 2 };

/* Documents of a row. */
struct row_texts {
    struct segment *segments; /* stb_ds array: their texts */
    struct row_document {
        size_t segment; /* index of its first segment */
        uint8_t marks;  /* of its first token, if it is one of a pair, or 0 */
    } * documents;      /* stb_ds array */
};

struct pair_rows {
    const struct chat_template *chat; /* must be set if there are messages */
    bool rendered;                    /* the last row has messages or parts */
    struct jsonl_member *values;      /* stb_ds array: a conversation put together, reused */
    /* Copies of the last two rows with a label: row i is held[i % 2]. */
    struct held_row {
        char *text; /* stb_ds array */
        struct jsonl_member members[JSONL_MEMBERS_MAX];
    } held[2];
    uint64_t labelled; /* labelled rows so far, of which are */
    uint64_t undesirable;
};

/* Appends the documents of a row with two answers to texts. The name of members[PAIR_PROMPT] is
 * NULL if answers begin with their prompt. On failure, *bad is the member that the message is
 * about. */
int pair_row_put(struct pair_rows *rows, const struct jsonl_member members[JSONL_MEMBERS_MAX],
                 struct row_texts *texts, const struct jsonl_member **bad, struct error *error);

/* Appends those of a row with a label, of which members are in row[0 .. size). The first such row
 * has none yet, and the second those of both. */
int labelled_row_put(struct pair_rows *rows, const char *row, size_t size,
                     const struct jsonl_member members[JSONL_MEMBERS_MAX], struct row_texts *texts,
                     const struct jsonl_member **bad, struct error *error);

/* Appends the one document of a row with a prompt, which may be empty, and a completion. */
int completion_row_put(struct pair_rows *rows, const struct jsonl_member members[JSONL_MEMBERS_MAX],
                       struct row_texts *texts, const struct jsonl_member **bad,
                       struct error *error);

void pair_rows_close(struct pair_rows *rows);
