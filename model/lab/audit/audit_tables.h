/* What an audit is of, and its tables: for the terminal and for the page. */
#pragma once

#include "model/lab/audit/audit.h"
#include "model/lab/page/table.h"

enum { AUDIT_FACTS = 6, AUDIT_FACT_MAX = 600 };

struct audit_fact {
    const char *label; /* at most 10 characters */
    char text[AUDIT_FACT_MAX];
};

/* Config, weights, micro-batches, device, loss scale and whose it is (where fp16 is looked at),
 * and the loss in each precision. Returns how many facts there are. */
int audit_head(struct audit_fact facts[AUDIT_FACTS], const struct audit *audit);

/* "4 micro-batches of 8 x 256 tokens from step 600 on", size bytes. */
void audit_describe(char *text, size_t size, const struct audit *audit);

/* The exponent of the loss scale in force: the smallest power of two that is not below it, so that
 * the room that is left is never overstated. */
int audit_scale_now(const struct audit *audit);

/* Each layer on its own, or one row for all with the worst of them. */
enum audit_rows { AUDIT_WORST, AUDIT_EVERY };

/* Errors in each format, and of fp16 the shares of its values that it stores as zero or subnormal
 * and the room up to overflow in powers of two: of gradients at scale 1 and at `scale` (an
 * exponent). What a format keeps in fp32 has "-" there. The caller frees all tables. */
struct table audit_table_forward(const struct audit *audit, enum audit_rows rows);
struct table audit_table_backward(const struct audit *audit, enum audit_rows rows, int scale);

/* Gradients of parameters: errors; where fp16 stores them, the share that becomes zero; and what a
 * 16-bit master would lose of their updates. */
struct table audit_table_parameters(const struct audit *audit, enum audit_rows rows);

/* The error of all gradients with one operation more in float32. */
struct table audit_table_words(const struct audit *audit);

/* What that table shows, and over which micro-batches; returns text. */
enum { AUDIT_NOTE_MAX = 160 };
const char *audit_note_words(char text[AUDIT_NOTE_MAX], const struct audit *audit);
