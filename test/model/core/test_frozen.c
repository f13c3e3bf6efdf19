/* Frozen models stored in each dtype and format, under adapters. */
#include "data/util/min_max.h"
#include "model/optimize/snapshot.h"
#include "test/model/trainer_fixture.h"

enum { STEPS = 2 };

/* Matrices that are no multiples of a block, fused ones included. */
static void set_up(struct config *config, enum config_precision precision, int family,
                   enum config_base base) {
    rig_config(config, precision);
    set_family(config, family);
    config->model.n_inner = 37;
    config->adapter.type = CONFIG_ADAPTER_LORA;
    config->adapter.rank = 3;
    config->adapter.base = base;
}

static float round_to(float value, enum dtype dtype) {
    uint32_t stored;
    float buffer;
    dtype_store(&stored, dtype, 0, &value, 1);
    return *dtype_widen(&buffer, &stored, dtype, 0, 1);
}

/* Makes the weights of `plain`, which are fp32, those that operations of `stored` read. */
static void copy_weights(struct model *plain, const struct model *stored) {
    float *values = masters_values(stored);
    for (ptrdiff_t i = 0; i < arrlen(stored->list); i++) {
        const struct parameter *p = &stored->list[i];
        bool read = p->extent.columns > 0 && p != parameter_wte(stored->list) && !p->adapter &&
                    p->site != SITE_EMBEDDING && stored->precision.frozen != DTYPE_F32;
        for (int64_t k = 0; read && k < parameter_count(p); k++)
            values[p->offset + k] =
                round_to(values[p->offset + k], stored->precision.site[p->site]);
    }
    masters_put(plain, values);
    free(values);
}

static struct digest trained(struct rig *rig) {
    struct digest digest;
    struct sha256 hash;
    const struct model *model = &rig->trainer.model;
    float *values = masters_values(model);
    sha256_begin(&hash);
    sha256_add(&hash, values, (size_t)model->trained_count * sizeof *values);
    rig_hash_moments(&hash, &rig->trainer.optimizer);
    sha256_end(digest.hex, &hash);
    free(values);
    return digest;
}

/* Sets B, which would be zero, to values that are not. */
static void fill_adapters(struct model *model) {
    float *values = malloc((size_t)model->trained_count * sizeof *values);
    random_normals(values, 0.1f, 3, 1, 0, model->trained_count);
    for (ptrdiff_t i = 0; i < parameter_adapter_count(model->list); i++)
        masters_upload(&model->masters, model->be, values + model->list[i].offset,
                       model->list[i].offset, parameter_count(&model->list[i]));
    free(values);
}

static void expect_same_training(struct config *config) {
    struct rig stored = {.config = *config}, plain = {.config = *config};
    char what[80];
    snprintf(what, sizeof what, "precision %d, base %d, positions %d", (int)config->precision,
             (int)config->adapter.base, (int)config->model.positions);
    plain.config.adapter.base = CONFIG_BASE_FLOAT32;
    plain.config.train.recompute = RECOMPUTE_NONE;
    rig_open(&stored, 2);
    rig_open(&plain, 2);
    fill_adapters(&stored.trainer.model);
    copy_weights(&plain.trainer.model, &stored.trainer.model);
    for (int step = 0; step < STEPS; step++) {
        double loss = rig_step(&stored).loss, expected = rig_step(&plain).loss;
        cr_expect_eq(loss, expected, "%s: loss %.9g, not %.9g", what, loss, expected);
    }
    cr_expect_str_eq(stored.be.failure.text, "");
    expect_same_digest(trained(&stored), trained(&plain), what);
    rig_close(&stored);
    rig_close(&plain);
}

