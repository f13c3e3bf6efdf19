/* The dtype of every operation and tensor, for each precision and autocast block. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/error.h"
#include "model/config/config_keys.h"
#include "model/io/config_file.h"
#include "model/core/precision.h"
#include "test/notes.h"

/* Written as letters: f for fp32, h for fp16, b for bf16.
 *   operations: embedding layernorm | qkv attention projection | fc gelu projection | head loss
 *   tensors:    ln1_out qkv qk_raw attention_out projection | ln2_out fc gelu projection | lnf_out
 * logits
 */
struct expectation {
    enum config_precision precision;
    const char *float32; /* autocast.float32, separated by spaces */
    const char *operations, *tensors;
};

#define FP32 CONFIG_PRECISION_FP32
#define FP16 CONFIG_PRECISION_FP16
#define BF16 CONFIG_PRECISION_BF16

static const struct expectation expectations[] = {
    {FP32, "", "ff fff fff ff", "fffff ffff ff"},
    {FP32, "qkv gelu lm_head", "ff fff fff ff", "fffff ffff ff"},
    {BF16, "", "ff bbb bbb bf", "bbbbb bbbb bb"},
    {FP16, "", "ff hhh hhh hf", "hhhhh hhhh hh"},
    /* An operation in fp32 reads its input as it is. A tensor that only fp32 operations use
     * stays fp32; one between an fp32 and a 16-bit operation is 16 bits. */
    {BF16, "qkv", "ff fbb bbb bf", "fbbbb bbbb bb"},
    {BF16, "attention", "ff bfb bbb bf", "bbbbb bbbb bb"},
    {BF16, "attention_projection", "ff bbf bbb bf", "bbbbf bbbb bb"},
    {BF16, "qkv attention", "ff ffb bbb bf", "fffbb bbbb bb"},
    {BF16, "attention attention_projection", "ff bff bbb bf", "bbbff bbbb bb"},
    {BF16, "qkv attention attention_projection", "ff fff bbb bf", "fffff bbbb bb"},
    /* GELU runs in the dtype of its input. */
    {BF16, "mlp_fc", "ff bbb ffb bf", "bbbbb ffbb bb"},
    {BF16, "gelu", "ff bbb bfb bf", "bbbbb bbbb bb"},
    {BF16, "mlp_fc gelu", "ff bbb ffb bf", "bbbbb ffbb bb"},
    {BF16, "mlp_projection", "ff bbb bbf bf", "bbbbb bbbf bb"},
    {BF16, "gelu mlp_projection", "ff bbb bff bf", "bbbbb bbff bb"},
    {BF16, "mlp_fc mlp_projection", "ff bbb fff bf", "bbbbb ffff bb"},
    {BF16, "lm_head", "ff bbb bbb ff", "bbbbb bbbb ff"},
    {FP16, "lm_head attention", "ff hfh hhh ff", "hhhhh hhhh ff"},
    {FP16, "qkv attention attention_projection mlp_fc gelu mlp_projection lm_head", "ff fff fff ff",
     "fffff ffff ff"},
};

static void set_words(struct config_words *words, char *text) {
    words->count = 0;
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        words->items[words->count++] = word;
}

static struct notes notes;

/* Resolves without failure; the reason of an automatic choice is in notes.text. */
static struct precision resolve(const struct config *config, const struct backend *be) {
    struct error error = {0};
    struct precision precision;
    memset(&precision, 0xff, sizeof precision);
    cr_assert_eq(precision_resolve(&precision, notes_open(&notes), config, be, &error), 0, "%s",
                 error.text);
    notes_close(&notes);
    return precision;
}

static const struct backend cpu = {.device = {.name = "cpu", .computes = {[DTYPE_BF16] = true}}};

static char letter(enum dtype dtype) {
    return "fhb"[dtype];
}

static void write_letters(char *text, const char *pattern, const enum dtype *dtypes) {
    for (; *pattern; pattern++) *text++ = *pattern == ' ' ? ' ' : letter(*dtypes++);
    *text = 0;
}

/* Left out are tensors with the dtype of another: the inputs of norms at the end of a branch, q and
 * k that are normalized as a whole, those of gates and of Gated DeltaNets. */
