/* Layout of the parameters, their initial values, and the padding that must not be touched. */
#include "model/config/config_check.h"
#include "model/core/model_initialize.h"
#include "test/model/trainer_fixture.h"

static void open_laid_out(struct rig *rig, struct model *model) {
    rig_open_backend(rig, test_device(), 1);
    cr_assert_eq(
        model_open(model, &rig->config, &rig->precision, &rig->be, PURPOSE_TRAINING, &rig->error),
        0, "%s", rig->error.text);
}

static void open_allocated(struct rig *rig, struct model *model) {
    open_laid_out(rig, model);
    backend_plan_begin(&rig->be);
    cr_assert_eq(backend_plan_end(&rig->be, &rig->error), 0, "%s", rig->error.text);
    cr_assert_eq(model_allocate(model, &rig->error), 0, "%s", rig->error.text);
}

static void close_gpt(struct rig *rig, struct model *model) {
    model_close(model);
    backend_close(&rig->be);
}

/* Tensors of Hugging Face's GPT-2, in any order. */
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

static const struct parameter *find(const struct model *model, const char *name) {
    const struct parameter *found = NULL;
    for (ptrdiff_t i = 0; i < arrlen(model->list); i++)
        if (strcmp(model->list[i].name, name) == 0) {
            cr_expect_null(found, "%s stands twice", name);
            found = &model->list[i];
        }
    cr_assert_not_null(found, "%s is missing", name);
    return found;
}

static void expect_shape(const struct parameter *p, int64_t rows, int64_t columns, bool decay) {
    cr_expect_eq(p->extent.rows, rows, "%s", p->name);
    cr_expect_eq(p->extent.columns, columns, "%s", p->name);
    cr_expect_eq(p->group == GROUP_DECAYED, decay, "%s", p->name);
}

Test(model, every_parameter_once) {
    struct rig rig = {0};
    struct model model;
    rig_config(&rig.config, CONFIG_PRECISION_BF16);
    rig.config.model.n_layer = 12;
    open_laid_out(&rig, &model);
    cr_assert_eq(arrlen(model.list), 4 + 12 * (ptrdiff_t)COUNT(layer_known));
    expect_shape(find(&model, "wte.weight"), RIG_VOCABULARY, 32, true);
    expect_shape(find(&model, "wpe.weight"), RIG_LENGTH, 32, true);
    expect_shape(find(&model, "ln_f.weight"), 32, 0, false);
    expect_shape(find(&model, "ln_f.bias"), 32, 0, false);
    for (int layer = 0; layer < 12; layer++)
        for (size_t i = 0; i < COUNT(layer_known); i++) {
            const struct known *k = &layer_known[i];
            char name[64];
            snprintf(name, sizeof name, "h.%d.%s", layer, k->name);
            expect_shape(find(&model, name), 32 * k->rows, 32 * k->columns, k->decay);
        }
    int64_t embeddings = (RIG_VOCABULARY + RIG_LENGTH) * 32, layer = 12 * 32 * 32 + 13 * 32;
    cr_expect_eq(shape_parameter_count(&model.shape), embeddings + 12 * layer + 2 * 32);
    close_gpt(&rig, &model);
}

/* Number of elements of a parameter, with the padding rows of the embedding. */
static int64_t extent(const struct model *model, const struct parameter *p) {
    bool embedding = strcmp(p->name, "wte.weight") == 0;
    return (embedding ? model->shape.padded_vocab : p->extent.rows) *
           (p->extent.columns ? p->extent.columns : 1);
}

