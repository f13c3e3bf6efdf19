/* Audit of quantized precisions: figures that follow from the formats, and trials that must agree.
 */
#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "model/config/config_check.h"
#include "model/config/config_keys.h"
#include "model/core/quantization.h"
#include "model/lab/audit/audit.h"

static const volatile sig_atomic_t running = 0, stopped = 15;

/* Trials of fp8 before those of parts in bf16: bf16, as configured, five settings, forward. */
enum { FP8_TRIAL_PARTS = 8, ENDS = 2 };

static void make_config(struct config *config) {
    config_defaults(config);
    config->precision = CONFIG_PRECISION_FP8;
    config->device = DEVICE_CPU;
    config->model.n_layer = 2;
    config->model.n_head = 2;
    config->model.n_embd = 64;
    config->model.n_positions = config->data.seq_len = 64;
    config->train.micro_batch_size = 2;
    config_resolve(config);
}

/* Returns the report, to be deleted. */
static cJSON *audit_of(const struct config *config) {
    cJSON *report;
    struct error error = {0};
    cr_assert_eq(quantized_audit_run(&report, config, config->precision, NULL, 2, &running, &error),
                 0, "%s", error.text);
    return report;
}

static double number(const cJSON *array, int index, const char *key) {
    return cJSON_GetObjectItem(cJSON_GetArrayItem(array, index), key)->valuedouble;
}

/* A rounding error that is uniform up to 2^-4 (E5M2: 2^-3) of a power of two gives 31.5 dB (25.5
 * dB) for values spread over many powers; those of a model are within a decibel or two. */
Test(audit_quantized, figures_of_the_formats) {
    struct config config;
    make_config(&config);
    cJSON *report = audit_of(&config), *operands = cJSON_GetObjectItem(report, "operands");
    cr_assert_eq(cJSON_GetArraySize(operands), LINEAR_COUNT * LINEAR_OPERANDS);
    for (int i = 0; i < LINEAR_COUNT * LINEAR_OPERANDS; i++) {
        bool gradient = i % LINEAR_OPERANDS == LINEAR_GRADIENT;
        double snr = number(operands, i, "snr");
        cr_expect_float_eq(snr, gradient ? 25.5 : 31.5, 2, "%d: %g dB", i, snr);
        cr_expect_leq(number(operands, i, "worst_snr"), snr + 0.5);
        cr_expect_eq(number(operands, i, "saturated"), 0, "a scale of the tensor itself");
        cr_expect_lt(number(operands, i, "to_zero"), 0.01);
        cr_expect_str_eq(
            cJSON_GetObjectItem(cJSON_GetArrayItem(operands, i), "format")->valuestring,
            gradient ? "e5m2" : "e4m3");
    }
    cJSON_Delete(report);
}

Test(audit_quantized, trials) {
    struct config config;
    make_config(&config);
    cJSON *report = audit_of(&config), *trials = cJSON_GetObjectItem(report, "trials");
    cr_assert_eq(cJSON_GetArraySize(trials), FP8_TRIAL_PARTS + LINEAR_COUNT + ENDS);
    double bf16 = number(trials, 0, "gradient_error"), own = number(trials, 1, "gradient_error");
    cr_expect(own > 3 * bf16 && own < 0.2, "%g, bf16 %g", own, bf16);
    cr_expect_eq(own, number(trials, 2, "gradient_error"), "tensor, hybrid is default");
    cr_expect_eq(number(trials, 1, "loss"), number(trials, 2, "loss"));
    cr_expect_neq(number(trials, 2, "loss"), number(trials, 4, "loss"), "row has other scales");
    for (int i = 0; i < LINEAR_COUNT; i++) {
        const cJSON *trial = cJSON_GetArrayItem(trials, FP8_TRIAL_PARTS + i);
        const char *name = cJSON_GetObjectItem(trial, "name")->valuestring;
        cr_expect_eq(strncmp(name, linear_names[i], strlen(linear_names[i])), 0);
        cr_expect_lt(number(trials, FP8_TRIAL_PARTS + i, "gradient_error"), own, "%s", name);
    }
    cJSON_Delete(report);
}