/* The bits equal those of a model whose fp32 weights are the stored values. */
Test(frozen, trains_like_its_values_in_fp32) {
    static const int families[] = {0, 1};
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        for (size_t f = 0; f < COUNT(families); f++)
            for (int base = CONFIG_BASE_BFLOAT16; base <= CONFIG_BASE_FP8_BLOCK; base++) {
                struct config config;
                set_up(&config, rig_precisions[p], families[f], (enum config_base)base);
                /* A tied table in fp16 is embedded as it is, and cast for a head in bf16. Ties of
                 * that cast go to even, but those of fp32 weights away from zero. */
                if (f == 0 && base == CONFIG_BASE_FLOAT16) continue;
                if (test_leaves_out(p + f + (size_t)base)) continue;
                if (base % 2) config.train.recompute = RECOMPUTE_LAYER;
                expect_same_training(&config);
            }
}

Test(frozen, operations_in_fp32_read_it_too) {
    static const enum config_base bases[] = {CONFIG_BASE_AUTO, CONFIG_BASE_NF4};
    for (size_t i = 0; i < COUNT(bases); i++) {
        struct config config;
        set_up(&config, CONFIG_PRECISION_BF16, 1, bases[i]);
        config.autocast.float32 = (struct config_words){2, {"mlp_fc", "lm_head"}};
        expect_same_training(&config);
    }
}

/* Linear layers are quantized, other matrices in 16 bit, and vectors in fp32. */
/* On a CPU few rows read quantized matrices as they are, with the bits of dequantized ones. */
Test(frozen, few_rows_read_it_as_stored) {
    static int32_t tokens[6] = {3, 14, 15, 9, 26, 5}, targets[6] = {14, 15, 9, 26, 5, 3};
    for (int base = CONFIG_BASE_NF4; base <= CONFIG_BASE_FP8_BLOCK; base++)
        for (size_t p = 0; p < COUNT(rig_precisions); p++) {
            struct rig rig = {0};
            set_up(&rig.config, rig_precisions[p], 1, (enum config_base)base);
            rig_open(&rig, 2);
            struct model *model = &rig.trainer.model;
            fill_adapters(model);
            rig_evaluate(model, tokens, targets, 1, 6);
            float *stored = rig_floats(&rig.be, &model->activations.logits);
            memset(rig.be.device.stored_rows, 0, sizeof rig.be.device.stored_rows);
            rig_evaluate(model, tokens, targets, 1, 6);
            float *read = rig_floats(&rig.be, &model->activations.logits);
            cr_expect_arr_eq(stored, read, 6 * 64 * sizeof *read);
            cr_expect_neq(read[1], read[2]);
            free(stored), free(read);
            rig_close(&rig);
        }
}

Test(frozen, stores_each_kind_of_parameter) {
    struct rig rig = {.trainer.model.be = NULL};
    set_up(&rig.config, CONFIG_PRECISION_BF16, 1, CONFIG_BASE_NF4);
    rig_open(&rig, 1);
    const struct model *model = &rig.trainer.model;
    int quantized = 0;
    for (ptrdiff_t i = parameter_adapter_count(model->list); i < arrlen(model->list); i++) {
        const struct parameter *p = &model->list[i];
        const struct master_group *group = model->masters.groups;
        while (p->offset >= group->first + group->count) group++;
        bool linear = p->extent.columns > 0 && linear_index(p->site) >= 0;
        cr_expect_eq(group->format, linear ? WEIGHT_NF4 : WEIGHT_PLAIN, "%s", p->name);
        quantized += linear;
        cr_expect_eq(group->master.data == NULL, linear, "%s", p->name);
        if (!linear)
            cr_expect_eq(group->master.dtype, p->extent.columns ? DTYPE_BF16 : DTYPE_F32, "%s",
                         p->name);
    }
    cr_expect_eq(quantized, 7 * model->shape.n_layer);
    cr_expect_eq(model->token_table.dtype, DTYPE_BF16);
    cr_expect_null(model->token_remainder);
    rig_close(&rig);
}

