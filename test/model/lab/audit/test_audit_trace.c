#include "model/lab/audit/audit_trace.h"

#include "model/backward.h"
#include "model/forward.h"
#include "test/model/trainer_fixture.h"

enum { EVENTS_MAX = 400, LABEL_MAX = 80 };

struct event {
    struct product product;
    char label[LABEL_MAX];
};

/* Collects what all operations of a micro-batch produce. */
struct collector {
    struct observer observer; /* first */
    struct gpt *gpt;
    struct event events[EVENTS_MAX];
    int count, operations;
};

/* Tensors that an operation writes, but statistics and losses. */
static int outputs_of(enum operation_id id, const void *all_args) {
    const struct layernorm_forward_args *forward = all_args;
    const struct layernorm_backward_args *backward = all_args;
    const struct matmul_args *product = all_args;
    switch (id) {
    case ID_embedding_forward: return 1;
    case ID_embedding_backward: return 2;
    case ID_layernorm_forward: return forward->sum ? 2 : 1;
    case ID_layernorm_backward: return backward->din_lower ? 4 : 3;
    case ID_matmul: return 1 + (product->gelu_in != NULL) + (product->dbias != NULL);
    case ID_attention_forward: return 1;
    case ID_attention_backward: return 1;
    case ID_cross_entropy: return 1;
    default: cr_assert_fail("operation %s in a micro-batch", operation_name(id)); return 0;
    }
}

static void collect(struct observer *observer, enum operation_id id, const void *args) {
    struct collector *collector = (struct collector *)observer;
    struct product products[PRODUCTS_MAX];
    int count = trace_products(products, collector->gpt, id, args), named = 0;
    cr_assert_leq(collector->count + count, EVENTS_MAX);
    for (int i = 0; i < count; i++) {
        struct event *event = &collector->events[collector->count++];
        event->product = products[i];
        if (products[i].place == PLACE_PARAMETER)
            snprintf(event->label, LABEL_MAX, "%s",
                     collector->gpt->list[products[i].parameter].name);
        else place_label(event->label, LABEL_MAX, products[i].place, products[i].layer);
        named += i == 0 || products[i].tensor.data != products[i - 1].tensor.data;
    }
    int expected = outputs_of(id, args);
    /* The branch below the first norm does not exist; what is written for it is read by nobody. */
    const struct layernorm_backward_args *norm = args;
    if (id == ID_layernorm_backward && norm->din_lower &&
        norm->weight->data == collector->gpt->weights.layers[0].ln1_weight.data)
        expected--;
    cr_expect_eq(named, expected, "%s: %d outputs have a name, of %d", operation_name(id), named,
                 expected);
    collector->operations++;
}

static void open(struct rig *rig, enum config_precision precision, int layers, const char *word,
                 size_t chunk_bytes) {
    rig_config(&rig->config, precision);
    rig->config.model.n_layer = layers;
    rig->config.train.micro_batch_size = 5; /* 160 rows */
    if (word) {
        rig->config.autocast.float32.items[0] = word;
        rig->config.autocast.float32.count = 1;
    }
    rig_open_data(rig);
    rig_open_backend(rig, test_device(), 1);
    if (chunk_bytes) rig->be.device.chunk_bytes = chunk_bytes;
    cr_assert_eq(
        trainer_open(&rig->trainer, &rig->config, &rig->precision, &rig->be, true, rig->error), 0,
        "%s", rig->error);
}

static struct collector *run(struct rig *rig) {
    struct collector *collector = calloc(1, sizeof *collector);
    struct gpt *gpt = &rig->trainer.gpt;
    collector->observer.after = collect;
    collector->gpt = gpt;
    gpt_clear_gradients(gpt);
    cr_assert_eq(batches_put(&rig->trainer.batches, gpt, &rig->loader, 0, rig->error), 0);
    backend_observe(&rig->be, &collector->observer);
    gpt_forward(gpt);
    gpt_loss(gpt, &rig->trainer.scaler->loss_scale, 1);
    gpt_backward(gpt);
    backend_observe(&rig->be, NULL);
    return collector;
}

