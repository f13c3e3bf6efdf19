#include "model/lab/audit/audit_pass.h"

#include "model/pass/backward.h"
#include "model/pass/forward.h"
#include "model/task/objective.h"
#include "test/model/families.h"
#include "test/model/trainer_fixture.h"

enum { EVENTS_MAX = 400, LABEL_MAX = TENSOR_ID_LABEL_MAX };

/* The result is valid until the next call. */
static const char *id_text(int id) {
    static char label[LABEL_MAX];
    return tensor_id_label(label, id, -1);
}

struct event {
    struct traced traced;
    char label[LABEL_MAX];
};

/* Collects the tensors that the operations of a micro-batch write. */
struct collector {
    struct observer observer; /* first member */
    struct model *model;
    struct event events[EVENTS_MAX];
    int count;
};

/* Number of activations, and gradients of them, that an operation writes. */
static int outputs_of(enum operation_id id, const void *all_args) {
    const struct layernorm_forward_args *forward = all_args;
    const struct layernorm_backward_args *backward = all_args;
    const struct matmul_args *matmul = all_args;
    switch (id) {
    case ID_embedding_forward: return 1;
    case ID_embedding_backward: return 0;
    case ID_clear: return 0;
    case ID_quantize: return 0;
    case ID_fake_quantize: return 0;
    case ID_hadamard: return 0;
    case ID_dequantize_blocks: return 0;
    case ID_layernorm_forward: return forward->sum ? 2 : 1;
    case ID_layernorm_backward: return backward->din_lower ? 2 : 1;
    case ID_matmul: return matmul->transpose_a ? 0 : 1 + (matmul->epilogue == MATMUL_GELU);
    case ID_attention_forward: return 1;
    case ID_attention_backward: return 1;
    case ID_cross_entropy: return 1;
    default: cr_assert_fail("operation %s in a micro-batch", operation_name(id)); return 0;
    }
}

/* Expects that each output of an operation of a GPT-2 has a label. With recomputing some operations
 * run twice, and in other models gradients pass through activations. */
static void expect_outputs(const struct model *model, enum operation_id id, const void *args,
                           int named) {
    const struct layernorm_backward_args *norm = args;
    if (model->recompute != RECOMPUTE_NONE || model->shape.weights_out_in) return;
    int expected = outputs_of(id, args);
    /* The branch below the first norm does not exist; its gradient is read by no operation. */
    if (id == ID_layernorm_backward && norm->din_lower &&
        norm->weight->data == model->weights.layers[0].ln1_weight.data)
        expected--;
    cr_expect_eq(named, expected, "%s: %d outputs have a name, of %d", operation_name(id), named,
                 expected);
}

static void collect(struct observer *observer, enum operation_id id, const void *args) {
    struct collector *collector = (struct collector *)observer;
    struct traced traced[TRACED_MAX];
    int count = trace_operation(traced, collector->model, operation_label(id, args)), named = 0;
    cr_assert_leq(collector->count + count, EVENTS_MAX);
    for (int i = 0; i < count; i++) {
        struct event *event = &collector->events[collector->count++];
        event->traced = traced[i];
        tensor_id_label(event->label, traced[i].id, traced[i].layer);
        named += i == 0 || traced[i].tensor.data != traced[i - 1].tensor.data;
    }
    expect_outputs(collector->model, id, args, named);
}

static void open_rig(struct rig *rig, size_t chunk_bytes) {
    rig->config.train.micro_batch_size = 5; /* 160 rows */
    rig_open_data(rig);
    rig_open_backend(rig, test_device(), 1);
    if (chunk_bytes) rig->be.device.chunk_bytes = chunk_bytes;
    cr_assert_eq(trainer_open(&rig->trainer, &rig->config, &rig->precision, &rig->be,
                              TRAINER_INITIALIZED, &rig->error),
                 0, "%s", rig->error.text);
}

static void open(struct rig *rig, enum config_precision precision, int layers, const char *word,
                 size_t chunk_bytes) {
    rig_config(&rig->config, precision);
    rig->config.model.n_layer = layers;
    if (word) {
        rig->config.autocast.float32.items[0] = word;
        rig->config.autocast.float32.count = 1;
    }
    open_rig(rig, chunk_bytes);
}

