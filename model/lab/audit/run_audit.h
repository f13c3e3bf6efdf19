/* The command ./train --audit. */
#pragma once

#include <stdint.h>

#include "data/util/error.h"
#include "model/config/config.h"

struct audit_options {
    const enum config_precision *precisions; /* [precision_count]: formats to audit */
    int precision_count;                     /* 0: bf16, fp16, and the config's if it quantizes */
    int64_t repetitions;                     /* number of micro-batches; 0: the default */
    const char *out;                         /* directory for reports; NULL: none are written */
};

/* Audits config with the weights at `from` (a checkpoint or a Hugging Face model directory; NULL:
 * model.init_from or initial weights). Prints the tables and the advice. Writes audit.json
 * (precisions that quantize: audit_PRECISION.json) into options->out, which it creates.
 * Returns an exit status. */
int run_audit(const struct config *config, const char *from, const struct audit_options *options,
              struct error *error);