/* All of every place, once; all parameters. */
static void expect_complete(const struct collector *collector, const struct rig *rig) {
    const struct gpt *gpt = &rig->trainer.gpt;
    int layers = (int)gpt->shape.n_layer;
    for (int place = 0; place < PLACES; place++)
        for (int layer = 0; layer < (place_is_layered(place) ? layers : 1); layer++) {
            int64_t covered = 0, total = -1;
            for (int i = 0; i < collector->count; i++) {
                const struct product *product = &collector->events[i].product;
                if (product->place != (enum place)place || product->layer != layer) continue;
                cr_expect_eq(product->first, covered, "%s", collector->events[i].label);
                covered += tensor_count(&product->tensor);
                total = product->total;
                cr_expect_eq(product->tensor.dtype, place_dtype(place, &rig->precision),
                             "%s: dtype", collector->events[i].label);
            }
            cr_expect_eq(covered, total, "layer %d %s: %lld values of %lld", layer,
                         place_name(place), (long long)covered, (long long)total);
        }
    for (int i = 0; i < (int)arrlen(gpt->list); i++) {
        bool seen = false;
        for (int k = 0; k < collector->count; k++)
            seen = seen || strcmp(collector->events[k].label, gpt->list[i].name) == 0;
        cr_expect(seen, "the gradient of %s has no name", gpt->list[i].name);
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

Test(audit_trace, words_change_dtypes_and_no_names) {
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

/* The head in pieces: the parts of the logits are found where they belong. */
Test(audit_trace, chunks_of_the_head_are_rows_of_one_tensor) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++) {
        struct rig rig;
        open(&rig, rig_precisions[p], 1, NULL, 1);
        cr_assert_eq(rig.trainer.gpt.shape.logit_rows, 64);
        struct collector *collector = run(&rig);
        expect_complete(collector, &rig);
        int chunks = 0;
        for (int i = 0; i < collector->count; i++)
            chunks += collector->events[i].product.place == PLACE_D_LOGITS;
        cr_expect_eq(chunks, 3);
        free(collector);
        rig_close(&rig);
    }
}

/* Places come in the same order in each precision, whatever memory they lie in. */
Test(audit_trace, precisions_have_the_same_sequence) {
    struct collector *first = NULL;
    for (size_t p = 0; p < COUNT(rig_precisions); p++) {
        struct rig rig;
        open(&rig, rig_precisions[p], 3, NULL, 0);
        struct collector *collector = run(&rig);
        if (!first) first = collector;
        cr_assert_eq(collector->count, first->count);
        for (int i = 0; i < collector->count; i++)
            cr_expect_str_eq(collector->events[i].label, first->events[i].label);
        if (collector != first) free(collector);
        rig_close(&rig);
    }
    free(first);
}

static const struct product *find(const struct collector *collector, const char *label) {
    for (int i = 0; i < collector->count; i++)
        if (strcmp(collector->events[i].label, label) == 0) return &collector->events[i].product;
    cr_assert_fail("no %s", label);
    return NULL;
}

/* Names that could be exchanged without any other test noticing. */
Test(audit_trace, names_belong_to_the_tensors_of_the_model) {
    struct rig rig;
    open(&rig, CONFIG_PRECISION_FP16, 3, NULL, 0);
    struct collector *collector = run(&rig);
    const struct activations *all = &rig.trainer.gpt.activations;
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
        {"layer 2 gelu", &a->mlp_gelu},
        {"residual_final", &all->residual_final},
        {"ln_f", &all->lnf_out},
        {"lm_head", &all->logits},
        {"layer 0 residual", &all->layers[0].residual_in},
        {"layer 2 d(mlp_projection)", &all->dbranch},
        {"layer 2 d(mlp_fc)", &all->dhidden},
        {"layer 0 d(qkv)", &all->dqkv},
        {"layer 1 d(residual_mid)", &all->dresidual},
    };
    for (size_t i = 0; i < COUNT(expected); i++)
        cr_expect_eq(find(collector, expected[i].label)->tensor.data, expected[i].tensor->data,
                     "%s", expected[i].label);
    /* Those that share memory come in the order of the passes. */
    cr_expect_lt(find(collector, "layer 2 d(mlp_projection)"),
                 find(collector, "layer 2 d(mlp_fc)"));
    cr_expect_lt(find(collector, "layer 2 d(ln2)"),
                 find(collector, "layer 2 d(attention_projection)"));
    cr_expect_lt(find(collector, "layer 2 d(ln1)"), find(collector, "layer 1 d(mlp_projection)"));
    free(collector);
    rig_close(&rig);
}

Test(audit_trace, words_keep_their_place_in_float32) {
    struct rig rig;
    char note[ERROR_MAX];
    rig_config(&rig.config, CONFIG_PRECISION_FP16);
    rig_open_backend(&rig, DEVICE_CPU, 1);
    for (int place = 0; place < PLACES; place++) {
        unsigned words = place_words(place);
        struct config config = rig.config;
        struct precision precision;
        static const char *const names[] = {
#define X(id, name, policy) name,
            AUTOCAST_OPERATIONS(X)
#undef X
        };
        for (int i = 0; i < AUTOCAST_OPERATION_COUNT; i++)
            if (words & (1u << i))
                config.autocast.float32.items[config.autocast.float32.count++] = names[i];
        cr_assert_eq(precision_resolve(&precision, note, &config, &rig.be, rig.error), 0);
        cr_expect_eq(place_dtype(place, &precision), DTYPE_F32, "%s", place_name(place));
        for (int i = 0; i < config.autocast.float32.count; i++) { /* none of them is too much */
            struct config fewer = config;
            fewer.autocast.float32.items[i] =
                fewer.autocast.float32.items[--fewer.autocast.float32.count];
            cr_assert_eq(precision_resolve(&precision, note, &fewer, &rig.be, rig.error), 0);
            cr_expect_eq(place_dtype(place, &precision), DTYPE_F16, "%s", place_name(place));
        }
    }
    backend_close(&rig.be);
}