static void describe(const struct precision *p, char *operations, char *tensors) {
    static const enum activation_id alike[][2] = {
        {ACTIVATION_attention_projection_raw, ACTIVATION_attention_projection},
        {ACTIVATION_mlp_projection_raw, ACTIVATION_mlp_projection},
        {ACTIVATION_q_raw, ACTIVATION_qk_raw},
        {ACTIVATION_k_raw, ACTIVATION_qk_raw},
        {ACTIVATION_q_normed, ACTIVATION_qk_raw},
        {ACTIVATION_qkv_gate, ACTIVATION_qk_raw},
        {ACTIVATION_convolved, ACTIVATION_qk_raw},
        {ACTIVATION_delta_raw, ACTIVATION_qk_raw},
        {ACTIVATION_delta_out, ACTIVATION_qk_raw},
        {ACTIVATION_gate, ACTIVATION_attention_out},
        {ACTIVATION_gated, ACTIVATION_attention_out}};

    const enum dtype *of = p->activation;
    enum dtype stored[ACTIVATION_COUNT];
    bool left_out[ACTIVATION_COUNT] = {false};
    int count = 0;
    for (size_t i = 0; i < sizeof alike / sizeof *alike; i++) {
        cr_expect_eq(of[alike[i][0]], of[alike[i][1]]);
        left_out[alike[i][0]] = true;
    }
    for (int i = 0; i < ACTIVATION_COUNT; i++)
        if (!activation_table[i].residual && !left_out[i]) stored[count++] = of[i];
    cr_assert_eq(count, 11);
    write_letters(operations, "xx xxx xxx xx", p->site);
    write_letters(tensors, "xxxxx xxxx xx", stored);
}

Test(precision, every_operation_and_tensor) {
    for (size_t i = 0; i < sizeof expectations / sizeof *expectations; i++) {
        const struct expectation *e = &expectations[i];
        struct config config;
        char words[200], operations[20], tensors[20];
        config_defaults(&config);
        config.precision = e->precision;
        snprintf(words, sizeof words, "%s", e->float32);
        set_words(&config.autocast.float32, words);
        struct precision p = resolve(&config, &cpu);
        describe(&p, operations, tensors);
        cr_expect_str_eq(operations, e->operations, "%s: [%s]", config_precision_name(e->precision),
                         e->float32);
        cr_expect_str_eq(tensors, e->tensors, "%s: [%s]", config_precision_name(e->precision),
                         e->float32);
        cr_expect_eq(p.residual, DTYPE_F32);
        cr_expect_eq(p.gradients, DTYPE_F32);
        cr_expect_eq(p.scale_loss, e->precision == FP16);
        cr_expect_str_eq(notes.text, "");
    }
}