/* A trial has the value that the config has not, so none repeats the config's own result. */
Test(audit_quantized, trials_of_the_other_values) {
    static const struct {
        enum config_precision precision;
        bool defaults;
        const char *names[4];
    } cases[] = {
        {CONFIG_PRECISION_MXFP8,
         true,
         {"mxfp8 hybrid", "mxfp8 floor scales", "forward pass in bf16"}},
        {CONFIG_PRECISION_MXFP8,
         false,
         {"mxfp8 e4m3", "mxfp8 scales rounded up", "forward pass quantized"}},
        {CONFIG_PRECISION_NVFP4,
         true,
         {"nvfp4 to nearest", "nvfp4 without Hadamard", "nvfp4 without squares",
          "forward pass in bf16"}},
        {CONFIG_PRECISION_NVFP4,
         false,
         {"nvfp4 stochastic", "nvfp4 with Hadamard", "nvfp4 with squares",
          "forward pass quantized"}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct config config;
        make_config(&config);
        config.precision = cases[k].precision;
        config.mx.format = cases[k].defaults ? CONFIG_FORMAT_E4M3 : CONFIG_FORMAT_HYBRID;
        config.mx.scales = cases[k].defaults ? CONFIG_SCALES_UP : CONFIG_SCALES_FLOOR;
        config.nvfp4.stochastic_rounding = config.nvfp4.hadamard = cases[k].defaults;
        config.nvfp4.square_blocks = cases[k].defaults;
        config.autocast.lower16_forward = !cases[k].defaults;
        cJSON *report = audit_of(&config), *trials = cJSON_GetObjectItem(report, "trials");
        double own = number(trials, 1, "gradient_error");
        for (int i = 0; i < 4 && cases[k].names[i]; i++) {
            const cJSON *trial = cJSON_GetArrayItem(trials, 2 + i);
            cr_expect_str_eq(cJSON_GetObjectItem(trial, "name")->valuestring, cases[k].names[i]);
            cr_expect_neq(number(trials, 2 + i, "gradient_error"), own, "%s", cases[k].names[i]);
        }
        cJSON_Delete(report);
    }
}

/* Blocks of 32 whose scales are rounded up: nothing saturates. Values of E2M1 have a spacing of 1/2
 * to 1/8 of themselves: the figures of normal values, rounded to the nearest with a scale that is
 * exact, are 20.5 dB (simulated); the scales' own rounding and stochastic rounding cost some. */
Test(audit_quantized, figures_of_blocks) {
    static const struct {
        enum config_precision precision;
        double snr, within;
        const char *format;
    } cases[] = {{CONFIG_PRECISION_MXFP8, 31.5, 1, "e4m3"},
                 {CONFIG_PRECISION_NVFP4, 19, 2.5, "e2m1"}};
    for (size_t k = 0; k < 2; k++) {
        struct config config;
        make_config(&config);
        config.precision = cases[k].precision;
        cJSON *report = audit_of(&config), *operands = cJSON_GetObjectItem(report, "operands");
        cJSON *trials = cJSON_GetObjectItem(report, "trials");
        cr_assert_eq(cJSON_GetArraySize(operands), LINEAR_COUNT * LINEAR_OPERANDS);
        for (int i = 0; i < LINEAR_COUNT * LINEAR_OPERANDS; i++) {
            double snr = number(operands, i, "snr");
            cr_expect_float_eq(snr, cases[k].snr, cases[k].within, "%d: %g dB", i, snr);
            cr_expect_eq(number(operands, i, "saturated") > 0, k == 1, "%d", i);
            cr_expect_str_eq(
                cJSON_GetObjectItem(cJSON_GetArrayItem(operands, i), "format")->valuestring,
                cases[k].format);
        }
        double error = number(trials, 1, "gradient_error");
        double cosine = number(trials, 1, "gradient_cosine");
        /* For a difference at right angles to the gradient. */
        cr_expect_float_eq(cosine, 1 / sqrt(1 + error * error), 0.3 * error * error + error * 0.05);
        cr_expect_gt(number(trials, 0, "gradient_cosine"), cosine);
        cJSON_Delete(report);
    }
}

/* Nothing is quantized if all layers are in bf16: fp8 equals bf16. */
Test(audit_quantized, a_config_that_keeps_all_out) {
    struct config config;
    make_config(&config);
    for (int i = 0; i < LINEAR_COUNT; i++)
        config.autocast.lower16.items[config.autocast.lower16.count++] = linear_names[i];
    cJSON *report = audit_of(&config), *trials = cJSON_GetObjectItem(report, "trials");
    cr_expect_eq(cJSON_GetArraySize(trials), FP8_TRIAL_PARTS + ENDS);
    cr_expect_eq(number(trials, 1, "gradient_error"), number(trials, 0, "gradient_error"));
    cr_expect_eq(cJSON_GetArraySize(cJSON_GetObjectItem(report, "operands")), 0);
    cJSON_Delete(report);
}

Test(audit_quantized, stops) {
    struct config config;
    cJSON *report;
    struct error error = {0};
    make_config(&config);
    cr_expect_eq(quantized_audit_run(&report, &config, config.precision, NULL, 2, &stopped, &error),
                 RESULT_STOPPED);
}

Test(audit_quantized, advice) {
    static const struct {
        double quantized, best;
        const char *said;
    } cases[] = {
        {0.1, 0.01,
         "mlp_fc in bf16 removes 90 % of the error of the gradients: consider "
         "\"autocast\": {\"lower16\": [\"mlp_fc\"]}."},
        {0.1, 0.09, "No single part stands out: mlp_fc in bf16 removes 10 % of the error."},
        {(double)NAN, 0.01, "Something is not finite in fp8: use bf16."}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cJSON *trials = cJSON_CreateArray();
        for (int k = 0; k < 5; k++) {
            cJSON *trial = cJSON_CreateObject();
            bool best = k == 4;
            if (k > 2)
                cJSON_AddStringToObject(trial, "config",
                                        best ? "{\"lower16\": [\"mlp_fc\"]}" : "{}");
            cJSON_AddStringToObject(trial, "name", best ? "mlp_fc in bf16" : "qkv in bf16");
            cJSON_AddNumberToObject(trial, "gradient_error",
                                    best ? cases[i].best : cases[i].quantized);
            cJSON_AddItemToArray(trials, trial);
        }
        cJSON *advice = quantized_advice(trials, CONFIG_PRECISION_FP8);
        cr_expect_str_eq(advice->child->valuestring, cases[i].said);
        cJSON_Delete(advice);
        cJSON_Delete(trials);
    }
}
