#include "model/lab/audit/audit_head.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

int audit_scale_now(const struct audit *audit) {
    return (int)ceil(log2((double)audit->subject.loss_scale));
}

void audit_describe(char *text, size_t size, const struct audit *audit) {
    const struct subject *subject = &audit->subject;
    const struct config *config = &subject->config;
    snprintf(text, size,
             "%d micro-batch%s of %" PRId64 " x %" PRId64 " tokens from step %" PRId64 " on",
             subject->repetitions, subject->repetitions == 1 ? "" : "es",
             config->train.micro_batch_size, config->data.seq_len, subject->step + 1);
}

static void describe_scale(char *text, size_t size, const struct audit *audit) {
    const struct subject *subject = &audit->subject;
    double scale = (double)subject->loss_scale;
    char rounded[80] = "";
    if (scale != ldexp(1, audit_scale_now(audit)))
        snprintf(rounded, sizeof rounded, "; the figures are at 2^%d", audit_scale_now(audit));
    snprintf(text, size, "%.12g, %s%s", scale,
             subject->scale_of_run ? "that of the fp16 run at this step" : "loss_scale.init_scale",
             rounded);
}

static void describe_losses(char *text, size_t size, const struct audit *audit) {
    size_t used = (size_t)snprintf(text, size, "fp32 %.6f", audit->reference.loss);
    for (int i = 0; i < AUDIT_FORMATS; i++)
        if (audit->formats[i].made)
            used += (size_t)snprintf(text + used, size - used, ", %s %.6f", audit_name(i),
                                     audit->formats[i].pass.loss);
}

int audit_head(struct audit_fact facts[AUDIT_FACTS], const struct audit *audit) {
    const struct subject *subject = &audit->subject;
    struct audit_fact *fact = facts;
    fact->label = "audit of";
    snprintf(fact++->text, AUDIT_FACT_MAX, "%s", subject->config.name);
    fact->label = "weights";
    snprintf(fact++->text, AUDIT_FACT_MAX, "%s", subject->from);
    fact->label = "looks at";
    audit_describe(fact++->text, AUDIT_FACT_MAX, audit);
    fact->label = "device";
    snprintf(fact++->text, AUDIT_FACT_MAX, "%s", subject->be.device.description);
    if (audit->formats[AUDIT_FP16].made) {
        fact->label = "loss scale";
        describe_scale(fact++->text, AUDIT_FACT_MAX, audit);
    }
    fact->label = "loss";
    describe_losses(fact++->text, AUDIT_FACT_MAX, audit);
    assert(fact - facts <= AUDIT_FACTS);
    return (int)(fact - facts);
}
