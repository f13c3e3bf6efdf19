/* Advice in the report of an audit with given figures. */
#include "model/config/config_keys.h"
#include "model/io/config_file.h"
#include "model/lab/audit/audit.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/util/table.h"
#include "test/scratch.h"

#define BIT(id)      (1u << SITE_##id)
#define COUNT(array) (sizeof(array) / sizeof *(array))

TestSuite(advice, .init = make_folder, .fini = remove_folder);

static cJSON *report;   /* of the last advise() */
static char text[4096]; /* its sentences, a line each */

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
    audit->subject.loss_scale = (float)audit->subject.config.loss_scale.init_scale;
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

/* Makes the report and joins its sentences. */
static void advise(const struct audit *audit) {
    const cJSON *one;
    size_t used = 0;
    cJSON_Delete(report);
    report = audit_report(audit);
    text[0] = '\0';
    cJSON_ArrayForEach(one, json_at(report, "advice.texts")) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s\n", one->valuestring);
    }
}

static void expect_text(const char *part) {
    cr_expect_not_null(strstr(text, part), "\"%s\" is not in: %s", part, text);
}

/* Expects the names of a list in a format's figures, joined by spaces. */
static void expect_list(const char *path, const char *expected) {
    char names[200] = "";
    const cJSON *item;
    cJSON_ArrayForEach(item, json_at(report, path)) {
        strcat(strcat(names, names[0] ? " " : ""), item->valuestring);
    }
    cr_expect_str_eq(names, expected, "%s: %s", path, names);
}

Test(advice, names_the_format) {
    static const struct {
        double bf16, fp16;
        bool native_bf16, native_fp16;
        const char *expected;
    } cases[] = {
        {0.01, 0.001, true, true, "bf16"},  {0.06, 0.001, true, true, "fp16"},
        {0.01, 0.001, false, true, "fp16"}, {0.01, 0.001, false, false, "fp32"},
        {0.06, 0.07, true, true, "fp32"},   {INFINITY, 0.001, true, true, "fp16"},
        {0.049, 0.001, true, true, "bf16"}, {0.06, 0.001, true, false, "fp32"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char begin[32];
        struct audit *audit = make(cases[i].bf16, cases[i].fp16);
        set_native(audit, cases[i].native_bf16, cases[i].native_fp16);
        advise(audit);
        cr_expect_str_eq(json_text_at(report, "advice.format"), cases[i].expected, "case %zu", i);
        snprintf(begin, sizeof begin, "Format: %s.", cases[i].expected);
        cr_expect_eq(strncmp(text, begin, strlen(begin)), 0, "case %zu: %s", i, text);
        free(audit);
    }
}

/* ln 256 is 5.545. */
Test(advice, a_diverged_loss_comes_first) {
    struct audit *audit = make(0.5, 0.5);
    audit->reference.loss = 6.5;
    advise(audit);
    cr_expect_null(json_at(report, "diverged"));
    expect_text("not exact enough");
    audit->reference.loss = 7291.3331;
    audit->subject.config.optimizer.lr = 10;
    advise(audit);
    cr_expect_str_eq(text, "None about precision, since the loss has diverged in fp32.\n");
    snprintf(text, sizeof text, "%s", json_text_at(report, "diverged"));
    expect_text("it is 7.29e+03 in fp32 too");
    expect_text("all 256 tokens give 5.55.");
    expect_text("optimizer.lr (it is 10)");
    cr_expect_null(json_at(report, "advice.configs")->child);
    free(audit);
}

/* The advice names the device, and the formats that are exact enough but slow on it. */
Test(advice, explains_fp32) {
    struct audit *audit = make(0.01, 0.2);
    set_native(audit, false, false);
    audit->subject.be.device.kind = BACKEND_CUDA;
    advise(audit);
    expect_text("fast products on this GPU.\nbf16 is exact enough: error 1.00%, tolerance "
                "5.00%, but without fast products here.\n"
                "fp16 is not exact enough: error 20.0%, tolerance 5.00%.\n");
    free(audit);
}

Test(advice, only_audited_formats_are_advised) {
    struct audit *audit = make(0.001, 0.001);
    audit->formats[AUDIT_BF16].made = false;
    advise(audit);
    cr_expect_str_eq(json_text_at(report, "advice.format"), "fp16");
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
        struct audit *audit = make(0.001, 0.001);
        audit->reference.gradient_noise = cases[i].noise;
        audit->subject.config.train.grad_accum_steps = cases[i].accumulated;
        advise(audit);
        cr_expect_float_eq(json_number_at(report, "advice.tolerance"), cases[i].expected, 1e-12,
                           "case %zu", i);
        free(audit);
    }
}