Test(model, offsets_are_aligned_dense_and_grouped_by_decay) {
    static const int widths[] = {24, 32, 50, 128};
    for (size_t w = 0; w < COUNT(widths); w++) {
        struct rig rig = {0};
        struct model model;
        rig_config(&rig.config, CONFIG_PRECISION_BF16);
        rig.config.model.n_embd = widths[w];
        open_laid_out(&rig, &model);
        int64_t at = 0;
        for (ptrdiff_t i = 0; i < arrlen(model.list); i++) {
            const struct parameter *p = &model.list[i];
            cr_expect_eq(p->offset % PARAMETER_ALIGNMENT, 0, "%s", p->name);
            cr_expect(p->offset >= at && p->offset < at + PARAMETER_ALIGNMENT,
                      "%s at %d, expected %d", p->name, (int)p->offset, (int)at);
            cr_expect(i == 0 || model.list[i - 1].group <= p->group, "%s: decayed late", p->name);
            at = p->offset + extent(&model, p);
        }
        cr_expect(model.count >= at && model.count < at + PARAMETER_ALIGNMENT);
        close_gpt(&rig, &model);
    }
}

/* A value for each element of the flat order, none of which is exact in 16 bits. */
static float value_at(int64_t element) {
    return 1.0f + (float)(element % 8000 + 1) * 0x1p-20f + (float)(element % 7);
}

static float rounded(float value, enum dtype dtype) {
    if (dtype == DTYPE_F16) return f32_from_f16(f16_from_f32(value));
    return dtype == DTYPE_BF16 ? f32_from_bf16(bf16_from_master(value)) : value;
}

/* The tensor that operations read equals the parameter's master weights, rounded to the site's
 * dtype. */
static void expect_read(const struct tensor *tensor, const char *name, enum autocast_site site,
                        struct model *model) {
    const struct parameter *p = find(model, name);
    cr_expect_eq(tensor->dtype, model->precision.site[site], "%s", name);
    cr_expect_eq(tensor_count(tensor), extent(model, p), "%s", name);
    cr_expect_eq(tensor_columns(tensor), p->extent.columns ? p->extent.columns : p->extent.rows,
                 "%s", name);
    masters_ready(&model->masters, model->be, p->layer, p->layer);
    masters_cast(&model->masters, model->be, p->layer, p->site);
    float *values = rig_floats(model->be, tensor);
    for (int64_t i = 0; i < tensor_count(tensor); i++)
        cr_assert_eq(values[i], rounded(value_at(p->offset + i), tensor->dtype), "%s[%d]", name,
                     (int)i);
    free(values);
}

static void expect_gradient(const struct tensor *tensor, const char *name,
                            const struct model *model) {
    const struct parameter *p = find(model, name);
    cr_expect_eq((char *)tensor->data,
                 (char *)model->gradients.data +
                     (size_t)p->offset * dtype_bytes(model->gradients.dtype),
                 "gradient of %s", name);
    cr_expect_eq(tensor_count(tensor), extent(model, p), "gradient of %s", name);
}

/* The embedding adds master weights: split ones with their remainders. */
static void expect_token_table(const struct model *model) {
    const struct parameter *wte = find(model, "wte.weight");
    const struct tensor *table = &model->token_table;
    for (int64_t i = 0; i < tensor_count(table); i++) {
        float value = value_at(wte->offset + i), found;
        if (model->token_remainder)
            join_masters(&found, (uint16_t *)table->data + i, model->token_remainder + i, 1);
        else found = ((float *)table->data)[i];
        cr_assert_eq(found, value);
    }
}

/* Operations kept in fp32 read the master weights, the others their copies, in every form. */
static void check_places(enum config_precision precision, enum config_copy copy, const char *kept,
                         bool lower_gradients) {
    struct rig rig = {0};
    struct model model;
    rig_config(&rig.config, precision);
    rig.config.weights.copy = copy;
    if (kept) rig.config.autocast.float32 = (struct config_words){1, {kept}};
    if (lower_gradients) rig.config.gradients.dtype = CONFIG_DTYPE_LOWER;
    open_allocated(&rig, &model);
    float *values = malloc((size_t)model.count * sizeof *values);
    for (int64_t i = 0; i < model.count; i++) values[i] = value_at(i);
    masters_put(&model, values);
    free(values);
    for (ptrdiff_t i = 0; i < arrlen(model.list); i++) {
        const struct parameter *p = &model.list[i];
        expect_read(parameter_tensor(&model.weights, p), p->name, p->site, &model);
        expect_gradient(parameter_tensor(&model.dweights, p), p->name, &model);
    }
    expect_token_table(&model);
    cr_expect_eq(model.gradients.dtype,
                 lower_gradients ? model.precision.compute_dtype : DTYPE_F32);
    close_gpt(&rig, &model);
}

