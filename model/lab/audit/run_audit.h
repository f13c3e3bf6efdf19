/* ./train --audit: the command. */
#pragma once

#include <stdint.h>

#include "data/util/error.h"
#include "model/config/config.h"

struct audit_options {
    const enum config_precision *precisions; /* [precision_count]: formats to audit */
    int precision_count;                     /* 0: all that make sense for the config */
    int64_t repetitions;                     /* micro-batches; < 0: the default */
    const char *out;                         /* folder for reports; NULL: none are written */
};

/* Audits config on the weights at `from` (a checkpoint or a directory of Hugging Face; NULL:
 * initial ones, or model.init_from). Prints the tables and the advice; writes audit.json and
 * audit.html into options->out, which is created before the work begins. Returns an exit status. */
int run_audit(const struct config *config, const char *from, const struct audit_options *options,
              struct error *error);
