/* The model's memory plan compared with the memory that is assigned and used, and batches of any
 * shape within it. */
#include "model/config/config_keys.h"
#include "model/core/model_initialize.h"
#include "test/model/trainer_fixture.h"

#include "model/pass/forward.h"
#include "model/task/sample.h"

static size_t bytes_of(const struct tensor *tensor) {
    return (tensor_bytes(tensor) + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

/* The plan equals the assigned memory: every tensor lies in its block, and none overlaps
 * another. */
struct block {
    const char *name;
    char *begin, *end;
};

static int by_begin(const void *a, const void *b) {
    const struct block *left = a, *right = b;
    return left->begin < right->begin ? -1 : left->begin > right->begin;
}

static void add_span(struct block **spans, const char *name, const struct tensor *tensor) {
    if (tensor_bytes(tensor) == 0) return;
    struct block span = {name, tensor->data, (char *)tensor->data + tensor_bytes(tensor)};
    arrput(*spans, span);
}

static void check_spans(struct block *spans, char *begin, size_t bytes) {
    qsort(spans, arrlenu(spans), sizeof *spans, by_begin);
    for (ptrdiff_t i = 0; i < arrlen(spans); i++) {
        cr_expect(spans[i].begin >= begin && spans[i].end <= begin + bytes, "%s is outside",
                  spans[i].name);
        if (i)
            cr_expect_geq(spans[i].begin, spans[i - 1].end, "%s overlaps %s", spans[i].name,
                          spans[i - 1].name);
    }
    arrfree(spans);
}

static const struct tensor *tensor_at(const void *owner, size_t field) {
    return (const struct tensor *)((const char *)owner + field);
}

/* Scratch memory is counted once, by the largest of the tensors that share it. */
static void add_scratch(struct block **spans, const struct model *model) {
    const struct activations *all = &model->activations;
    const struct tensor *largest[SCRATCH_COUNT] = {0};
    bool shared = all->gradients.mlp_projection.data == all->gradients.residual_in.data;
    if (model->purpose == PURPOSE_TRAINING)
        cr_expect_eq(shared, precision_branch_is_residual(&model->precision));
    for (int i = 0; i < ACTIVATION_COUNT; i++) {
        const struct activation *a = &activation_table[i];
        const struct tensor *both[] = {
            tensor_at(a->layered ? (const void *)all->layers : all, a->field),
            tensor_at(&all->gradients, a->gradient_field)};
        const enum scratch scratch[] = {a->memory, a->gradient};
        cr_expect_eq(both[0]->dtype, both[1]->dtype, "%s", a->name);
        cr_expect_eq(tensor_count(both[0]), tensor_count(both[1]), "%s", a->name);
        if (a->gradient_in_place) cr_expect_eq(both[0]->data, both[1]->data, "%s", a->name);
        for (int k = 0; k < (model->purpose == PURPOSE_TRAINING ? 2 : 1); k++) {
            const struct tensor **found = &largest[scratch[k]];
            if (*found && scratch[k]) cr_expect_eq((*found)->data, both[k]->data, "%s", a->name);
            if (!*found || tensor_bytes(both[k]) > tensor_bytes(*found)) *found = both[k];
        }
    }
    for (int i = SCRATCH_NONE + 1; i < SCRATCH_COUNT; i++)
        if (largest[i] && !(i == SCRATCH_dbranch && shared)) add_span(spans, "scratch", largest[i]);
}

/* Adds tensors with their own memory, of a layer or of the model (layer -1). */
static void add_own(struct block **spans, const struct model *model, const char *name, bool layered,
                    size_t field, enum recompute recomputed, bool kept) {
    const struct activations *a = &model->activations;
    if (!layered) add_span(spans, name, tensor_at(a, field));
    for (int layer = 0; layered && layer < model->shape.n_layer; layer++) {
        const struct tensor *tensor = tensor_at(&a->layers[layer], field);
        bool first = tensor->data == tensor_at(a->layers, field)->data;
        if (layer == 0 || !first) add_span(spans, name, tensor);
        if (layer > 0) cr_expect_eq(model->recompute >= recomputed || kept, first, "%s", name);
    }
}

/* Adds the arrays of a quantized matrix. Returns their bytes with the arena's alignment. */
static size_t add_quantized_weight(struct block **spans, const struct quantized_weight *w) {
    const struct tensor *arrays[] = {&w->codes, &w->scales, &w->second_scales, &w->mean};
    size_t bytes = 0;
    for (int i = 0; i < (w->second_block ? 4 : 2); i++) {
        add_span(spans, "quantized", arrays[i]);
        bytes += (size_t)round_up((int64_t)bytes_of(arrays[i]), ARENA_ALIGNMENT);
    }
    return bytes;
}

/* Master weights take 4 bytes in any form, frozen ones what their dtype takes; each group has the
 * arrays of its form. */
static void check_masters(struct block **spans, const struct model *model) {
    const struct masters *masters = &model->masters;
    size_t lower = masters->scratch_bytes, stored = 0;
    int64_t count = 0;
    for (ptrdiff_t i = 0; i < arrlen(masters->groups); i++) {
        const struct master_group *group = &masters->groups[i];
        cr_expect_eq(group->first, count, "groups have gaps");
        count += group->count;
        if (group->format != WEIGHT_PLAIN) {
            stored += add_quantized_weight(spans, &group->quantized);
            continue;
        }
        stored += bytes_of(&group->master) * (group->remainder ? 2 : 1);
        add_span(spans, "masters", &group->master);
        cr_expect_eq(group->remainder != NULL, group->form == MASTERS_SPLIT);
        cr_expect_eq(group->copy.data != NULL, group->form == MASTERS_KEPT);
        const struct tensor remainder = {group->remainder, DTYPE_BF16, 1, {group->count}};
        if (group->remainder) add_span(spans, "remainders", &remainder);
        if (group->copy.data) add_span(spans, "copies", &group->copy);
        if (group->copy.data) lower += bytes_of(&group->copy);
    }
    const struct tensor scratch = {
        masters->scratch, DTYPE_BF16, 1, {(int64_t)masters->scratch_bytes / 2}};
    if (masters->scratch_bytes) add_span(spans, "copies of a linear layer", &scratch);
    cr_expect_eq(count, model->count);
    cr_expect_eq(model->memory.master, stored);
    cr_expect_eq(model->memory.copies, lower);
}

/* Adds the tensors of quantization: saved inputs, the largest operand of each kind for all linear
 * layers, and records. */
static void add_quantized(struct block **spans, const struct model *model) {
    const struct model_shape *s = &model->shape;
    const struct quantization *q = &model->quantization;
    int64_t wide = shape_hidden(s) > shape_qkv(s) ? shape_hidden(s) : shape_qkv(s);
    int64_t inputs = s->n_inner > shape_q(s) ? s->n_inner : shape_q(s);
    const int64_t bytes[] = {s->rows * (inputs > s->n_embd ? inputs : s->n_embd),
                             s->n_embd * (wide > inputs ? wide : inputs), s->rows * wide};
    for (int kind = 0; kind < LINEAR_OPERANDS; kind++)
        add_span(spans, "operand",
                 &(struct tensor){q->shared[kind].values,
                                  q->precision.recipe.in_blocks ? DTYPE_BF16 : DTYPE_E4M3,
                                  1,
                                  {bytes[kind]}});
    const enum dtype element =
        q->precision.recipe.format[LINEAR_INPUT][MATMUL_WEIGHT_GRADIENT].element;
    for (int64_t i = 0; i < s->n_layer * LINEAR_COUNT; i++) {
        const int linear = (int)(i % LINEAR_COUNT);
        const int64_t features = linear == 1 ? shape_q(s) : linear == 3 ? s->n_inner : s->n_embd;
        const struct quantized_slot *slot = &q->slots[i * LINEAR_OPERANDS + LINEAR_INPUT];
        if (q->keeps[linear])
            add_span(spans, "kept",
                     &(struct tensor){slot->memory[1].values, element, 1, {s->rows * features}});
    }
    struct tensor records = {q->records, DTYPE_F32, 1, {3 * quantization_count(q)}};
    add_span(spans, "records", &records);
}

static void check_plan(const struct trainer *trainer) {
    const struct model *model = &trainer->model;
    const struct optimizer *optimizer = &trainer->optimizer;
    const struct memory_plan *m = &model->memory;
    struct block *spans = NULL;
    check_masters(&spans, model);
    cr_expect_eq(bytes_of(&model->gradients), m->gradients);
    add_span(&spans, "gradients", &model->gradients);
    check_spans(spans, model->parameter_memory, m->master + m->copies + m->gradients);
    spans = NULL;
    add_span(&spans, "first moment", &optimizer->moments[0]);
    add_span(&spans, "second moment", &optimizer->moments[1]);
    cr_expect_eq(bytes_of(&optimizer->moments[0]) + bytes_of(&optimizer->moments[1]), m->moments);
    check_spans(spans, optimizer->memory, m->moments);
    spans = NULL;
    add_scratch(&spans, model);
    for (int i = 0; i < ACTIVATIONS_AND_STATISTICS; i++) {
        const struct activation *a = &activation_table[i];
        if (!a->memory)
            add_own(&spans, model, a->name ? a->name : "statistics", a->layered, a->field,
                    a->recomputed,
                    a->read_once && quantization_keeps(&model->quantization, a->reader));
    }
    if (model->has_cache) add_span(&spans, "cache", &model->cache);
    if (model->quantization.be) add_quantized(&spans, model);
    size_t used = 0;
    for (ptrdiff_t i = 0; i < arrlen(spans); i++) used += (size_t)(spans[i].end - spans[i].begin);
    cr_expect_leq(used, m->activations);
    if (model->shape.rows == model->capacity.rows)
        cr_expect_geq(used + 256u * arrlenu(spans), m->activations, "more is planned than used");
    check_spans(spans, model->activation_memory, m->activations);
}

Test(model_memory, memory_plan_matches_layout) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        for (int variant = 0; variant < 12; variant++) {
            struct rig rig = {0};
            rig_config(&rig.config, rig_precisions[p]);
            if (variant & 1) rig.config.autocast.residual = CONFIG_DTYPE_LOWER;
            if (variant & 1) rig.config.gradients.dtype = CONFIG_DTYPE_LOWER;
            if (variant & 2) rig.config.autocast.float32 = (struct config_words){1, {"mlp_fc"}};
            rig.config.weights.copy = (enum config_copy)(variant % 4);
            if (variant > 7) rig.config.optimizer.moments = CONFIG_MOMENTS_BFLOAT16;
            rig.config.train.recompute = (enum recompute)(variant / 4);
            rig.config.sample.every = variant & 1;
            rig_open(&rig, 1);
            const struct memory_plan *m = &rig.trainer.model.memory;
            check_plan(&rig.trainer);
            cr_expect_eq(m->workspace, rig.be.workspace_bytes);
            cr_expect_eq(m->batches, batches_bytes(&rig.trainer.batches) +
                                         (variant & 1 ? sampler_bytes(&rig.trainer.model) : 0));
            cr_expect_eq(memory_total(m), m->master + m->copies + m->gradients + m->moments +
                                              m->activations + m->batches + m->workspace +
                                              m->library);
            model_set_batch(&rig.trainer.model, 1, 7);
            check_plan(&rig.trainer);
            model_set_batch(&rig.trainer.model, 2, RIG_LENGTH);
            check_plan(&rig.trainer);
            rig_close(&rig);
        }
}

/* Weights that are stored in fewer bits save memory as well. */
Test(model_memory, plan_of_a_frozen_model_matches_layout) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        for (int base = CONFIG_BASE_AUTO; base <= CONFIG_BASE_FP8_BLOCK; base++) {
            struct rig rig = {0};
            struct block *spans = NULL;
            rig_config(&rig.config, rig_precisions[p]);
            set_family(&rig.config, base % 2);
            rig.config.adapter.type = CONFIG_ADAPTER_LORA;
            rig.config.adapter.base = (enum config_base)base;
            rig_open(&rig, 1);
            const struct model *model = &rig.trainer.model;
            const struct memory_plan *m = &model->memory;
            check_masters(&spans, model);
            add_span(&spans, "gradients", &model->gradients);
            add_span(&spans, "unused gradients", &model->unused_gradients);
            check_spans(spans, model->parameter_memory, m->master + m->copies + m->gradients);
            rig_close(&rig);
        }
}