Test(model, operations_read_rounded_masters) {
    for (int p = 0; p < 3; p++)
        for (int copy = CONFIG_COPY_AUTO; copy <= CONFIG_COPY_CAST; copy++) {
            check_places(rig_precisions[p], (enum config_copy)copy, NULL, false);
            check_places(rig_precisions[p], (enum config_copy)copy, "lm_head", true);
            check_places(rig_precisions[p], (enum config_copy)copy, "mlp_fc", false);
        }
}

/* Parts of the flat order that begin and end anywhere, across groups. */
Test(model, masters_are_read_and_written_in_parts) {
    for (int p = 0; p < 3; p++) {
        struct rig rig = {0};
        struct model model;
        rig_config(&rig.config, rig_precisions[p]);
        rig.config.autocast.float32 = (struct config_words){1, {"mlp_fc"}};
        open_allocated(&rig, &model);
        float *wanted = calloc((size_t)model.count, sizeof *wanted);
        for (uint64_t part = 0; part < 50; part++) {
            int64_t first = (int64_t)(random_bits(1, 0, part) % (uint64_t)model.count);
            int64_t count =
                (int64_t)(random_bits(1, 1, part) % (uint64_t)(model.count - first + 1));
            for (int64_t i = first; i < first + count; i++)
                wanted[i] = (float)random_normal(1, part + 2, (uint64_t)i);
            masters_upload(&model.masters, &rig.be, wanted + first, first, count);
            float *found = malloc((size_t)count * sizeof *found + 1);
            masters_download(&model.masters, &rig.be, found, first, count);
            cr_expect_eq(memcmp(found, wanted + first, (size_t)count * sizeof *found), 0);
            free(found);
        }
        float *all = masters_values(&model);
        cr_expect_eq(memcmp(all, wanted, (size_t)model.count * sizeof *all), 0);
        free(all);
        free(wanted);
        close_gpt(&rig, &model);
    }
}

static float *values_of(struct model *model, const char *name, int64_t *count) {
    const struct parameter *p = find(model, name);
    *count = parameter_count(p);
    float *values = malloc((size_t)*count * sizeof *values);
    masters_download(&model->masters, model->be, values, p->offset, *count);
    return values;
}

/* Mean and standard deviation within five standard errors, and the share beyond two sigmas as in
 * a normal distribution. */