static struct collector *run(struct rig *rig) {
    struct collector *collector = calloc(1, sizeof *collector);
    struct model *model = &rig->trainer.model;
    collector->observer.after = collect;
    collector->model = model;
    model_clear_gradients(model);
    const struct step_inputs inputs = {.loss_weight = 1};
    cr_assert_eq(batches_put(&rig->trainer.batches, &rig->loader, 0, model->shape.batch, &inputs,
                             &rig->error),
                 0);
    const struct pass pass = trainer_pass(&rig->trainer, true, true);
    backend_observe(&rig->be, &collector->observer);
    model_forward(&pass);
    objective_loss(&pass);
    model_backward(&pass);
    backend_observe(&rig->be, NULL);
    return collector;
}

/* Expects each element of every id exactly once. */
static void expect_complete(const struct collector *collector, const struct rig *rig) {
    const struct model_shape *shape = &rig->trainer.model.shape;
    for (int id = 0; id < TENSOR_IDS; id++)
        for (int layer = 0; layer < tensor_id_layers(id, shape); layer++) {
            const bool absent = tensor_id_is_absent(id, shape, layer);
            int64_t covered = 0, total = absent ? 0 : -1;
            char label[LABEL_MAX];
            tensor_id_label(label, id, layer);
            for (int i = 0; i < collector->count; i++) {
                const struct traced *traced = &collector->events[i].traced;
                if (traced->id != id || traced->layer != layer) continue;
                cr_expect_str_eq(collector->events[i].label, label);
                cr_expect_eq(traced->first, covered, "%s", label);
                covered += tensor_count(&traced->tensor);
                total = traced->total;
                cr_expect_eq(traced->tensor.dtype, tensor_id_dtype(id, &rig->precision),
                             "%s: dtype", label);
            }
            cr_expect_eq(covered, total, "%s: %lld values of %lld", label, (long long)covered,
                         (long long)total);
        }
}

Test(audit_trace, every_tensor_of_a_step_has_a_name) {
    static const int layers[] = {1, 3};
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        for (size_t l = 0; l < COUNT(layers); l++) {
            struct rig rig;
            open(&rig, rig_precisions[p], layers[l], NULL, 0);
            struct collector *collector = run(&rig);
            expect_complete(collector, &rig);
            free(collector);
            rig_close(&rig);
        }
}

Test(audit_trace, every_tensor_of_any_family_has_a_name) {
    for (int family = 0; family < FAMILIES; family++) {
        struct rig rig;
        rig_config(&rig.config, CONFIG_PRECISION_BF16);
        rig.config.model.n_layer = 2;
        set_family(&rig.config, family);
        open_rig(&rig, 0);
        struct collector *collector = run(&rig);
        expect_complete(collector, &rig);
        free(collector);
        rig_close(&rig);
    }
}

Test(audit_trace, settings_change_dtypes_and_no_names) {
    static const char *const words[] = {
        "qkv", "attention", "attention_projection", "mlp_fc", "gelu", "mlp_projection", "lm_head"};
    for (size_t i = 0; i < COUNT(words); i++) {
        struct rig rig;
        open(&rig, CONFIG_PRECISION_FP16, 2, words[i], 0);
        struct collector *collector = run(&rig);
        expect_complete(collector, &rig);
        free(collector);
        rig_close(&rig);
    }
}

/* Each chunk of the logits of a chunked head has the right offset. */
Test(audit_trace, chunks_of_the_head_are_rows_of_one_tensor) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++) {
        struct rig rig;
        open(&rig, rig_precisions[p], 1, NULL, 1);
        cr_assert_eq(rig.trainer.model.shape.logit_rows, 64);
        struct collector *collector = run(&rig);
        expect_complete(collector, &rig);
        int chunks = 0;
        for (int i = 0; i < collector->count; i++)
            chunks += collector->events[i].traced.id == tensor_id_of_gradient(ACTIVATION_logits);
        cr_expect_eq(chunks, 3);
        free(collector);
        rig_close(&rig);
    }
}

/* The order of places is the same in each precision and memory layout, and recomputed tensors are
 * not recorded twice. */