/* A dry run prints the memory that a run takes. */
Test(model_memory, plan_without_memory_is_the_plan_with_memory) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++) {
        struct rig dry = {0}, wet = {0};
        rig_config(&dry.config, rig_precisions[p]);
        rig_config(&wet.config, rig_precisions[p]);
        rig_open(&wet, 1);
        rig_open_backend(&dry, test_device(), 1);
        cr_assert_eq(trainer_open(&dry.trainer, &dry.config, &dry.precision, &dry.be,
                                  TRAINER_PLANNED, &dry.error),
                     0);
        cr_expect_arr_eq(&dry.trainer.model.memory, &wet.trainer.model.memory,
                         sizeof(struct memory_plan));
        cr_expect_null(dry.trainer.model.parameter_memory);
        cr_expect_null(dry.trainer.model.activation_memory);
        cr_expect_null(dry.be.workspace);
        trainer_close(&dry.trainer);
        backend_close(&dry.be);
        rig_close(&wet);
    }
}

/* A step needs no more workspace than was planned, in any mix of dtypes. */
Test(model_memory, steps_stay_within_the_planned_workspace) {
    static const char *const words[] = {
        "qkv", "attention", "attention_projection", "mlp_fc", "gelu", "mlp_projection", "lm_head"};
    for (size_t p = 1; p < COUNT(rig_precisions); p++)
        for (size_t w = 0; w < COUNT(words); w++) {
            struct rig rig = {0};
            rig_config(&rig.config, rig_precisions[p]);
            rig.config.autocast.float32 = (struct config_words){1, {words[w]}};
            if (w % 2) rig.config.gradients.dtype = CONFIG_DTYPE_LOWER;
            rig_open(&rig, 1);
            size_t planned = rig.be.workspace_bytes;
            rig_steps(&rig, 1);
            double loss;
            cr_expect_eq(trainer_evaluate(&rig.trainer, &loss, &rig.loader, 2, &rig.error), 0);
            cr_expect_str_eq(rig.be.failure.text, "");
            cr_expect_eq(rig.be.workspace_bytes, planned);
            rig_close(&rig);
        }
}