Test(precision, residual_and_gradients_in_low_precision) {
    static const enum dtype lowers[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (int i = 0; i < 3; i++)
        for (int bits = 0; bits < 4; bits++) {
            struct config config;
            config_defaults(&config);
            config.precision = (enum config_precision)i;
            if (bits & 1) config.autocast.residual = CONFIG_DTYPE_LOWER;
            if (bits & 2) config.gradients.dtype = CONFIG_DTYPE_LOWER;
            struct precision p = resolve(&config, &cpu);
            cr_expect_eq(p.compute_dtype, lowers[i]);
            cr_expect_eq(p.residual, bits & 1 ? lowers[i] : DTYPE_F32);
            cr_expect_eq(p.gradients, bits & 2 ? lowers[i] : DTYPE_F32);
            cr_expect_eq(p.site[SITE_LAYERNORM], DTYPE_F32);
            cr_expect_eq(precision_branch_is_residual(&p), i == 0 || bits & 1);
        }
}

Test(precision, branches_share_the_residual_gradient_only_if_all_dtypes_agree) {
    struct config config;
    config_defaults(&config);
    config.precision = BF16;
    config.autocast.float32 = (struct config_words){1, {"attention_projection"}};
    struct precision p = resolve(&config, &cpu);
    cr_expect_not(precision_branch_is_residual(&p));
    config.autocast.float32 = (struct config_words){2, {"mlp_projection", "attention_projection"}};
    p = resolve(&config, &cpu);
    cr_expect(precision_branch_is_residual(&p));
    config.autocast.residual = CONFIG_DTYPE_LOWER;
    p = resolve(&config, &cpu);
    cr_expect_not(precision_branch_is_residual(&p));
}

Test(precision, autocast_off_is_fp32_everywhere) {
    for (int i = 0; i < 4; i++) {
        struct config config;
        const struct backend able = {
            .device = {.name = "cpu",
                       .computes = {[DTYPE_BF16] = true},
                       .native = {[DTYPE_F16] = true, [DTYPE_BF16] = true}}};
        char operations[20], tensors[20];
        config_defaults(&config);
        config.precision = (enum config_precision)i;
        config.autocast.enabled = false;
        config.autocast.residual = CONFIG_DTYPE_LOWER;
        config.gradients.dtype = CONFIG_DTYPE_LOWER;
        struct precision p = resolve(&config, &able);
        describe(&p, operations, tensors);
        cr_expect_str_eq(operations, "ff fff fff ff");
        cr_expect_str_eq(tensors, "fffff ffff ff");
        cr_expect_eq(p.compute_dtype, DTYPE_F32);
        cr_expect_eq(p.residual, DTYPE_F32);
        cr_expect_eq(p.gradients, DTYPE_F32);
        cr_expect_not(p.scale_loss);
    }
}

Test(precision, auto_selects_by_device) {
    static const struct {
        bool bf16, fp16;
        enum dtype chosen;
    } devices[] = {{false, false, DTYPE_F32},
                   {false, true, DTYPE_F16},
                   {true, false, DTYPE_BF16},
                   {true, true, DTYPE_BF16}};
    for (int i = 0; i < 4; i++) {
        struct backend be = {.device = {.name = "cpu", .computes = {[DTYPE_BF16] = true}}};
        struct config config;
        be.device.native[DTYPE_BF16] = devices[i].bf16;
        be.device.native[DTYPE_F16] = devices[i].fp16;
        config_defaults(&config);
        config.precision = CONFIG_PRECISION_AUTO;
        struct precision p = resolve(&config, &be);
        cr_expect_eq(p.compute_dtype, devices[i].chosen);
        cr_expect_eq(p.scale_loss, devices[i].chosen == DTYPE_F16);
        cr_expect_not_null(strstr(notes.text, dtype_name(devices[i].chosen)), "%s", notes.text);
        cr_expect_not_null(strstr(notes.text, "cpu"), "%s", notes.text);
        cr_expect_lt(strlen(notes.text), 80u + strlen("note: \n"), "%s", notes.text);
    }
}

/* A precision given by name is used on any device. */
Test(precision, explicit_choices_ignore_the_device) {
    for (int i = 0; i < 3; i++) {
        const struct backend able = {
            .device = {.name = "cpu",
                       .computes = {[DTYPE_BF16] = true},
                       .native = {[DTYPE_F16] = true, [DTYPE_BF16] = true}}};
        struct config config;
        config_defaults(&config);
        config.precision = (enum config_precision)i;
        cr_expect_eq(resolve(&config, &cpu).compute_dtype, resolve(&config, &able).compute_dtype);
        cr_expect_str_eq(notes.text, "");
    }
}

Test(precision, a_device_without_bf16_is_an_error_that_proposes_fp16) {
    const struct backend old = {.device = {.kind = BACKEND_CUDA,
                                           .name = "cuda",
                                           .description = "Turing",
                                           .native = {[DTYPE_F16] = true}}};
    struct precision precision;
    struct config config;
    struct error error = {0};
    config_defaults(&config);
    config.precision = CONFIG_PRECISION_BF16;
    cr_expect_eq(precision_resolve(&precision, NULL, &config, &old, &error), -1);
    cr_expect(strstr(error.text, "Turing") && strstr(error.text, "\"fp16\""), "%s", error.text);
    config.autocast.enabled = false; /* then nothing runs in bf16 */
    cr_expect_eq(precision_resolve(&precision, NULL, &config, &old, &error), 0);
    config.autocast.enabled = true;
    config.precision = CONFIG_PRECISION_AUTO;
    cr_expect_eq(resolve(&config, &old).compute_dtype, DTYPE_F16);
    cr_expect(strstr(notes.text, "GPU has fp16"), "%s", notes.text);
}

/* fp8 is bf16 except that some operands are rounded once more. */
Test(precision, a_device_without_the_delta_rule_is_an_error_that_proposes_others) {
    struct backend be = {.device = {.description = "Turing"}};
    struct precision precision;
    struct config config;
    struct error error = {0};
    config_defaults(&config);
    config.precision = CONFIG_PRECISION_FP16;
    config.model.full_attention_interval = 4;
    cr_expect_eq(precision_resolve(&precision, NULL, &config, &be, &error), -1);
    cr_expect(strstr(error.text, "Turing cannot compute Gated DeltaNets") &&
                  strstr(error.text, "\"device\": \"cpu\""),
              "%s", error.text);
    config.model.full_attention_interval = 1; /* all layers have attention */
    cr_expect_eq(precision_resolve(&precision, NULL, &config, &be, &error), 0);
    config.model.full_attention_interval = 4;
    be.device.delta_rule = true;
    cr_expect_eq(precision_resolve(&precision, NULL, &config, &be, &error), 0);
}

Test(precision, linear_layers_have_8_bits_unless_the_config_keeps_them_out) {
    struct config config, bf16;
    config_defaults(&bf16);
    bf16.precision = CONFIG_PRECISION_BF16;
    config = bf16;
    config.precision = CONFIG_PRECISION_FP8;
    struct precision p = resolve(&config, &cpu), expected = resolve(&bf16, &cpu);
    cr_expect_str_eq(notes.text, "");
    cr_expect(p.quantizes && !expected.quantizes);
    cr_expect_eq(p.compute_dtype, DTYPE_BF16);
    cr_expect_not(p.scale_loss);
    cr_expect_arr_eq(p.site, expected.site, sizeof p.site);
    cr_expect_arr_eq(p.activation, expected.activation, sizeof p.activation);
    cr_expect_eq(p.masters, expected.masters);
    for (enum autocast_site i = 0; i < AUTOCAST_SITE_COUNT; i++)
        cr_expect_eq(p.quantized_site[i], i == SITE_QKV || i == SITE_ATTENTION_PROJECTION ||
                                              i == SITE_MLP_FC || i == SITE_MLP_PROJECTION);
    cr_expect_str_eq(precision_name(&p), "fp8");
    cr_expect_eq(precision_effective(&p), CONFIG_PRECISION_FP8);
    config.autocast.lower16 = (struct config_words){1, {"mlp_fc"}};
    config.autocast.float32 = (struct config_words){1, {"qkv"}};
    p = resolve(&config, &cpu);
    cr_expect(p.quantizes && !p.quantized_site[SITE_MLP_FC] && !p.quantized_site[SITE_QKV] &&
              p.quantized_site[SITE_MLP_PROJECTION]);
    cr_expect_eq(p.site[SITE_QKV], DTYPE_F32);
    cr_expect_eq(p.site[SITE_MLP_FC], DTYPE_BF16);
    config.autocast.enabled = false;
    p = resolve(&config, &cpu);
    cr_expect_not(p.quantizes);
    cr_expect_str_eq(precision_name(&p), "fp32");
}

/* A part of the blocks is rounded up. */
Test(precision, blocks_that_are_not_quantized) {
    static const struct {
        double first, last;
        int64_t begin, end;
    } cases[] = {{0, 0, 0, 10}, {1, 0.15, 1, 8}, {0.01, 3, 1, 7}, {0, 0.9, 0, 1}};
    struct config config;
    config_defaults(&config);
    config.precision = CONFIG_PRECISION_NVFP4;
    config.model.n_layer = 10;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        config.autocast.lower16_first = cases[i].first;
        config.autocast.lower16_last = cases[i].last;
        struct precision p = resolve(&config, &cpu);
        cr_expect_eq(p.quantized_begin, cases[i].begin);
        cr_expect_eq(p.quantized_end, cases[i].end);
        cr_expect_eq(p.quantized_in_all, i == 0);
        for (int64_t layer = 0; layer < 10; layer++)
            cr_expect_eq(precision_quantizes(&p, SITE_QKV, layer),
                         layer >= cases[i].begin && layer < cases[i].end);
        cr_expect_not(precision_quantizes(&p, SITE_ATTENTION, 5));
        cr_expect_eq(precision_effective(&p), CONFIG_PRECISION_NVFP4);
    }
    config.autocast.lower16_first = 20;
    struct precision p = resolve(&config, &cpu);
    cr_expect_eq(precision_effective(&p), CONFIG_PRECISION_BF16);
}

