#include "model/config/config_keys.h"
#include "model/io/config_file.h"
#include "model/lab/audit/advice.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "test/scratch.h"

#define BIT(id)      (1u << SITE_##id)
#define COUNT(array) (sizeof(array) / sizeof *(array))

TestSuite(advice, .init = make_folder, .fini = remove_folder);

static void set_native(struct audit *audit, bool bf16, bool fp16) {
    audit->subject.be.device.native[DTYPE_BF16] = bf16;
    audit->subject.be.device.native[DTYPE_F16] = fp16;
}

/* Makes an audit of both formats, usable, with these errors of the gradients, on a device with fast
 * matmuls in both. The gradient noise of a micro-batch is one half. */
static struct audit *make(double bf16, double fp16) {
    struct audit *audit = calloc(1, sizeof *audit);
    cr_assert_not_null(audit);
    config_defaults(&audit->subject.config);
    audit->subject.config.train.grad_accum_steps = 1;
    set_native(audit, true, true);
    audit->reference.gradient_noise = 0.5;
    const double errors[] = {[AUDIT_BF16] = bf16, [AUDIT_FP16] = fp16};
    const enum dtype dtypes[] = {[AUDIT_BF16] = DTYPE_BF16, [AUDIT_FP16] = DTYPE_F16};
    for (int i = 0; i < AUDIT_FORMATS; i++) {
        struct audit_format *format = &audit->formats[i];
        format->made = format->usable = true;
        format->dtype = dtypes[i];
        format->pass.gradient_error = format->pass.first_error = errors[i];
        format->safe_scale = i == AUDIT_FP16 ? 20 : 0;
    }
    return audit;
}

static void try_word(struct audit *audit, int format, enum autocast_site operation, double wrong) {
    audit->formats[format].trials[operation] = (struct audit_trial){true, wrong};
}

/* Makes the advice and joins its sentences. */
static struct advice advise(const struct audit *audit, char text[4096]) {
    struct advice advice;
    size_t used = 0;
    advice_make(&advice, audit);
    text[0] = '\0';
    for (const cJSON *one = advice.texts->child; one; one = one->next)
        used += (size_t)snprintf(text + used, 4096 - used, "%s\n", one->valuestring);
    cJSON_Delete(advice.texts);
    return advice;
}

static void expect_text(const char *text, const char *part) {
    cr_expect_not_null(strstr(text, part), "\"%s\" is not in: %s", part, text);
}

Test(advice, names_the_format) {
    static const struct {
        double bf16, fp16;
        bool native_bf16, native_fp16;
        enum dtype expected;
    } cases[] = {
        {0.01, 0.001, true, true, DTYPE_BF16},  {0.06, 0.001, true, true, DTYPE_F16},
        {0.01, 0.001, false, true, DTYPE_F16},  {0.01, 0.001, false, false, DTYPE_F32},
        {0.06, 0.07, true, true, DTYPE_F32},    {INFINITY, 0.001, true, true, DTYPE_F16},
        {0.049, 0.001, true, true, DTYPE_BF16}, {0.06, 0.001, true, false, DTYPE_F32},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[4096], begin[32];
        struct audit *audit = make(cases[i].bf16, cases[i].fp16);
        set_native(audit, cases[i].native_bf16, cases[i].native_fp16);
        struct advice advice = advise(audit, text);
        cr_expect_eq(advice.format, cases[i].expected, "case %zu: %s", i, text);
        snprintf(begin, sizeof begin, "Format: %s.", dtype_name(cases[i].expected));
        cr_expect_eq(strncmp(text, begin, strlen(begin)), 0, "case %zu: %s", i, text);
        free(audit);
    }
}

/* The advice names the device, and the formats that are exact enough but slow on it. */
/* ln 256 is 5.545. */
Test(advice, a_diverged_loss_comes_first) {
    char text[4096];
    struct audit *audit = make(0.5, 0.5);
    audit->reference.loss = 6.5;
    cr_expect_str_eq(advise(audit, text).diverged, "");
    expect_text(text, "not exact enough");
    audit->reference.loss = 7291.3331;
    audit->subject.config.optimizer.lr = 10;
    struct advice advice = advise(audit, text);
    expect_text(advice.diverged, "it is 7.29e+03 in fp32 too");
    expect_text(advice.diverged, "all 256 tokens give 5.55.");
    expect_text(advice.diverged, "optimizer.lr (it is 10)");
    cr_expect_str_eq(text, "None about precision, since the loss has diverged in fp32.\n");
    free(audit);
}