static float *logits_of(struct model *model, const int32_t *tokens, int64_t batch, int64_t length,
                        int64_t row) {
    rig_evaluate(model, tokens, NULL, batch, length);
    model_logits(model, row, 1);
    struct tensor first = tensor_range(&model->activations.logits, 0, model->shape.padded_vocab);
    return rig_floats(model->be, &first);
}

Test(model_memory, inference_gives_the_logits_of_training) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++) {
        struct rig rig = {0}, other = {0};
        struct model inference;
        int32_t tokens[RIG_LENGTH];
        rig_config(&rig.config, rig_precisions[p]);
        rig.config.train.micro_batch_size = 1;
        rig_open(&rig, 1);
        other.config = rig.config;
        rig_open_backend(&other, test_device(), 1);
        cr_assert_eq(model_open(&inference, &other.config, &other.precision, &other.be,
                                PURPOSE_SAMPLING, &other.error),
                     0, "%s", other.error.text);
        backend_plan_begin(&other.be);
        sample_plan(&inference);
        cr_assert_eq(backend_plan_end(&other.be, &other.error), 0);
        cr_assert_eq(model_allocate(&inference, &other.error), 0, "%s", other.error.text);
        model_initialize(&inference, (uint64_t)rig.config.seed);
        cr_expect_lt(memory_total(&inference.memory), memory_total(&rig.trainer.model.memory));
        for (int i = 0; i < RIG_LENGTH; i++) tokens[i] = i * 5 % RIG_VOCABULARY;
        for (int64_t row = 0; row < RIG_LENGTH; row += 31) {
            float *a = logits_of(&rig.trainer.model, tokens, 1, RIG_LENGTH, row);
            float *b = logits_of(&inference, tokens, 1, RIG_LENGTH, row);
            cr_expect_arr_eq(a, b, RIG_VOCABULARY * sizeof *a, "%s, row %d",
                             config_precision_name(rig_precisions[p]), (int)row);
            free(a);
            free(b);
        }
        model_close(&inference);
        backend_close(&other.be);
        rig_close(&rig);
    }
}

