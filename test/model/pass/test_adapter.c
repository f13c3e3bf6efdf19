/* Adapters on frozen models: what is trained, the same bits with any recompute level, and the same
 * result as a model with merged weights. */
#include "kernels/observer.h"
#include "model/pass/adapter.h"
#include "model/pass/forward.h"
#include "test/model/trainer_fixture.h"

enum { STEPS = 3 };

static void set_up(struct config *config, enum config_precision precision, int family,
                   const char *const *targets) {
    rig_config(config, precision);
    set_family(config, family);
    config->adapter.type = CONFIG_ADAPTER_LORA;
    config->adapter.rank = 5;
    config->adapter.alpha = 10;
    for (; targets && *targets; targets++)
        config->adapter.targets.items[config->adapter.targets.count++] = *targets;
}

/* Sets B to values that are not zero. */
static void fill_adapters(struct model *model) {
    for (ptrdiff_t i = 0; i < parameter_adapter_count(model->list); i++) {
        int64_t count = parameter_count(&model->list[i]);
        float *values = malloc((size_t)count * sizeof *values);
        random_normals(values, 0.1f, 3, (uint64_t)i, 0, count);
        masters_upload(&model->masters, model->be, values, model->list[i].offset, count);
        free(values);
    }
    masters_refresh(&model->masters, model->be);
}

static struct digest train(const struct config *config, struct memory_plan *memory) {
    struct rig rig = {.config = *config};
    rig_open(&rig, 2);
    fill_adapters(&rig.trainer.model);
    rig_steps(&rig, STEPS);
    cr_expect_str_eq(rig.be.failure.text, "");
    *memory = rig.trainer.model.memory;
    struct digest digest = rig_digest(&rig);
    rig_close(&rig);
    return digest;
}

Test(adapter, trains_with_the_same_bits_at_any_recompute_level) {
    static const int families[] = {0, 1, 2, 5};
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        for (size_t f = 0; f < COUNT(families); f++) {
            struct config config;
            struct digest digests[3];
            struct memory_plan memory[3];
            if (test_leaves_out(p + f)) continue;
            set_up(&config, rig_precisions[p], families[f], NULL);
            for (int level = 0; level < 3; level++) {
                config.train.recompute = (enum recompute)level;
                digests[level] = train(&config, &memory[level]);
            }
            expect_same_digest(digests[0], digests[1], "gelu");
            expect_same_digest(digests[0], digests[2], "layer");
            cr_expect_gt(memory[1].activations, memory[2].activations);
        }
}

struct loads {
    struct observer observer;
    int count;
};

static void count_loads(struct observer *observer, enum operation_id id, const void *args) {
    (void)args;
    ((struct loads *)observer)->count += id == ID_block_diagonal_forward;
}

/* The forward pass and the backward pass each round the adapters of a layer once. */
Test(adapter, each_pass_loads_adapters_once) {
    static const char *const targets[] = {"q_proj", "v_proj", "down_proj", NULL};
    struct rig rig = {.trainer.model.be = NULL};
    struct loads loads = {.observer.before = count_loads};
    set_up(&rig.config, CONFIG_PRECISION_BF16, 1, targets);
    rig_open(&rig, 2);
    backend_observe(&rig.be, &loads.observer);
    rig_steps(&rig, 1);
    backend_observe(&rig.be, NULL);
    const int sites = 2; /* q_proj and v_proj are one */
    cr_expect_eq(loads.count, (int)(2 * sites * rig.trainer.model.shape.n_layer *
                                    rig.config.train.grad_accum_steps));
    rig_close(&rig);
}

static float *base_values(const struct model *model) {
    int64_t count = model->count - model->trained_count;
    float *values = malloc((size_t)count * sizeof *values);
    masters_download(&model->masters, model->be, values, model->trained_count, count);
    return values;
}