Test(advice, float32_is_advised_only_where_the_error_matters) {
    struct audit *audit = make(0.2, 0.01); /* tolerance 0.05 */
    audit->formats[AUDIT_BF16].trials[SITE_QKV] = (struct audit_trial){true, 0.16};     /* 20 % */
    audit->formats[AUDIT_BF16].trials[SITE_LM_HEAD] = (struct audit_trial){true, 0.04}; /* 80 % */
    /* 80 % of a harmless error */
    audit->formats[AUDIT_FP16].trials[SITE_LM_HEAD] = (struct audit_trial){true, 0.002};
    advise(audit);
    expect_list("formats.bf16.advised", "lm_head");
    expect_list("formats.fp16.advised", "");
    cr_expect(cJSON_IsTrue(json_at(report, "formats.bf16.fit")), "with the word it is 0.04");
    expect_text("Keep lm_head in float32 in bf16: that alone removes 80.0%");
    expect_text("Nothing has to stay in float32 in fp16: lm_head");
    free(audit);
}

/* The block is a valid config file. */
static void expect_config(const struct audit *audit, int format, unsigned sites, double scale) {
    struct config config;
    char least[80], *sets[] = {least}, name[40];
    snprintf(least, sizeof least, "loss_scale.min_scale=%.17g",
             audit->subject.config.loss_scale.min_scale);
    snprintf(name, sizeof name, "advice.configs.%s", audit_name(format));
    const char *path = in_folder("block.json");
    FILE *file = fopen(path, "w");
    char *json = cJSON_Print(json_at(report, name));
    cr_assert(file && json);
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
}

Test(advice, an_operation_that_overflows_is_kept_in_float32) {
    struct audit *audit = make(0.01, 0.01);
    audit->formats[AUDIT_FP16].needed = BIT(MLP_FC);
    audit->formats[AUDIT_FP16].given = BIT(QKV);
    advise(audit);
    expect_text("Keep mlp_fc in float32 in fp16: without it");
    expect_config(audit, AUDIT_FP16, BIT(MLP_FC) | BIT(QKV), ldexp(1, 19));
    expect_config(audit, AUDIT_BF16, 0, 0);
    free(audit);
}

/* init_scale in the block is at least the config's min_scale and at most 2^32. */
Test(advice, the_scale_stays_in_the_range_of_the_config) {
    static const struct {
        double smallest;
        int safe, advised;
    } cases[] = {{0x1p-14, 20, 19}, {0x1p-14, 120, 32}, {0x1p-14, -14, -14}, {1e-6, -18, -19},
                 {1e-6, -30, -19},  {1000, 5, 10},      {1024, 11, 10},      {65536, 17, 16}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct audit *audit = make(0.01, 0.01);
        audit->subject.config.loss_scale.min_scale = cases[i].smallest;
        audit->formats[AUDIT_FP16].safe_scale = cases[i].safe;
        advise(audit);
        expect_config(audit, AUDIT_FP16, 0, ldexp(1, cases[i].advised));
        bool refused = ldexp(1, cases[i].safe) < cases[i].smallest;
        cr_expect_eq(strstr(text, "loss_scale.min_scale, ") != NULL, refused, "%zu: %s", i, text);
        free(audit);
    }
}

Test(advice, a_residual_that_has_to_be_float32_is_in_the_block) {
    struct audit *audit = make(0.01, 0.01);
    audit->subject.config.autocast.residual = CONFIG_DTYPE_LOWER;
    audit->formats[AUDIT_FP16].needs_residual = true;
    advise(audit);
    expect_text("Keep the residual stream in float32 in fp16 (autocast.residual)");
    cr_expect_null(strstr(text, "float32 in bf16 (autocast.residual)"));
    expect_config(audit, AUDIT_FP16, 0, ldexp(1, 19));
    expect_config(audit, AUDIT_BF16, 0, 0);
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
        struct audit *audit = make(0.01, 0.01);
        audit->subject.repetitions = cases[i].repetitions;
        audit->subject.config.train.grad_accum_steps = cases[i].accumulated;
        audit->formats[AUDIT_FP16].pass.precision.gradients = cases[i].gradients;
        advise(audit);
        expect_text(cases[i].said);
        free(audit);
    }
}

Test(advice, unusable_formats_are_named) {
    struct audit *audit = make(0.01, INFINITY);
    audit->formats[AUDIT_FP16].usable = false;
    advise(audit);
    cr_expect_str_eq(json_text_at(report, "advice.format"), "bf16");
    cr_expect(cJSON_IsFalse(json_at(report, "formats.fp16.fit")));
    expect_text("fp16 cannot hold this model");
    cr_expect_null(strstr(text, "Loss scale"));
    free(audit);
}
