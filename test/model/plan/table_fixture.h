/* Helpers that print the memory tables, find their cells and format the expected figures. */
#pragma once

#include "data/util/printed.h"
#include "model/config/config_keys.h"
#include "test/match.h"
#include "test/model/trainer_fixture.h"

#include "model/plan/memory_text.h"

static struct rig rig; /* the rig of the test */

static inline void close_rig(void) {
    if (rig.be.functions) backend_close(&rig.be);
    rig = (struct rig){0};
}

static inline void open_run(enum config_precision precision) {
    close_rig();
    rig_config(&rig.config, precision);
    rig.config.model.n_embd = 128;
    rig.config.model.n_layer = 3;
    rig.config.train.micro_batch_size = 8;
    rig_open_backend(&rig, test_device(), 2);
}

static inline size_t total_of(const struct config *config) {
    struct memory_plan plan;
    cr_assert_eq(memory_plan_of(&plan, config, &rig.be, &rig.error), 0, "%s", rig.error.text);
    return memory_total(&plan);
}

typedef int printer(FILE *out, const struct memory_request *request, struct error *error);

/* Returns the printed text, valid until the next call. gib < 0: free memory. *status: return value
 * of print. */
static inline char *print_status(int *status, printer *print, double gib) {
    static struct printed printed;
    struct memory_request request = memory_request(&rig.config, &rig.be, gib);
    free(printed.text);
    cr_assert_eq(printed_open(&printed), 0);
    *status = print(printed.out, &request, &rig.error);
    cr_assert_eq(printed_close(&printed), 0);
    char *text = printed.text;
    for (const char *line = text; *line;) {
        size_t length = strcspn(line, "\n");
        cr_expect_leq(length, 80, "%.*s", (int)length, line);
        cr_expect(length == 0 || line[length - 1] != ' ', "%.*s|", (int)length, line);
        line += length + (line[length] == '\n');
    }
    return text;
}

static inline char *print_with(printer *print, double gib) {
    int status;
    char *text = print_status(&status, print, gib);
    cr_assert_eq(status, 0, "%s", rig.error.text);
    return text;
}

/* Returns the rest of the first line after `from` that begins with label and two spaces. */
static inline const char *row(const char *from, const char *label) {
    char begin[64];
    snprintf(begin, sizeof begin, "\n%s  ", label);
    const char *found = strstr(from, begin);
    cr_assert_not_null(found, "no row \"%s\" in: %s", label, from);
    return found + 1 + strlen(label);
}

/* Returns word `index`, counted from 0, of the rest of a row. */
static inline const char *cell(const char *row, int index) {
    static char texts[4][64];
    static int turn;
    char *text = texts[turn++ % 4];
    for (;; index--) {
        row += strspn(row, " ");
        size_t length = strcspn(row, " \n");
        cr_assert_gt(length, 0, "the row is too short");
        if (index == 0) {
            snprintf(text, 64, "%.*s", (int)length, row);
            return text;
        }
        row += length;
    }
}

static inline const char *figure(double value, int digits) {
    static char texts[4][32];
    static int turn;
    char *text = texts[turn++ % 4];
    snprintf(text, 32, "%.*f", digits, value);
    return text;
}

static inline const char *mib(size_t bytes) {
    return figure((double)bytes / 0x1p20, 1);
}

static inline const char *gib(size_t bytes) {
    return figure((double)bytes / 0x1p30, 2);
}

static inline const char *batch_text(int64_t batch) {
    return batch == MEMORY_NO_STATE ? "-" : figure((double)batch, 0);
}

static inline const char *largest(const struct config *config, double gibs) {
    int64_t batch;
    size_t memory = memory_request(config, &rig.be, gibs).memory;
    cr_assert_eq(memory_largest_batch(&batch, config, &rig.be, memory, &rig.error), 0);
    return batch_text(batch);
}