/* Attention is causal, and sequences of a batch do not affect each other. */
Test(model_memory, logits_depend_on_the_past_of_their_sequence_only) {
    struct rig rig = {0};
    int32_t tokens[2 * RIG_LENGTH];
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig_open(&rig, 1);
    struct model *model = &rig.trainer.model;
    for (int i = 0; i < 2 * RIG_LENGTH; i++) tokens[i] = i * 5 % RIG_VOCABULARY;
    float *before = logits_of(model, tokens, 2, RIG_LENGTH, 10);
    for (int i = 11; i < 2 * RIG_LENGTH; i++) tokens[i] = i * 11 % RIG_VOCABULARY;
    float *after = logits_of(model, tokens, 2, RIG_LENGTH, 10);
    cr_expect_arr_eq(before, after, RIG_VOCABULARY * sizeof *before, "a look ahead");
    tokens[3]++;
    float *past = logits_of(model, tokens, 2, RIG_LENGTH, 10);
    cr_expect_arr_neq(before, past, RIG_VOCABULARY * sizeof *before, "no look back");
    free(before);
    free(after);
    free(past);
    rig_close(&rig);
}

Test(model_memory, set_batch_takes_any_shape_that_fits) {
    struct rig rig = {0};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig_open(&rig, 1);
    struct model *model = &rig.trainer.model;
    int32_t tokens[2 * RIG_LENGTH] = {0};
    for (int64_t batch = 1; batch <= 64; batch *= 2)
        for (int64_t length = 1; length <= RIG_LENGTH && batch * length <= 64; length += 3) {
            free(logits_of(model, tokens, batch, length, batch * length - 1));
            cr_expect_eq(model->shape.batch, batch);
            cr_expect_eq(model->shape.rows, batch * length);
            cr_expect_leq(model->shape.logit_rows, model->capacity.logit_rows);
            cr_expect_eq(tensor_rows(&model->activations.lnf_out), batch * length);
            check_plan(&rig.trainer);
        }
    cr_expect_eq(model->capacity.rows, 2 * RIG_LENGTH);
    cr_expect_str_eq(rig.be.failure.text, "");
    rig_close(&rig);
}

