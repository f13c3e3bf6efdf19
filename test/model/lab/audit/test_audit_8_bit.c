/* What an audit says of fp8: figures that the formats bring with them, and trials that must agree.
 */
#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "model/config/config_check.h"
#include "model/config/config_keys.h"
#include "model/lab/audit/audit_8_bit.h"

static const volatile sig_atomic_t running = 0, stopped = 15;

static void make_config(struct config *config) {
    config_defaults(config);
    config->precision = CONFIG_PRECISION_FP8;
    config->device = CONFIG_DEVICE_CPU;
    config->model.n_layer = 2;
    config->model.n_head = 2;
    config->model.n_embd = 64;
    config->model.n_positions = config->data.seq_len = 64;
    config->train.micro_batch_size = 2;
    config_resolve(config);
}

static struct eight_bit_audit audit_of(const struct config *config) {
    struct eight_bit_audit audit;
    struct error error = {0};
    cr_assert_eq(eight_bit_audit_run(&audit, config, NULL, 2, &running, &error), 0, "%s",
                 error.text);
    return audit;
}

/* A relative error that is uniform up to 2^-4 (E5M2: 2^-3) of a power of two: 31.5 and 25.5 dB for
 * values spread over many of them, within a decibel or two for those of a model. */
Test(audit_8_bit, figures_of_the_formats) {
    struct config config;
    make_config(&config);
    struct eight_bit_audit audit = audit_of(&config);
    for (int i = 0; i < LINEAR_COUNT; i++)
        for (int kind = 0; kind < QUANTIZED_KINDS; kind++) {
            const struct eight_bit_operand *o = &audit.operands[i][kind];
            double expected = kind == QUANTIZED_GRADIENT ? 25.5 : 31.5;
            cr_expect(audit.rounds[i]);
            cr_expect_float_eq(o->snr, expected, 2, "%d %d: %g dB", i, kind, o->snr);
            cr_expect_leq(o->worst_snr, o->snr + 0.5);
            cr_expect_eq(o->saturated, 0, "a scale of the tensor itself");
            cr_expect_lt(o->to_zero, 0.01);
        }
}

Test(audit_8_bit, trials) {
    struct config config;
    make_config(&config);
    struct eight_bit_audit audit = audit_of(&config);
    cr_assert_eq(audit.trial_count, 2 + 4 + LINEAR_COUNT);
    const struct eight_bit_trial *bf16 = &audit.trials[0], *own = &audit.trials[1];
    cr_expect_gt(own->gradient_error, 3 * bf16->gradient_error, "%g, bf16 %g", own->gradient_error,
                 bf16->gradient_error);
    cr_expect_lt(own->gradient_error, 0.2);
    cr_expect_eq(own->gradient_error, audit.trials[2].gradient_error, "tensor, hybrid is default");
    cr_expect_eq(own->loss, audit.trials[2].loss);
    cr_expect_neq(audit.trials[2].loss, audit.trials[4].loss, "row has other scales");
    for (int i = 0; i < LINEAR_COUNT; i++) {
        const struct eight_bit_trial *trial = &audit.trials[6 + i];
        cr_expect_eq(strncmp(trial->name, linear_words[i], strlen(linear_words[i])), 0);
        cr_expect_lt(trial->gradient_error, own->gradient_error, "%s", trial->name);
    }
}

/* Nothing is left to round: fp8 is bf16. */
Test(audit_8_bit, a_config_that_keeps_all_out) {
    struct config config;
    make_config(&config);
    for (int i = 0; i < LINEAR_COUNT; i++)
        config.autocast.lower16.items[config.autocast.lower16.count++] = linear_words[i];
    struct eight_bit_audit audit = audit_of(&config);
    cr_expect_eq(audit.trial_count, 2 + 4);
    cr_expect_eq(audit.trials[1].gradient_error, audit.trials[0].gradient_error);
    for (int i = 0; i < LINEAR_COUNT; i++) cr_expect_not(audit.rounds[i]);
}

Test(audit_8_bit, stops_and_prints) {
    struct config config;
    struct eight_bit_audit audit;
    struct error error = {0};
    char *text = NULL;
    size_t size;
    make_config(&config);
    cr_expect_eq(eight_bit_audit_run(&audit, &config, NULL, 2, &stopped, &error), RESULT_STOPPED);
    audit = audit_of(&config);
    FILE *out = open_memstream(&text, &size);
    eight_bit_audit_print(out, &audit);
    fclose(out);
    cr_expect(strstr(text, "mlp_fc weight") && strstr(text, "fp8 row, hybrid"), "%s", text);
    for (const char *line = text; *line; line += strcspn(line, "\n") + (strchr(line, '\n') != NULL))
        cr_expect_leq(strcspn(line, "\n"), 80u);
    free(text);
}

static char *printed(void (*print)(FILE *, const struct eight_bit_audit *),
                     const struct eight_bit_audit *audit) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    print(out, audit);
    fclose(out);
    return text;
}

/* One layer that stands out, and figures that are not finite. */
Test(audit_8_bit, page_and_json) {
    struct eight_bit_audit audit = {.config = "a <b>", .loss = 2, .batches = 3};
    enum { MLP_FC = 2 };
    cr_assert_str_eq(linear_words[MLP_FC], "mlp_fc");
    audit.rounds[MLP_FC] = true;
    audit.dtype[QUANTIZED_GRADIENT] = DTYPE_E5M2;
    audit.operands[MLP_FC][QUANTIZED_GRADIENT] =
        (struct eight_bit_operand){0.25, 0, 26.5, -INFINITY, 7};
    const char *const names[] = {"bf16",   "fp8 as configured", "tensor", "e4m3", "row",
                                 "row e4", "mlp_fc in bf16"};
    for (int i = 0; i < 7; i++) {
        struct eight_bit_trial *trial = &audit.trials[audit.trial_count++];
        *trial = (struct eight_bit_trial){.loss = 2.5, .gradient_error = i == 6 ? 0.01 : 0.1};
        snprintf(trial->name, sizeof trial->name, "%s", names[i]);
    }
    char *text = printed(eight_bit_audit_print_json, &audit);
    cJSON *root = cJSON_Parse(text);
    cr_assert(root, "%s", text);
    cJSON *operands = cJSON_GetObjectItem(root, "operands");
    cr_expect_eq(cJSON_GetArraySize(operands), QUANTIZED_KINDS, "of the one layer");
    cJSON *gradient = cJSON_GetArrayItem(operands, QUANTIZED_GRADIENT);
    cr_expect_str_eq(cJSON_GetObjectItem(gradient, "format")->valuestring, "e5m2");
    cr_expect_eq(cJSON_GetObjectItem(gradient, "to_zero")->valuedouble, 0.25);
    cr_expect_eq(cJSON_GetObjectItem(gradient, "worst_layer")->valueint, 7);
    cr_expect(cJSON_IsNull(cJSON_GetObjectItem(gradient, "worst_snr")));
    cJSON *last = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "trials"), 6);
    cr_expect_eq(cJSON_GetObjectItem(last, "gradient_error")->valuedouble, 0.01);
    cJSON_Delete(root);
    free(text);
    text = printed(eight_bit_audit_print_html, &audit);
    cr_expect(strstr(text, "a &lt;b&gt;") && strstr(text, "removes 90 %"), "%s", text);
    cr_expect(strstr(text, "lower16"), "advice to be copied");
    free(text);
    audit.trials[1].gradient_error = NAN;
    text = printed(eight_bit_audit_print, &audit);
    cr_expect(strstr(text, "use bf16") && !strstr(text, "lower16"), "%s", text);
    free(text);
}
