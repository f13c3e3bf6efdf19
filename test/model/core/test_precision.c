/* The dtype of every operation and tensor, for each precision and autocast block. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/error.h"
#include "model/config/config_keys.h"
#include "model/io/config_file.h"
#include "model/core/precision.h"

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

static struct precision resolve(const struct config *config, const struct backend *be, char *note) {
    struct error error = {0};
    struct precision precision;
    memset(&precision, 0xff, sizeof precision);
    cr_assert_eq(precision_resolve(&precision, note, config, be, &error), 0, "%s", error.text);
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

/* A norm at the end of a branch has the dtype of its input, which is left out. */
static void describe(const struct precision *p, char *operations, char *tensors) {
    const enum dtype *of = p->activation;
    enum dtype stored[ACTIVATION_COUNT];
    int count = 0;
    cr_expect_eq(of[ACTIVATION_attention_projection_raw], of[ACTIVATION_attention_projection]);
    cr_expect_eq(of[ACTIVATION_mlp_projection_raw], of[ACTIVATION_mlp_projection]);
    for (int i = 0; i < ACTIVATION_COUNT; i++)
        if (!activation_table[i].residual && i != ACTIVATION_attention_projection_raw &&
            i != ACTIVATION_mlp_projection_raw)
            stored[count++] = of[i];
    cr_assert_eq(count, 11);
    write_letters(operations, "xx xxx xxx xx", p->site);
    write_letters(tensors, "xxxxx xxxx xx", stored);
}

Test(precision, every_operation_and_tensor) {
    for (size_t i = 0; i < sizeof expectations / sizeof *expectations; i++) {
        const struct expectation *e = &expectations[i];
        struct config config;
        char words[200], note[PRECISION_NOTE_MAX], operations[20], tensors[20];
        config_defaults(&config);
        config.precision = e->precision;
        snprintf(words, sizeof words, "%s", e->float32);
        set_words(&config.autocast.float32, words);
        struct precision p = resolve(&config, &cpu, note);
        describe(&p, operations, tensors);
        cr_expect_str_eq(operations, e->operations, "%s: [%s]", config_precision_name(e->precision),
                         e->float32);
        cr_expect_str_eq(tensors, e->tensors, "%s: [%s]", config_precision_name(e->precision),
                         e->float32);
        cr_expect_eq(p.residual, DTYPE_F32);
        cr_expect_eq(p.gradients, DTYPE_F32);
        cr_expect_eq(p.scale_loss, e->precision == FP16);
        cr_expect_str_eq(note, "");
    }
}