/* Logits computed in chunks give the same losses and gradients as logits computed at once. */
Test(model_memory, chunks_of_logits) {
    enum { ROWS = 320 };
    struct rig rig = {0};
    static int32_t tokens[ROWS], targets[ROWS];
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig.config.model.n_layer = 1;
    rig.config.model.n_embd = 8;
    rig.config.model.vocab_size = 65536;
    rig.config.train.micro_batch_size = ROWS / RIG_LENGTH;
    rig_open(&rig, 1);
    struct model *model = &rig.trainer.model;
    cr_assert_lt(model->shape.logit_rows, ROWS, "the test needs more than one chunk");
    for (int i = 0; i < ROWS; i++) tokens[i] = targets[i] = i * 201 % 65536;
    rig_evaluate(model, tokens, targets, ROWS / RIG_LENGTH, RIG_LENGTH);
    float *losses = rig_floats(&rig.be, &model->activations.losses);
    int64_t chunk = model->shape.logit_rows;
    for (int64_t row = chunk - 1; row <= chunk; row++) {
        model_logits(model, row, 1);
        float *logits = rig_floats(&rig.be, &model->activations.logits);
        double total = 0;
        for (int v = 0; v < 65536; v++) total += exp(logits[v] - logits[targets[row]]);
        cr_expect_lt(fabs(log(total) - losses[row]), 1e-4, "row %d: %g, %g", (int)row, log(total),
                     losses[row]);
        free(logits);
    }
    free(losses);
    rig_close(&rig);
}
