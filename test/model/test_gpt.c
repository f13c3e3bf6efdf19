/* The layout of the parameters, what they start as, and the padding that nobody may touch. */
#include "model/config/config_check.h"
#include "test/model/trainer_fixture.h"

static void open_laid_out(struct rig *rig, struct gpt *gpt) {
    rig_open_backend(rig, test_device(), 1);
    cr_assert_eq(gpt_open(gpt, &rig->config, &rig->precision, &rig->be, GPT_TRAINING, &rig->error),
                 0, "%s", rig->error.text);
}

static void open_allocated(struct rig *rig, struct gpt *gpt) {
    open_laid_out(rig, gpt);
    backend_plan_begin(&rig->be);
    cr_assert_eq(backend_plan_end(&rig->be, &rig->error), 0, "%s", rig->error.text);
    cr_assert_eq(gpt_allocate(gpt, &rig->error), 0, "%s", rig->error.text);
}

static void close_gpt(struct rig *rig, struct gpt *gpt) {
    gpt_close(gpt);
    backend_close(&rig->be);
}

/* What Hugging Face's GPT-2 has, in any order. */
struct known {
    const char *name;
    int64_t rows, columns; /* in units of n_embd; 0 columns: a vector */
    bool decay;
};
static const struct known layer_known[] = {
    {"ln_1.weight", 1, 0, false},       {"ln_1.bias", 1, 0, false},
    {"attn.c_attn.weight", 1, 3, true}, {"attn.c_attn.bias", 3, 0, false},
    {"attn.c_proj.weight", 1, 1, true}, {"attn.c_proj.bias", 1, 0, false},
    {"ln_2.weight", 1, 0, false},       {"ln_2.bias", 1, 0, false},
    {"mlp.c_fc.weight", 1, 4, true},    {"mlp.c_fc.bias", 4, 0, false},
    {"mlp.c_proj.weight", 4, 1, true},  {"mlp.c_proj.bias", 1, 0, false},
};

static const struct parameter *find(const struct gpt *gpt, const char *name) {
    const struct parameter *found = NULL;
    for (ptrdiff_t i = 0; i < arrlen(gpt->list); i++)
        if (strcmp(gpt->list[i].name, name) == 0) {
            cr_expect_null(found, "%s stands twice", name);
            found = &gpt->list[i];
        }
    cr_assert_not_null(found, "%s is missing", name);
    return found;
}

static void expect_shape(const struct parameter *p, int64_t rows, int64_t columns, bool decay) {
    cr_expect_eq(p->extent.rows, rows, "%s", p->name);
    cr_expect_eq(p->extent.columns, columns, "%s", p->name);
    cr_expect_eq(p->decay, decay, "%s", p->name);
}

Test(gpt, every_parameter_once) {
    struct rig rig = {0};
    struct gpt gpt;
    rig_config(&rig.config, CONFIG_PRECISION_BF16);
    rig.config.model.n_layer = 12;
    open_laid_out(&rig, &gpt);
    cr_assert_eq(arrlen(gpt.list), 4 + 12 * (ptrdiff_t)COUNT(layer_known));
    expect_shape(find(&gpt, "wte.weight"), RIG_VOCABULARY, 32, true);
    expect_shape(find(&gpt, "wpe.weight"), RIG_LENGTH, 32, true);
    expect_shape(find(&gpt, "ln_f.weight"), 32, 0, false);
    expect_shape(find(&gpt, "ln_f.bias"), 32, 0, false);
    for (int layer = 0; layer < 12; layer++)
        for (size_t i = 0; i < COUNT(layer_known); i++) {
            const struct known *k = &layer_known[i];
            char name[64];
            snprintf(name, sizeof name, "h.%d.%s", layer, k->name);
            expect_shape(find(&gpt, name), 32 * k->rows, 32 * k->columns, k->decay);
        }
    int64_t embeddings = (RIG_VOCABULARY + RIG_LENGTH) * 32, layer = 12 * 32 * 32 + 13 * 32;
    cr_expect_eq(shape_parameter_count(&gpt.shape), embeddings + 12 * layer + 2 * 32);
    close_gpt(&rig, &gpt);
}

