#include "model/config/config_keys.h"
#include "model/lab/audit/audit_tables.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

static struct audit *make(void) {
    struct audit *audit = calloc(1, sizeof *audit);
    cr_assert_not_null(audit);
    struct subject *subject = &audit->subject;
    config_defaults(&subject->config);
    strcpy(subject->config.name, "small");
    strcpy(subject->from, "runs/small");
    strcpy(subject->be.device.description, "a device");
    subject->config.train.micro_batch_size = 8;
    subject->config.data.seq_len = 256;
    subject->step = 599;
    subject->repetitions = 4;
    subject->loss_scale = 65536;
    audit->reference.loss = 2.5;
    for (int i = 0; i < AUDIT_FORMATS; i++) {
        audit->formats[i].made = true;
        audit->formats[i].pass.loss = 2.5 + 0.001 * (i + 1);
    }
    return audit;
}

/* The text of a fact, "" if there is none. */
static const char *fact(const struct audit *audit, const char *label) {
    static struct audit_fact facts[AUDIT_FACTS];
    int count = audit_head(facts, audit);
    for (int i = 0; i < count; i++)
        if (strcmp(facts[i].label, label) == 0) return facts[i].text;
    return "";
}

Test(audit_head, says_what_was_looked_at) {
    struct audit *audit = make();
    cr_expect_str_eq(fact(audit, "audit of"), "small");
    cr_expect_str_eq(fact(audit, "weights"), "runs/small");
    cr_expect_str_eq(fact(audit, "looks at"), "4 micro-batches of 8 x 256 tokens from step 600 on");
    cr_expect_str_eq(fact(audit, "device"), "a device");
    cr_expect_str_eq(fact(audit, "loss"), "fp32 2.500000, bf16 2.501000, fp16 2.502000");
    audit->formats[AUDIT_BF16].made = false;
    audit->subject.repetitions = 1;
    cr_expect_str_eq(fact(audit, "loss"), "fp32 2.500000, fp16 2.502000");
    cr_expect_str_eq(fact(audit, "looks at"), "1 micro-batch of 8 x 256 tokens from step 600 on");
    free(audit);
}

Test(audit_head, says_whose_the_loss_scale_is) {
    struct audit *audit = make();
    cr_expect_str_eq(fact(audit, "loss scale"), "65536, loss_scale.init_scale");
    audit->subject.scale_of_run = true;
    cr_expect_str_eq(fact(audit, "loss scale"), "65536, that of the fp16 run at this step");
    audit->subject.loss_scale = 3000;
    cr_expect_str_eq(fact(audit, "loss scale"),
                     "3000, that of the fp16 run at this step; the figures are at 2^12");
    audit->formats[AUDIT_FP16].made = false;
    cr_expect_str_eq(fact(audit, "loss scale"), "");
    free(audit);
}

/* Of a scale between two powers of two the larger: less room, never more. */
Test(audit_head, the_exponent_is_never_below_the_scale) {
    static const struct {
        float scale;
        int expected;
    } cases[] = {{1, 0}, {65536, 16}, {65537, 17}, {3000, 12}, {0.3f, -1}, {0x1p-14f, -14}};
    struct audit *audit = make();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        audit->subject.loss_scale = cases[i].scale;
        cr_expect_eq(audit_scale_now(audit), cases[i].expected, "%g: 2^%d", (double)cases[i].scale,
                     audit_scale_now(audit));
    }
    free(audit);
}