Test(audit_trace, precisions_and_recomputing_have_the_same_sequence) {
    struct collector *first = NULL;
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        for (int level = 0; level <= RECOMPUTE_LAYER; level++) {
            struct rig rig;
            rig_config(&rig.config, rig_precisions[p]);
            rig.config.model.n_layer = 3;
            rig.config.train.recompute = (enum recompute)level;
            open_rig(&rig, 0);
            struct collector *collector = run(&rig);
            expect_complete(collector, &rig);
            if (!first) first = collector;
            cr_assert_eq(collector->count, first->count);
            for (int i = 0; i < collector->count; i++)
                cr_expect_str_eq(collector->events[i].label, first->events[i].label);
            if (collector != first) free(collector);
            rig_close(&rig);
        }
    free(first);
}

static const struct traced *find(const struct collector *collector, const char *label) {
    for (int i = 0; i < collector->count; i++)
        if (strcmp(collector->events[i].label, label) == 0) return &collector->events[i].traced;
    cr_assert_fail("no %s", label);
    return NULL;
}

/* Checks names whose exchange no other test would detect. */
Test(audit_trace, names_belong_to_the_tensors_of_the_model) {
    struct rig rig;
    open(&rig, CONFIG_PRECISION_FP16, 3, NULL, 0);
    struct collector *collector = run(&rig);
    const struct activations *all = &rig.trainer.model.activations;
    const struct layer_activations *a = &all->layers[2];
    const struct {
        const char *label;
        const struct tensor *tensor;
    } expected[] = {
        {"layer 2 residual", &a->residual_in},
        {"layer 2 ln1", &a->ln1_out},
        {"layer 2 qkv", &a->qkv},
        {"layer 2 attention", &a->attention_out},
        {"layer 2 residual_mid", &a->residual_mid},
        {"layer 2 ln2", &a->ln2_out},
        {"layer 2 mlp_fc", &a->mlp_fc},
        {"layer 2 gelu", &a->mlp_activated},
        {"residual_final", &all->residual_final},
        {"ln_f", &all->lnf_out},
        {"lm_head", &all->logits},
        {"layer 0 residual", &all->layers[0].residual_in},
        {"layer 2 d(mlp_projection)", &all->gradients.mlp_projection},
        {"layer 2 d(mlp_fc)", &all->gradients.mlp_fc},
        {"layer 0 d(qkv)", &all->gradients.qkv},
        {"layer 1 d(residual_mid)", &all->gradients.residual_mid},
    };
    for (size_t i = 0; i < COUNT(expected); i++)
        cr_expect_eq(find(collector, expected[i].label)->tensor.data, expected[i].tensor->data,
                     "%s", expected[i].label);
    /* Tensors that share memory come in the order of the passes. */
    cr_expect_lt(find(collector, "layer 2 d(mlp_projection)"),
                 find(collector, "layer 2 d(mlp_fc)"));
    cr_expect_lt(find(collector, "layer 2 d(ln2)"),
                 find(collector, "layer 2 d(attention_projection)"));
    cr_expect_lt(find(collector, "layer 2 d(ln1)"), find(collector, "layer 1 d(mlp_projection)"));
    free(collector);
    rig_close(&rig);
}

Test(audit_trace, float32_settings_keep_their_order) {
    struct rig rig;
    rig_config(&rig.config, CONFIG_PRECISION_FP16);
    rig_open_backend(&rig, DEVICE_CPU, 1);
    for (int id = 0; id < TENSOR_IDS; id++) {
        unsigned sites = tensor_id_sites(id);
        struct config config = rig.config;
        struct precision precision;
        static const char *const names[] = {
#define X(id, name, policy) name,
            AUTOCAST_SITES(X)
#undef X
        };
        for (int i = 0; i < AUTOCAST_SITE_COUNT; i++)
            if (sites & (1u << i))
                config.autocast.float32.items[config.autocast.float32.count++] = names[i];
        cr_assert_eq(precision_resolve(&precision, NULL, &config, &rig.be, &rig.error), 0);
        cr_expect_eq(tensor_id_dtype(id, &precision), DTYPE_F32, "%s", id_text(id));
        for (int i = 0; i < config.autocast.float32.count; i++) { /* each of them is necessary */
            struct config fewer = config;
            fewer.autocast.float32.items[i] =
                fewer.autocast.float32.items[--fewer.autocast.float32.count];
            cr_assert_eq(precision_resolve(&precision, NULL, &fewer, &rig.be, &rig.error), 0);
            cr_expect_eq(tensor_id_dtype(id, &precision), DTYPE_F16, "%s", id_text(id));
        }
    }
    backend_close(&rig.be);
}