Test(precision, residual_and_gradients_in_low_precision) {
    static const enum dtype lowers[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (int i = 0; i < 3; i++)
        for (int bits = 0; bits < 4; bits++) {
            struct config config;
            char note[PRECISION_NOTE_MAX];
            config_defaults(&config);
            config.precision = (enum config_precision)i;
            if (bits & 1) config.autocast.residual = CONFIG_DTYPE_LOWER;
            if (bits & 2) config.gradients.dtype = CONFIG_DTYPE_LOWER;
            struct precision p = resolve(&config, &cpu, note);
            cr_expect_eq(p.compute_dtype, lowers[i]);
            cr_expect_eq(p.residual, bits & 1 ? lowers[i] : DTYPE_F32);
            cr_expect_eq(p.gradients, bits & 2 ? lowers[i] : DTYPE_F32);
            cr_expect_eq(p.site[SITE_LAYERNORM], DTYPE_F32);
            cr_expect_eq(precision_branch_is_residual(&p), i == 0 || bits & 1);
        }
}

Test(precision, branches_share_the_residual_gradient_only_if_all_dtypes_agree) {
    struct config config;
    char note[PRECISION_NOTE_MAX];
    config_defaults(&config);
    config.precision = BF16;
    config.autocast.float32 = (struct config_words){1, {"attention_projection"}};
    struct precision p = resolve(&config, &cpu, note);
    cr_expect_not(precision_branch_is_residual(&p));
    config.autocast.float32 = (struct config_words){2, {"mlp_projection", "attention_projection"}};
    p = resolve(&config, &cpu, note);
    cr_expect(precision_branch_is_residual(&p));
    config.autocast.residual = CONFIG_DTYPE_LOWER;
    p = resolve(&config, &cpu, note);
    cr_expect_not(precision_branch_is_residual(&p));
}

Test(precision, autocast_off_is_fp32_everywhere) {
    for (int i = 0; i < 4; i++) {
        struct config config;
        const struct backend able = {
            .device = {.name = "cpu",
                       .computes = {[DTYPE_BF16] = true},
                       .native = {[DTYPE_F16] = true, [DTYPE_BF16] = true}}};
        char note[PRECISION_NOTE_MAX], operations[20], tensors[20];
        config_defaults(&config);
        config.precision = (enum config_precision)i;
        config.autocast.enabled = false;
        config.autocast.residual = CONFIG_DTYPE_LOWER;
        config.gradients.dtype = CONFIG_DTYPE_LOWER;
        struct precision p = resolve(&config, &able, note);
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
        char note[PRECISION_NOTE_MAX];
        be.device.native[DTYPE_BF16] = devices[i].bf16;
        be.device.native[DTYPE_F16] = devices[i].fp16;
        config_defaults(&config);
        config.precision = CONFIG_PRECISION_AUTO;
        struct precision p = resolve(&config, &be, note);
        cr_expect_eq(p.compute_dtype, devices[i].chosen);
        cr_expect_eq(p.scale_loss, devices[i].chosen == DTYPE_F16);
        cr_expect_not_null(strstr(note, dtype_name(devices[i].chosen)), "%s", note);
        cr_expect_not_null(strstr(note, "cpu"), "%s", note);
        cr_expect_lt(strlen(note), 80u);
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
        char note[PRECISION_NOTE_MAX];
        config_defaults(&config);
        config.precision = (enum config_precision)i;
        cr_expect_eq(resolve(&config, &cpu, note).compute_dtype,
                     resolve(&config, &able, note).compute_dtype);
        cr_expect_str_eq(note, "");
    }
}

Test(precision, a_device_without_bf16_is_an_error_that_proposes_fp16) {
    const struct backend old = {.device = {.kind = BACKEND_CUDA,
                                           .name = "cuda",
                                           .description = "Turing",
                                           .native = {[DTYPE_F16] = true}}};
    struct precision precision;
    struct config config;
    char note[PRECISION_NOTE_MAX];
    struct error error = {0};
    config_defaults(&config);
    config.precision = CONFIG_PRECISION_BF16;
    cr_expect_eq(precision_resolve(&precision, note, &config, &old, &error), -1);
    cr_expect(strstr(error.text, "Turing") && strstr(error.text, "\"fp16\""), "%s", error.text);
    config.autocast.enabled = false; /* then nothing runs in bf16 */
    cr_expect_eq(precision_resolve(&precision, note, &config, &old, &error), 0);
    config.autocast.enabled = true;
    config.precision = CONFIG_PRECISION_AUTO;
    cr_expect_eq(resolve(&config, &old, note).compute_dtype, DTYPE_F16);
    cr_expect(strstr(note, "GPU has fp16"), "%s", note);
}

/* fp8 is bf16 except that some operands are rounded once more. */
Test(precision, linear_layers_have_8_bits_unless_the_config_keeps_them_out) {
    struct config config, bf16;
    char note[PRECISION_NOTE_MAX];
    config_defaults(&bf16);
    bf16.precision = CONFIG_PRECISION_BF16;
    config = bf16;
    config.precision = CONFIG_PRECISION_FP8;
    struct precision p = resolve(&config, &cpu, note), expected = resolve(&bf16, &cpu, note);
    cr_expect_str_eq(note, "");
    cr_expect(p.fp8 && !expected.fp8);
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
    p = resolve(&config, &cpu, note);
    cr_expect(p.fp8 && !p.quantized_site[SITE_MLP_FC] && !p.quantized_site[SITE_QKV] &&
              p.quantized_site[SITE_MLP_PROJECTION]);
    cr_expect_eq(p.site[SITE_QKV], DTYPE_F32);
    cr_expect_eq(p.site[SITE_MLP_FC], DTYPE_BF16);
    config.autocast.enabled = false;
    p = resolve(&config, &cpu, note);
    cr_expect_not(p.fp8);
    cr_expect_str_eq(precision_name(&p), "fp32");
}

Test(precision, sums_of_tensor_cores_are_for_cpus) {
    struct backend gpu = {.device = {.kind = BACKEND_CUDA,
                                     .description = "a GPU",
                                     .native_8_bit = true,
                                     .computes = {[DTYPE_BF16] = true}}};
    struct precision precision;
    struct config config;
    struct error error;
    char text[1000], note[PRECISION_NOTE_MAX];
    config_defaults(&config);
    config.precision = CONFIG_PRECISION_FP8;
    config.fp8.sums = CONFIG_SUMS_ADA;
    precision = resolve(&config, &cpu, note);
    precision_warnings(&precision, &config, text, sizeof text);
    cr_expect_str_eq(text, "");
    cr_expect_eq(precision_resolve(&precision, note, &config, &gpu, &error), -1);
    cr_expect_not_null(strstr(error.text, "fp8.sums is for CPUs"), "%s", error.text);
    config.fp8.recipe = CONFIG_RECIPE_BLOCK;
    precision = resolve(&config, &cpu, note);
    precision_warnings(&precision, &config, text, sizeof text);
    cr_expect_not_null(strstr(text, "fp8.sums has no effect"), "%s", text);
}

/* A part of the blocks is rounded up. */
Test(precision, blocks_that_are_not_quantized) {
    static const struct {
        double first, last;
        int64_t begin, end;
    } cases[] = {{0, 0, 0, 10}, {1, 0.15, 1, 8}, {0.01, 3, 1, 7}, {0, 0.9, 0, 1}};
    struct config config;
    char note[PRECISION_NOTE_MAX];
    config_defaults(&config);
    config.precision = CONFIG_PRECISION_NVFP4;
    config.model.n_layer = 10;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        config.autocast.lower16_first = cases[i].first;
        config.autocast.lower16_last = cases[i].last;
        struct precision p = resolve(&config, &cpu, note);
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
    struct precision p = resolve(&config, &cpu, note);
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
    char note[PRECISION_NOTE_MAX];
    config_defaults(&config);
    config.precision = CONFIG_PRECISION_FP8;
    cr_expect(resolve(&config, &gpu, note).fp8);
    cr_expect(strstr(note, "without products in it on this GPU"), "%s", note);
    config.fp8.require = true;
    cr_expect_eq(precision_resolve(&precision, note, &config, &gpu, &error), -1);
    cr_expect(strstr(error.text, "fp8.require: Ampere"), "%s", error.text);
    gpu.device.native_8_bit = true;
    cr_expect(resolve(&config, &gpu, note).fp8);
    cr_expect_str_eq(note, "");
    config.precision = CONFIG_PRECISION_AUTO;
    cr_expect_not(resolve(&config, &gpu, note).fp8);
}

static int occurrences(const char *text, const char *word) {
    int count = 0;
    size_t length = strlen(word);
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
        count += (at == text || strchr(" :\n", at[-1])) && strchr(" \n", at[length]);
    return count;
}

/* The banner puts a label of 13 columns before the first line. */
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
    size_t column = 13;
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
        char note[PRECISION_NOTE_MAX];
        config_defaults(&config);
        config.precision = i & 1 ? BF16 : FP16;
        if (i & 2) config.autocast.residual = config.gradients.dtype = CONFIG_DTYPE_LOWER;
        struct precision p = resolve(&config, &cpu, note);
        check_printed(&p);
        config.autocast.float32 =
            (struct config_words){7,
                                  {"qkv", "attention", "attention_projection", "mlp_fc", "gelu",
                                   "mlp_projection", "lm_head"}};
        p = resolve(&config, &cpu, note);
        check_printed(&p);
    }
}