Test(advice, explains_fp32) {
    char text[4096];
    struct audit *audit = make(0.01, 0.2);
    set_native(audit, false, false);
    audit->subject.be.device.kind = BACKEND_CUDA;
    advise(audit, text);
    expect_text(text, "fast products on this GPU.\nbf16 is exact enough: error 1.00%, tolerance "
                      "5.00%, but without fast products here.\n"
                      "fp16 is not exact enough: error 20.0%, tolerance 5.00%.\n");
    free(audit);
}

Test(advice, only_audited_formats_are_advised) {
    char text[4096];
    struct audit *audit = make(0.001, 0.001);
    audit->formats[AUDIT_BF16].made = false;
    struct advice advice = advise(audit, text);
    cr_expect_eq(advice.format, DTYPE_F16);
    cr_expect_null(strstr(text, "bf16"));
    free(audit);
}

Test(advice, tolerance_is_a_tenth_of_the_noise_of_a_step) {
    static const struct {
        double noise;
        int accumulated;
        double expected;
    } cases[] = {{0.5, 1, 0.05}, {0.5, 4, 0.025}, {0.01, 1, 0.01}, {7, 1, 0.1}, {0, 1, 0.02}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[4096];
        struct audit *audit = make(0.001, 0.001);
        audit->reference.gradient_noise = cases[i].noise;
        audit->subject.config.train.grad_accum_steps = cases[i].accumulated;
        struct advice advice = advise(audit, text);
        cr_expect_float_eq(advice.tolerance, cases[i].expected, 1e-12, "case %zu", i);
        free(audit);
    }
}

Test(advice, float32_is_advised_only_where_the_error_matters) {
    char text[4096];
    struct audit *audit = make(0.2, 0.01);            /* tolerance 0.05 */
    try_word(audit, AUDIT_BF16, SITE_QKV, 0.16);      /* removes 20 % */
    try_word(audit, AUDIT_BF16, SITE_LM_HEAD, 0.04);  /* 80 % */
    try_word(audit, AUDIT_FP16, SITE_LM_HEAD, 0.002); /* 80 % of a harmless error */
    struct advice advice = advise(audit, text);
    cr_expect_eq(advice.formats[AUDIT_BF16].sites, BIT(LM_HEAD));
    cr_expect_eq(advice.formats[AUDIT_FP16].sites, 0);
    cr_expect(advice.formats[AUDIT_BF16].fit, "with the word the error is 0.04");
    expect_text(text, "Keep lm_head in float32 in bf16: that alone removes 80.0%");
    expect_text(text, "Nothing has to stay in float32 in fp16: lm_head");
    free(audit);
}

/* The block is a valid config file. */
static void expect_config(const struct advice *advice, const struct audit *audit, int format,
                          unsigned sites, double scale) {
    struct config config;
    char least[80], *sets[] = {least};
    snprintf(least, sizeof least, "loss_scale.min_scale=%.17g",
             audit->subject.config.loss_scale.min_scale);
    const char *path = in_folder("block.json");
    FILE *file = fopen(path, "w");
    cJSON *block = advice_config(advice, audit, format);
    char *json = cJSON_Print(block);
    cr_assert_not_null(file);
    fputs(json, file);
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(config_load(&config, path, sets, format == AUDIT_FP16, &error), 0, "%s",
                 error.text);
    cr_expect_eq(sites_of_config(&config), sites);
    cr_expect_eq(config.precision,
                 format == AUDIT_BF16 ? CONFIG_PRECISION_BF16 : CONFIG_PRECISION_FP16);
    cr_expect_eq(config_given(&config, "loss_scale"), format == AUDIT_FP16);
    if (format == AUDIT_FP16) cr_expect_eq(config.loss_scale.init_scale, scale);
    enum config_dtype residual = audit->formats[format].needs_residual
                                     ? CONFIG_DTYPE_FLOAT32
                                     : audit->subject.config.autocast.residual;
    cr_expect_eq(config.autocast.residual, residual);
    free(json);
    cJSON_Delete(block);
}