static void expect_normal(struct model *model, const char *name, double sigma) {
    int64_t count;
    float *x = values_of(model, name, &count);
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

static void expect_all(struct model *model, const char *name, float value) {
    int64_t count;
    float *x = values_of(model, name, &count);
    for (int64_t i = 0; i < count; i++) cr_assert_eq(x[i], value, "%s[%d]", name, (int)i);
    free(x);
}

Test(model, initial_weights_are_those_of_gpt2) {
    struct rig rig = {0};
    struct model model;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig.config.model.n_layer = 8;
    rig.config.model.n_embd = 96;
    open_allocated(&rig, &model);
    model_initialize(&model, 1);
    expect_normal(&model, "wte.weight", 0.02);
    expect_normal(&model, "wpe.weight", 0.02);
    expect_all(&model, "ln_f.weight", 1);
    expect_all(&model, "ln_f.bias", 0);
    for (int layer = 0; layer < 8; layer += 7) {
        char name[64];
        for (size_t i = 0; i < COUNT(layer_known); i++) {
            const char *short_name = layer_known[i].name;
            snprintf(name, sizeof name, "h.%d.%s", layer, short_name);
            if (strstr(name, "bias")) expect_all(&model, name, 0);
            else if (strstr(name, "ln_")) expect_all(&model, name, 1);
            else expect_normal(&model, name, strstr(name, "c_proj") ? 0.02 / 4 : 0.02);
        }
    }
    close_gpt(&rig, &model);
}

/* No two matrices may have a sequence of weights in common. */
Test(model, initial_weights_differ_everywhere) {
    struct rig rig = {0};
    struct model model;
    int64_t count, other_count;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    open_allocated(&rig, &model);
    model_initialize(&model, 1);
    float *a = values_of(&model, "h.0.attn.c_attn.weight", &count);
    static const char *const others[] = {"h.1.attn.c_attn.weight", "h.0.mlp.c_fc.weight",
                                         "wte.weight", "wpe.weight"};
    for (size_t o = 0; o < COUNT(others); o++) {
        float *b = values_of(&model, others[o], &other_count);
        int64_t same = 0, least = count < other_count ? count : other_count;
        for (int64_t i = 0; i < least; i++) same += a[i] == b[i];
        cr_expect_lt(same, 3, "%d values of %s are those of another", (int)same, others[o]);
        free(b);
    }
    free(a);
    close_gpt(&rig, &model);
}

static struct digest digest_of(struct model *model) {
    struct digest digest;
    struct sha256 hash;
    sha256_begin(&hash);
    rig_hash_masters(&hash, model);
    rig_hash_copies(&hash, model);
    sha256_end(digest.hex, &hash);
    return digest;
}

static struct digest initial_digest(uint64_t seed, int threads) {
    struct rig rig = {0};
    struct model model;
    rig_config(&rig.config, CONFIG_PRECISION_BF16);
    rig_open_backend(&rig, test_device(), threads);
    cr_assert_eq(
        model_open(&model, &rig.config, &rig.precision, &rig.be, PURPOSE_TRAINING, &rig.error), 0,
        "%s", rig.error.text);
    cr_assert_eq(model_allocate(&model, &rig.error), 0, "%s", rig.error.text);
    memset(model.parameter_memory, 0x7f, 1000);
    model_initialize(&model, seed);
    struct digest digest = digest_of(&model);
    close_gpt(&rig, &model);
    return digest;
}

Test(model, initial_weights_are_a_function_of_the_seed) {
    struct digest first = initial_digest(1, 1), second = initial_digest(1, 3);
    cr_expect_str_eq(first.hex, second.hex, "another thread count, other weights");
    cr_expect_str_neq(first.hex, initial_digest(2, 1).hex);
    cr_expect_str_neq(first.hex, initial_digest(UINT64_C(1) << 40, 1).hex);
}

/* All elements that are not parameters: gaps between them, and rows beyond the vocabulary. */
static void expect_padding_zero(const struct model *model, float *values, const char *what) {
    for (ptrdiff_t i = 0; i < arrlen(model->list); i++)
        memset(values + model->list[i].offset, 0,
               (size_t)parameter_count(&model->list[i]) * sizeof *values);
    for (int64_t i = 0; i < model->count; i++)
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
    struct model *model = &rig.trainer.model;
    cr_expect_eq(model->shape.padded_vocab % VOCAB_ALIGNMENT, 0);
    cr_expect_geq(model->shape.padded_vocab, vocabulary);
    cr_expect_lt(model->shape.padded_vocab, vocabulary + VOCAB_ALIGNMENT);
    rig_steps(&rig, 4);
    struct tensor *moments = rig.trainer.optimizer.moments;
    expect_padding_zero(model, rig_floats(&rig.be, &model->gradients), "gradients");
    expect_padding_zero(model, masters_values(model), "masters");
    expect_padding_zero(model, rig_floats(&rig.be, &moments[0]), "first moments");
    expect_padding_zero(model, rig_floats(&rig.be, &moments[1]), "second moments");
    rig_close(&rig);
}

Test(model, padding_stays_zero_in_training) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++) {
        check_padding(rig_precisions[p], 61, 32);
        check_padding(rig_precisions[p], 61, 128);
        check_padding(rig_precisions[p], 250, 256);
        check_padding(rig_precisions[p], 129, 50);
    }
}