/* A parameter's codes do not depend on the pieces it is uploaded in. */
Test(frozen, is_uploaded_in_pieces) {
    static const enum config_base bases[] = {CONFIG_BASE_BFLOAT16, CONFIG_BASE_NF4,
                                             CONFIG_BASE_FP8};
    for (size_t b = 0; b < COUNT(bases); b++) {
        struct rig rig = {.trainer.model.be = NULL};
        set_up(&rig.config, CONFIG_PRECISION_BF16, 1, bases[b]);
        rig_open(&rig, 1);
        struct model *model = &rig.trainer.model;
        float *values = malloc((size_t)model->count * sizeof *values);
        random_normals(values, 0.02f, 9, 1, 0, model->count);
        masters_put(model, values);
        float *whole = masters_values(model);
        memset(values, 0, (size_t)model->count * sizeof *values);
        masters_put(model, values);
        random_normals(values, 0.02f, 9, 1, 0, model->count);
        for (ptrdiff_t i = 0; i < arrlen(model->list); i++) {
            const struct parameter *p = &model->list[i];
            const float *from = values + p->offset;
            cr_assert_eq(masters_upload_begin(&model->masters, p, &rig.error), 0);
            for (int64_t last = parameter_count(p); last > 0; last -= 101) {
                int64_t first = last > 101 ? last - 101 : 0;
                masters_upload(&model->masters, model->be, from + first, p->offset + first,
                               last - first);
            }
            masters_upload_end(&model->masters, model->be, p, NULL);
        }
        float *pieces = masters_values(model);
        for (ptrdiff_t i = 0; i < arrlen(model->list); i++) {
            const struct parameter *p = &model->list[i];
            size_t bytes = (size_t)parameter_count(p) * sizeof *values;
            cr_expect_eq(memcmp(pieces + p->offset, whole + p->offset, bytes), 0, "%s", p->name);
        }
        free(values);
        free(whole);
        free(pieces);
        rig_close(&rig);
    }
}

/* A copy for saving has the adapters and their moments only. */
Test(frozen, is_not_copied_for_saving) {
    struct rig rig = {.trainer.model.be = NULL};
    set_up(&rig.config, CONFIG_PRECISION_BF16, 1, CONFIG_BASE_NF4);
    rig.config.checkpoint.background = true;
    rig.config.checkpoint.every = 5;
    rig_open(&rig, 1);
    snapshot_plan(&rig.trainer);
    const struct model *model = &rig.trainer.model;
    size_t trained_bytes = 3 * (size_t)model->trained_count * sizeof(float);
    cr_expect_geq(model->memory.snapshot, trained_bytes);
    cr_expect_leq(model->memory.snapshot, trained_bytes + 3 * ARENA_ALIGNMENT, "%zu for %zu",
                  model->memory.snapshot, trained_bytes);
    rig_close(&rig);
}

/* Opens a run whose memory is not the host's, with adapters that are not zero. */
static void open_separate(struct rig *rig) {
    rig_open_separate(rig, 2);
    fill_adapters(&rig->trainer.model);
}

/* Trains with validations in between, which end with other layers in the buffers than a step. The
 * steps before and after have graphs where the device supports them. */
static struct digest train(const struct config *config, bool streams, struct memory_plan *plan) {
    struct rig rig = {.config = *config};
    struct sha256 hash;
    struct digest digest;
    double losses[3];
    rig.config.offload.weights = streams;
    open_separate(&rig);
    *plan = rig.trainer.model.memory;
    for (size_t i = 0; i < COUNT(losses); i++) {
        rig_steps(&rig, 1 + (int)i);
        cr_expect_eq(trainer_evaluate(&rig.trainer, &losses[i], &rig.loader, 4, &rig.error), 0);
    }
    cr_expect_str_eq(rig.be.failure.text, "");
    const struct digest weights = rig_digest(&rig);
    sha256_begin(&hash);
    sha256_add(&hash, losses, sizeof losses);
    sha256_add(&hash, weights.hex, sizeof weights.hex);
    sha256_end(digest.hex, &hash);
    rig_close(&rig);
    return digest;
}