Test(precision, a_gpu_without_8_bit_matmuls_is_noted_or_refused) {
    struct backend gpu = {.device = {.kind = BACKEND_CUDA,
                                     .description = "Ampere",
                                     .computes = {[DTYPE_BF16] = true},
                                     .native = {[DTYPE_BF16] = true}}};
    struct precision precision;
    struct config config;
    struct error error = {0};
    config_defaults(&config);
    config.precision = CONFIG_PRECISION_FP8;
    cr_expect(resolve(&config, &gpu).quantizes);
    cr_expect(strstr(notes.text, "without products in it on this GPU"), "%s", notes.text);
    config.fp8.require = true;
    cr_expect_eq(precision_resolve(&precision, NULL, &config, &gpu, &error), -1);
    cr_expect(strstr(error.text, "fp8.require: Ampere"), "%s", error.text);
    gpu.device.native_8_bit = true;
    cr_expect(resolve(&config, &gpu).quantizes);
    cr_expect_str_eq(notes.text, "");
    config.precision = CONFIG_PRECISION_AUTO;
    cr_expect_not(resolve(&config, &gpu).quantizes);
}

static int occurrences(const char *text, const char *word) {
    int count = 0;
    size_t length = strlen(word);
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
        count += (at == text || strchr(" :\n", at[-1])) && strchr(" \n", at[length]);
    return count;
}