/* Expects the warnings about settings that only another precision would use. */
static void expect_warnings(const char *path, char *const *overrides, int count, const char *text) {
    struct config config;
    struct precision precision;
    struct backend be = {.device = {.name = "cpu",
                                    .computes = {[DTYPE_BF16] = true},
                                    .native = {[DTYPE_BF16] = true}}};
    char note[PRECISION_NOTE_MAX], warnings[ERROR_MAX];
    struct error error = {0};
    cr_assert_eq(config_load(&config, path, overrides, count, &error), 0, "%s", error.text);
    cr_assert_eq(precision_resolve(&precision, note, &config, &be, &error), 0);
    precision_warnings(&precision, &config, warnings, sizeof warnings);
    if (text) cr_assert(strstr(warnings, text), "no \"%s\" in: %s", text, warnings);
    else cr_assert_str_eq(warnings, "");
}

Test(precision, warnings) {
    static char *const scale[] = {"loss_scale.init_scale=8", "autocast.enabled=false"};
    static char *const residual[] = {"autocast.residual=lower"};
    static char *const gradients[] = {"gradients.dtype=lower", "autocast.float32=lm_head"};
    expect_warnings("configs/fp32.json", NULL, 0, NULL);
    expect_warnings("configs/fp32.json", scale, 1, "this run computes in fp32");
    expect_warnings("configs/bf16.json", scale, 1, "this run computes in bf16");
    expect_warnings("configs/quickstart.json", scale, 1, "this run computes in bf16");
    expect_warnings("configs/fp16.json", scale, 1, NULL);
    expect_warnings("configs/fp16.json", scale, 2, "this run computes in fp32");
    expect_warnings("configs/fp32.json", residual, 1, "autocast.residual has no effect");
    expect_warnings("configs/fp32.json", gradients, 2, "gradients.dtype has no effect");
    expect_warnings("configs/fp32.json", gradients, 2, "autocast.float32 has no effect");
    expect_warnings("configs/fp16.json", gradients, 2, NULL);
    static char *const split[] = {"weights.copy=split"}, *const cast[] = {"weights.copy=cast"};
    expect_warnings("configs/fp32.json", cast, 1, "weights.copy has no effect");
    expect_warnings("configs/fp16.json", split, 1, "weights.copy \"split\" has no effect");
    expect_warnings("configs/fp16.json", cast, 1, NULL);
    expect_warnings("configs/bf16.json", cast, 1, NULL);
    expect_warnings("configs/bf16.json", split, 1, NULL);
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