/* Buffers for two layers take the place of all, with one layer, two, and more of both parities. */
static void expect_streams(const struct config *config, const char *what) {
    struct memory_plan here, streamed;
    const struct digest expected = train(config, false, &here);
    expect_same_digest(expected, train(config, true, &streamed), what);
    const size_t layer = streamed.streamed / (size_t)config->model.n_layer;
    cr_expect_gt(layer, 0);
    cr_expect_eq(here.streamed, 0);
    cr_expect_eq(here.host, streamed.host);
    cr_expect_eq(here.master + (size_t)MIN(config->model.n_layer, BACKEND_SLOTS) * layer,
                 streamed.master + streamed.streamed, "%s", what);
}

Test(frozen, streams_layers_with_the_same_bits) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        for (int base = CONFIG_BASE_AUTO; base <= CONFIG_BASE_FP8_BLOCK; base++) {
            struct config config;
            char what[80];
            set_up(&config, rig_precisions[p], (base + 1) % 2, (enum config_base)base);
            config.model.n_layer = 1 + ((int)p + base) % 5;
            config.train.recompute = (enum recompute)(base % 3);
            if (test_leaves_out(p + (size_t)base)) continue;
            snprintf(what, sizeof what, "precision %zu, base %d, %d layers", p, base,
                     (int)config.model.n_layer);
            expect_streams(&config, what);
        }
}

/* Moments of adapters in host memory beside the streamed layers. */
Test(frozen, streams_layers_beside_offloaded_moments) {
    struct config config;
    struct memory_plan plan;
    set_up(&config, CONFIG_PRECISION_BF16, 1, CONFIG_BASE_NF4);
    config.model.n_layer = 3;
    const struct digest expected = train(&config, false, &plan);
    config.offload.optimizer = true;
    expect_same_digest(expected, train(&config, true, &plan), "both");
    cr_expect_gt(plan.host, 0);
    cr_expect_gt(plan.streamed, 0);
}

/* Training takes the memory of the plan, which is smaller by the layers that are not in buffers. */
Test(frozen, streamed_layers_leave_the_device) {
    double peaks[2];
    /* CPUs know the peak of the whole process, and GPUs hand out 2 MiB at least. */
    if (!test_emulated()) return;
    for (int streams = 0; streams < 2; streams++) {
        struct rig rig = {.trainer.model.be = NULL};
        set_up(&rig.config, CONFIG_PRECISION_BF16, 1, CONFIG_BASE_BFLOAT16);
        rig.config.model.n_layer = 8;
        rig.config.offload.weights = streams;
        open_separate(&rig);
        rig_steps(&rig, 2);
        const struct memory_plan *plan = &rig.trainer.model.memory;
        const double planned = (double)(memory_total(plan) - plan->library);
        peaks[streams] = (double)backend_peak_bytes(&rig.be);
        cr_expect_float_eq(peaks[streams], planned, 0.02 * planned, "%g of %g", peaks[streams],
                           planned);
        if (streams) {
            const double left = (double)plan->streamed * (8 - BACKEND_SLOTS) / 8;
            cr_expect_float_eq(peaks[0] - peaks[1], left, 0.02 * left, "%g, not %g",
                               peaks[0] - peaks[1], left);
        }
        rig_close(&rig);
    }
}

Test(frozen, streaming_needs_a_gpu_and_no_kept_copies) {
    struct config config;
    set_up(&config, CONFIG_PRECISION_BF16, 0, CONFIG_BASE_AUTO);
    config.offload.weights = true;
    rig_expect_refused(&config, true, 1, "offload.weights: there is no GPU");
    config.adapter.type = CONFIG_ADAPTER_NONE;
    config.weights.copy = CONFIG_COPY_KEPT;
    rig_expect_refused(&config, false, 1, "offload.weights: not with weights.copy \"kept\"");
}