/* The banner puts a label of 12 columns before the first line. */
static void check_printed(const struct precision *p) {
    static const char *const names[] = {
#define X(id, name, policy) name,
        AUTOCAST_SITES(X)
#undef X
            "residual",
        "gradients"};
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    precision_print(out, p);
    fclose(out);
    for (int i = 0; i < AUTOCAST_SITE_COUNT + 2; i++)
        cr_expect_eq(occurrences(text, names[i]), 1, "%s in: %s", names[i], text);
    size_t column = 12;
    for (const char *at = text; *at; column += strcspn(at, "\n"), at += strcspn(at, "\n")) {
        if (*at == '\n') column = 0, at++;
        cr_expect_leq(column + strcspn(at, "\n"), 80u, "a line of %zu columns in: %s",
                      column + strcspn(at, "\n"), text);
    }
    free(text);
}

Test(precision, printed_lines_fit_and_name_all_once) {
    for (int i = 0; i < 4; i++) {
        struct config config;
        config_defaults(&config);
        config.precision = i & 1 ? BF16 : FP16;
        if (i & 2) config.autocast.residual = config.gradients.dtype = CONFIG_DTYPE_LOWER;
        struct precision p = resolve(&config, &cpu);
        check_printed(&p);
        config.autocast.float32 =
            (struct config_words){7,
                                  {"qkv", "attention", "attention_projection", "mlp_fc", "gelu",
                                   "mlp_projection", "lm_head"}};
        p = resolve(&config, &cpu);
        check_printed(&p);
    }
}

Test(precision, setting_of_auto_is_the_resolved_one) {
    struct precision precision = {.compute_dtype = DTYPE_BF16};
    struct config config = {.precision = CONFIG_PRECISION_AUTO};
    cr_assert_eq(precision_setting(&precision, &config), CONFIG_PRECISION_BF16);
    precision.compute_dtype = DTYPE_F32;
    cr_assert_eq(precision_setting(&precision, &config), CONFIG_PRECISION_FP32);
    config.precision = CONFIG_PRECISION_FP16;
    cr_assert_eq(precision_setting(&precision, &config), CONFIG_PRECISION_FP16);
}