Test(advice, an_operation_that_overflows_is_kept_in_float32) {
    char text[4096];
    struct audit *audit = make(0.01, 0.01);
    audit->formats[AUDIT_FP16].needed = BIT(MLP_FC);
    audit->formats[AUDIT_FP16].given = BIT(QKV);
    struct advice advice = advise(audit, text);
    expect_text(text, "Keep mlp_fc in float32 in fp16: without it");
    expect_config(&advice, audit, AUDIT_FP16, BIT(MLP_FC) | BIT(QKV), ldexp(1, 20 - ADVICE_MARGIN));
    expect_config(&advice, audit, AUDIT_BF16, 0, 0);
    free(audit);
}

/* init_scale in the block is at least the config's min_scale and at most 2^32. */
Test(advice, the_scale_stays_in_the_range_of_the_config) {
    static const struct {
        double smallest;
        int safe, advised;
    } cases[] = {{0x1p-14, 20, 20 - ADVICE_MARGIN},
                 {0x1p-14, 120, 32},
                 {0x1p-14, -14, -14},
                 {1e-6, -18, -19},
                 {1e-6, -30, -19},
                 {1000, 5, 10},
                 {1024, 11, 10},
                 {65536, 17, 16}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[4096];
        struct audit *audit = make(0.01, 0.01);
        audit->subject.config.loss_scale.min_scale = cases[i].smallest;
        audit->formats[AUDIT_FP16].safe_scale = cases[i].safe;
        struct advice advice = advise(audit, text);
        expect_config(&advice, audit, AUDIT_FP16, 0, ldexp(1, cases[i].advised));
        bool refused = ldexp(1, cases[i].safe) < cases[i].smallest;
        cr_expect_eq(strstr(text, "loss_scale.min_scale, ") != NULL, refused, "%zu: %s", i, text);
        free(audit);
    }
}

Test(advice, a_residual_that_has_to_be_float32_is_in_the_block) {
    char text[4096];
    struct audit *audit = make(0.01, 0.01);
    audit->subject.config.autocast.residual = CONFIG_DTYPE_LOWER;
    audit->formats[AUDIT_FP16].needs_residual = true;
    struct advice advice = advise(audit, text);
    expect_text(text, "Keep the residual stream in float32 in fp16 (autocast.residual)");
    cr_expect_null(strstr(text, "float32 in bf16 (autocast.residual)"));
    expect_config(&advice, audit, AUDIT_FP16, 0, ldexp(1, 20 - ADVICE_MARGIN));
    expect_config(&advice, audit, AUDIT_BF16, 0, 0);
    free(audit);
}

/* The text counts the tried micro-batches, in the singular and the plural. */
Test(advice, micro_batches_are_counted) {
    static const struct {
        int repetitions, accumulated;
        enum dtype gradients;
        const char *said;
    } cases[] = {{1, 1, DTYPE_F32, " in 1 micro-batch (2^21"},
                 {2, 16, DTYPE_F32, " in 2 micro-batches (2^21"},
                 {2, 16, DTYPE_F16, " in 16 micro-batches (2^21"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[4096];
        struct audit *audit = make(0.01, 0.01);
        audit->subject.repetitions = cases[i].repetitions;
        audit->subject.config.train.grad_accum_steps = cases[i].accumulated;
        audit->formats[AUDIT_FP16].pass.precision.gradients = cases[i].gradients;
        advise(audit, text);
        expect_text(text, cases[i].said);
        free(audit);
    }
}

Test(advice, unusable_formats_are_named) {
    char text[4096];
    struct audit *audit = make(0.01, INFINITY);
    audit->formats[AUDIT_FP16].usable = false;
    struct advice advice = advise(audit, text);
    cr_expect_eq(advice.format, DTYPE_BF16);
    cr_expect_not(advice.formats[AUDIT_FP16].fit);
    expect_text(text, "fp16 cannot hold this model");

    cr_expect_null(strstr(text, "Loss scale"));
    free(audit);
}
