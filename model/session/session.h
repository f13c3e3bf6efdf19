/* Opens all that a training run or its dry run needs, in order: device, precision, data,
 * trainer; the tokenizer separately. */
#pragma once

#include <stdbool.h>

#include "data/util/error.h"
#include "kernels/ranks.h"
#include "model/optimize/trainer.h"
#include "model/session/setup.h"

/* Parts of a run: before and after the change of precision, if there is one. */
enum run_part { RUN_FIRST, RUN_SWITCHED };

struct session {
    const struct ranks *ranks;
    enum run_part part;
    bool planned;         /* a dry run: the trainer has no memory */
    struct config config; /* config of this part of the run, with precision "auto" resolved */
    struct config given;  /* the same for the whole run, as in config.json */
    int64_t until;        /* step at which this part ends: a change of precision, or the last one */
    struct backend be;
    bool backend_open;
    struct precision precision;
    struct source train, val;
    struct tokenizer tokenizer; /* vocab_size 0: no tokenizer found */
    struct trainer trainer;
};

/* Opens device and data, and prints notes and warnings about the resolved settings. The caller
 * closes the session after a failure, too. RUN_SWITCHED: config->precision is resolved.
 * algorithms: path of the file with those that autotune chose; NULL for a dry run, whose trainer
 * has no memory and whose data may be missing. */
int session_open(struct session *session, const struct config *config, enum run_part part,
                 const struct ranks *ranks, const char *algorithms, struct error *error);

/* Resolves train.epochs, which gives the steps that are left after the checkpoint `from`, and opens
 * the trainer. from: "" to begin with step 0. */
int session_open_trainer(struct session *session, const char *from, struct error *error);
void session_close(struct session *session);

/* Opens the tokenizer, which is optional: only samples and the files of checkpoints need it. from:
 * checkpoint to resume from, whose tokenizer files take precedence, or NULL. */
int session_open_tokenizer(struct session *session, const char *from, struct error *error);