/* Elements a parameter takes, with the padding rows of the embedding. */
static int64_t extent(const struct gpt *gpt, const struct parameter *p) {
    bool embedding = strcmp(p->name, "wte.weight") == 0;
    return (embedding ? gpt->shape.padded_vocab : p->extent.rows) *
           (p->extent.columns ? p->extent.columns : 1);
}

Test(gpt, offsets_are_aligned_dense_and_grouped_by_decay) {
    static const int widths[] = {24, 32, 50, 128};
    for (size_t w = 0; w < COUNT(widths); w++) {
        struct rig rig = {0};
        struct gpt gpt;
        rig_config(&rig.config, CONFIG_PRECISION_BF16);
        rig.config.model.n_embd = widths[w];
        open_laid_out(&rig, &gpt);
        int64_t at = 0;
        for (ptrdiff_t i = 0; i < arrlen(gpt.list); i++) {
            const struct parameter *p = &gpt.list[i];
            cr_expect_eq(p->offset % PARAMETER_ALIGNMENT, 0, "%s", p->name);
            cr_expect(p->offset >= at && p->offset < at + PARAMETER_ALIGNMENT,
                      "%s at %d, expected %d", p->name, (int)p->offset, (int)at);
            cr_expect_eq(p->decay, p->offset < gpt.decayed, "%s is on the wrong side", p->name);
            at = p->offset + extent(&gpt, p);
            cr_expect(!p->decay || at <= gpt.decayed, "%s spans the border", p->name);
        }
        cr_expect(gpt.count >= at && gpt.count < at + PARAMETER_ALIGNMENT);
        cr_expect_eq(gpt.decayed % PARAMETER_ALIGNMENT, 0);
        close_gpt(&rig, &gpt);
    }
}

static void expect_place(const struct tensor *tensor, const struct tensor *flat, const char *name,
                         const struct gpt *gpt, const char *what) {
    const struct parameter *p = find(gpt, name);
    cr_expect_eq((char *)tensor->data,
                 (char *)flat->data + (size_t)p->offset * dtype_bytes(flat->dtype), "%s of %s",
                 what, name);
    cr_expect_eq(tensor->dtype, flat->dtype, "%s of %s", what, name);
    cr_expect_eq(tensor_count(tensor), extent(gpt, p), "%s of %s", what, name);
    cr_expect_eq(tensor_columns(tensor), p->extent.columns ? p->extent.columns : p->extent.rows,
                 "%s of %s", what, name);
}