/* Only the adapters have gradients and moments, and only they change. */
Test(adapter, leaves_the_base_as_it_is) {
    static const char *const targets[] = {"q_proj", "v_proj", NULL};
    for (size_t p = 0; p < COUNT(rig_precisions); p++) {
        struct rig rig = {.trainer.model.be = NULL};
        set_up(&rig.config, rig_precisions[p], 1, targets);
        rig_open(&rig, 2);
        struct model *model = &rig.trainer.model;
        cr_expect_eq(parameter_adapter_count(model->list), 2 * 2 * model->shape.n_layer);
        cr_expect_eq(tensor_count(&model->gradients), model->trained_count);
        cr_expect_eq(tensor_count(&rig.trainer.optimizer.moments[0]), model->trained_count);
        float *before = base_values(model);
        rig_steps(&rig, STEPS);
        float *after = base_values(model);
        size_t bytes = (size_t)(model->count - model->trained_count) * sizeof *before;
        cr_expect_eq(memcmp(before, after, bytes), 0, "the base changed");
        free(before);
        free(after);
        rig_close(&rig);
    }
}

/* Inputs of linear layers that no gradient reads again share memory. */
Test(adapter, saves_only_inputs_of_adapted_layers) {
    static const char *const few[] = {"o_proj", NULL};
    struct config config;
    struct memory_plan all, some;
    set_up(&config, CONFIG_PRECISION_BF16, 1, NULL);
    train(&config, &all);
    set_up(&config, CONFIG_PRECISION_BF16, 1, few);
    train(&config, &some);
    cr_expect_lt(some.activations, all.activations);
}

static const struct parameter *named(const struct parameter *list, const char *name) {
    for (ptrdiff_t i = 0; i < arrlen(list); i++)
        if (strcmp(list[i].name, name) == 0) return &list[i];
    return NULL;
}

/* Returns A or B of a weight, or NULL. */
static const struct parameter *part_of(const struct parameter *list, const char *weight,
                                       const char *part) {
    char name[128];
    snprintf(name, sizeof name, "%.*s%s", (int)(strlen(weight) - strlen("weight")), weight, part);
    return named(list, name);
}

/* Copies the weights of the base, plus scale B A. */
static void merge(struct model *plain, const struct model *adapted) {
    float *from = masters_values(adapted), *to = masters_values(plain);
    bool out_in = adapted->shape.weights_out_in;
    for (ptrdiff_t i = 0; i < arrlen(plain->list); i++) {
        const struct parameter *w = &plain->list[i];
        const struct parameter *a = part_of(adapted->list, w->name, "lora_A.weight");
        const struct parameter *b = part_of(adapted->list, w->name, "lora_B.weight");
        memcpy(to + w->offset, from + named(adapted->list, w->name)->offset,
               (size_t)parameter_count(w) * sizeof *to);
        int64_t rank = a ? a->extent.rows : 0, inputs = a ? a->extent.columns : 0;
        for (int64_t k = 0; a && k < parameter_count(w); k++) {
            int64_t row = k / w->extent.columns, column = k % w->extent.columns;
            int64_t out = out_in ? row : column, in = out_in ? column : row;
            double sum = 0;
            for (int64_t r = 0; r < rank; r++)
                sum += (double)from[b->offset + out * rank + r] * from[a->offset + r * inputs + in];
            to[w->offset + k] += (float)(adapted->adapters.scale * sum);
        }
    }
    masters_put(plain, to);
    free(from);
    free(to);
}

/* Sums in another order: a few units of fp32 over two layers. */
Test(adapter, computes_what_merged_weights_compute) {
    for (int family = 0; family < FAMILIES; family++)
        for (int rslora = 0; rslora < 2; rslora++) {
            struct rig rig = {.trainer.model.be = NULL}, merged = {.trainer.model.be = NULL};
            double loss, loss_merged;
            set_up(&rig.config, CONFIG_PRECISION_FP32, family, NULL);
            rig.config.adapter.rslora = rslora;
            merged.config = rig.config;
            merged.config.adapter.type = CONFIG_ADAPTER_NONE;
            rig_open(&rig, 2);
            rig_open(&merged, 2);
            fill_adapters(&rig.trainer.model);
            merge(&merged.trainer.model, &rig.trainer.model);
            cr_expect_eq(trainer_evaluate(&rig.trainer, &loss, &rig.loader, 4, &rig.error), 0);
            cr_expect_eq(
                trainer_evaluate(&merged.trainer, &loss_merged, &merged.loader, 4, &merged.error),
                0);
            cr_expect_float_eq(loss, loss_merged, 4e-6, "family %d: %.8f, merged %.8f", family,
                               loss, loss_merged);
            rig_close(&rig);
            rig_close(&merged);
        }
}
