/* What an audit is of: the lines at the top of the terminal, and a table on the page. */
#ifndef MODEL_LAB_AUDIT_AUDIT_HEAD_H
#define MODEL_LAB_AUDIT_AUDIT_HEAD_H

#include "model/lab/audit/audit.h"

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

#endif