/* Operations kept in fp32 read the masters, the others the 16-bit copy. */
static void check_places(const char *kept, bool lower_gradients) {
    struct rig rig = {0};
    struct gpt gpt;
    rig_config(&rig.config, CONFIG_PRECISION_FP16);
    if (kept) rig.config.autocast.float32 = (struct config_words){1, {kept}};
    if (lower_gradients) rig.config.gradients.dtype = CONFIG_DTYPE_LOWER;
    open_allocated(&rig, &gpt);
    for (int layer = 0; layer < 2; layer++) {
#define X(field, hugging_face, shape, id, ...)                                                   \
    {                                                                                            \
        char name[64];                                                                           \
        bool float32 = gpt.precision.site[SITE_##id] == DTYPE_F32;                               \
        snprintf(name, sizeof name, "h.%d.%s", layer, hugging_face);                             \
        expect_place(&gpt.masters.layers[layer].field, &gpt.master, name, &gpt, "master");       \
        expect_place(&gpt.weights.layers[layer].field, float32 ? &gpt.master : &gpt.lower, name, \
                     &gpt, "weight");                                                            \
        expect_place(&gpt.dweights.layers[layer].field, &gpt.gradients, name, &gpt, "gradient"); \
    }
        LAYER_PARAMETERS(X)
#undef X
    }
#define X(field, name, shape, id, ...)                                                        \
    expect_place(&gpt.masters.field, &gpt.master, name, &gpt, "master");                      \
    expect_place(&gpt.weights.field,                                                          \
                 gpt.precision.site[SITE_##id] == DTYPE_F32 ? &gpt.master : &gpt.lower, name, \
                 &gpt, "weight");                                                             \
    expect_place(&gpt.dweights.field, &gpt.gradients, name, &gpt, "gradient");
    MODEL_PARAMETERS(X)
#undef X
    cr_expect_eq(gpt.gradients.dtype, lower_gradients ? DTYPE_F16 : DTYPE_F32);
    close_gpt(&rig, &gpt);
}

Test(gpt, structs_and_list_agree) {
    check_places(NULL, false);
    check_places("lm_head", true);
    check_places("mlp_fc", false);
}

static float *values_of(struct gpt *gpt, const char *name, int64_t *count) {
    struct tensor view = gpt_parameter_view(&gpt->master, find(gpt, name));
    *count = tensor_count(&view);
    return rig_floats(gpt->be, &view);
}

/* Mean and deviation within five standard errors, and the share beyond two sigmas as a normal
 * distribution has it. */
static void expect_normal(struct gpt *gpt, const char *name, double sigma) {
    int64_t count;
    float *x = values_of(gpt, name, &count);
    double sum = 0, squares = 0, beyond = 0, n = (double)count;
    for (int64_t i = 0; i < count; i++) {
        sum += x[i];
        squares += (double)x[i] * x[i];
        beyond += fabs(x[i]) > 2 * sigma;
    }
    cr_expect_lt(fabs(sum / n), 5 * sigma / sqrt(n), "%s: mean %g", name, sum / n);
    cr_expect_lt(fabs(sqrt(squares / n) / sigma - 1), 5 / sqrt(2 * n), "%s: deviation %g", name,
                 sqrt(squares / n));
    cr_expect_lt(fabs(beyond / n - 0.0455), 5 * sqrt(0.0455 / n), "%s: %g beyond two sigmas", name,
                 beyond / n);
    free(x);
}

static void expect_all(struct gpt *gpt, const char *name, float value) {
    int64_t count;
    float *x = values_of(gpt, name, &count);
    for (int64_t i = 0; i < count; i++) cr_assert_eq(x[i], value, "%s[%d]", name, (int)i);
    free(x);
}

Test(gpt, initial_weights_are_those_of_gpt2) {
    struct rig rig = {0};
    struct gpt gpt;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig.config.model.n_layer = 8;
    rig.config.model.n_embd = 96;
    open_allocated(&rig, &gpt);
    gpt_initialize(&gpt, 1);
    expect_normal(&gpt, "wte.weight", 0.02);
    expect_normal(&gpt, "wpe.weight", 0.02);
    expect_all(&gpt, "ln_f.weight", 1);
    expect_all(&gpt, "ln_f.bias", 0);
    for (int layer = 0; layer < 8; layer += 7) {
        char name[64];
        for (size_t i = 0; i < COUNT(layer_known); i++) {
            const char *short_name = layer_known[i].name;
            snprintf(name, sizeof name, "h.%d.%s", layer, short_name);
            if (strstr(name, "bias")) expect_all(&gpt, name, 0);
            else if (strstr(name, "ln_")) expect_all(&gpt, name, 1);
            else expect_normal(&gpt, name, strstr(name, "c_proj") ? 0.02 / 4 : 0.02);
        }
    }
    close_gpt(&rig, &gpt);
}

/* No two matrices may have a stretch of weights in common. */
Test(gpt, initial_weights_differ_everywhere) {
    struct rig rig = {0};
    struct gpt gpt;
    int64_t count, other_count;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    open_allocated(&rig, &gpt);
    gpt_initialize(&gpt, 1);
    float *a = values_of(&gpt, "h.0.attn.c_attn.weight", &count);
    static const char *const others[] = {"h.1.attn.c_attn.weight", "h.0.mlp.c_fc.weight",
                                         "wte.weight", "wpe.weight"};
    for (size_t o = 0; o < COUNT(others); o++) {
        float *b = values_of(&gpt, others[o], &other_count);
        int64_t same = 0, least = count < other_count ? count : other_count;
        for (int64_t i = 0; i < least; i++) same += a[i] == b[i];
        cr_expect_lt(same, 3, "%d values of %s are those of another", (int)same, others[o]);
        free(b);
    }
    free(a);
    close_gpt(&rig, &gpt);
}

static struct digest digest_of(struct gpt *gpt) {
    struct digest digest;
    struct sha256 hash;
    uint8_t bytes[SHA256_BYTES];
    sha256_begin(&hash);
    rig_hash(&hash, gpt->be, &gpt->master);
    rig_hash(&hash, gpt->be, &gpt->lower);
    sha256_end(&hash, bytes);
    sha256_hex(digest.hex, bytes);
    return digest;
}

static struct digest initial_digest(uint64_t seed, int threads) {
    struct rig rig = {0};
    struct gpt gpt;
    rig_config(&rig.config, CONFIG_PRECISION_BF16);
    rig_open_backend(&rig, test_device(), threads);
    cr_assert_eq(gpt_open(&gpt, &rig.config, &rig.precision, &rig.be, GPT_TRAINING, &rig.error), 0,
                 "%s", rig.error.text);
    cr_assert_eq(gpt_allocate(&gpt, &rig.error), 0, "%s", rig.error.text);
    memset(gpt.parameter_memory, 0x7f, 1000);
    gpt_initialize(&gpt, seed);
    struct digest digest = digest_of(&gpt);
    close_gpt(&rig, &gpt);
    return digest;
}

Test(gpt, initial_weights_are_a_function_of_the_seed) {
    struct digest first = initial_digest(1, 1), second = initial_digest(1, 3);
    cr_expect_str_eq(first.hex, second.hex, "another thread count, other weights");
    cr_expect_str_neq(first.hex, initial_digest(2, 1).hex);
    cr_expect_str_neq(first.hex, initial_digest(UINT64_C(1) << 40, 1).hex);
}

Test(gpt, refresh_rounds_the_masters) {
    for (size_t p = 1; p < COUNT(rig_precisions); p++) {
        struct rig rig = {0};
        struct gpt gpt;
        rig_config(&rig.config, rig_precisions[p]);
        open_allocated(&rig, &gpt);
        gpt_initialize(&gpt, 1);
        const float *master = gpt.master.data;
        const uint16_t *lower = gpt.lower.data;
        for (int64_t i = 0; i < gpt.count; i++)
            cr_assert_eq(lower[i], gpt.lower.dtype == DTYPE_BF16 ? bf16_from_f32(master[i])
                                                                 : f16_from_f32(master[i]));
        close_gpt(&rig, &gpt);
    }
}

/* Everything that is no parameter: gaps between them, and rows beyond the vocabulary. */
static void expect_padding_zero(struct rig *rig, const struct tensor *flat, const char *what) {
    struct gpt *gpt = &rig->trainer.gpt;
    if (!flat->data) return;
    float *values = rig_floats(&rig->be, flat);
    for (ptrdiff_t i = 0; i < arrlen(gpt->list); i++) {
        struct tensor view = gpt_parameter_view(flat, &gpt->list[i]);
        memset(values + gpt->list[i].offset, 0, (size_t)tensor_count(&view) * sizeof *values);
    }
    for (int64_t i = 0; i < gpt->count; i++)
        cr_assert_eq(values[i], 0, "%s[%d] is %g", what, (int)i, values[i]);
    free(values);
}

static void check_padding(enum config_precision precision, int64_t vocabulary, int64_t width) {
    struct rig rig = {0};
    rig_config(&rig.config, precision);
    rig.config.model.vocab_size = vocabulary;
    rig.config.model.n_embd = width;
    rig.config.optimizer.weight_decay = 0.3;
    rig_open(&rig, 1);
    struct gpt *gpt = &rig.trainer.gpt;
    cr_expect_eq(gpt->shape.padded_vocab % VOCAB_ALIGNMENT, 0);
    cr_expect_geq(gpt->shape.padded_vocab, vocabulary);
    cr_expect_lt(gpt->shape.padded_vocab, vocabulary + VOCAB_ALIGNMENT);
    rig_steps(&rig, 4);
    expect_padding_zero(&rig, &gpt->gradients, "gradients");
    expect_padding_zero(&rig, &gpt->master, "masters");
    expect_padding_zero(&rig, &gpt->lower, "lower");
    expect_padding_zero(&rig, &rig.trainer.optimizer.moment1, "moment1");
    expect_padding_zero(&rig, &rig.trainer.optimizer.moment2, "moment2");
    rig_close(&rig);
}

Test(gpt, padding_stays_zero_in_training) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++) {
        check_padding(rig_precisions[p], 61, 32);
        check_padding(rig_precisions[p], 61, 128);
        check_padding(rig_precisions[p], 250, 256);
        check_padding(rig_precisions[p], 129, 50);
    }
}
