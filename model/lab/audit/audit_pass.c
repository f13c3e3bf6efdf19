#include "model/lab/audit/audit_pass.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <stb/stb_ds.h>

/* ---- tensors */

bool tensor_id_is_gradient(int id) {
    return id >= ACTIVATION_COUNT;
}

static enum activation_id activation_of(int id) {
    return (enum activation_id)(tensor_id_is_gradient(id) ? TENSOR_IDS - 1 - id : id);
}

bool tensor_id_is_layered(int id) {
    return activation_table[activation_of(id)].layered;
}

const char *tensor_id_label(char label[TENSOR_ID_LABEL_MAX], int id, int layer) {
    char prefix[32] = "";
    if (layer >= 0 && tensor_id_is_layered(id)) snprintf(prefix, sizeof prefix, "layer %d ", layer);
    snprintf(label, TENSOR_ID_LABEL_MAX, tensor_id_is_gradient(id) ? "%sd(%s)" : "%s%s", prefix,
             activation_table[activation_of(id)].name);
    return label;
}

bool tensor_id_is_absent(int id, const struct model_shape *shape, int64_t layer) {
    return activation_extent(activation_of(id), shape, layer).rows == 0;
}

int tensor_id_layers(int id, const struct model_shape *shape) {
    const struct activation *a = &activation_table[activation_of(id)];
    bool stored = !tensor_id_is_gradient(id) || a->gradient_in_place || a->gradient != SCRATCH_NONE;
    bool has = false;
    for (int64_t l = 0; l < shape_period(shape); l++) has |= !tensor_id_is_absent(id, shape, l);
    if (!stored || !has) return 0;
    return a->layered ? (int)shape->n_layer : 1;
}

/* A reader with POLICY_INPUT takes the dtype of its input, so it need not be named. */
unsigned tensor_id_sites(int id) {
    const struct activation *a = &activation_table[activation_of(id)];
    unsigned sites = 0;
    if (a->residual) return 0;
    if (autocast_site_is_choice(a->writer)) sites |= 1u << a->writer;
    enum autocast_policy policy = autocast_site_policy(a->reader);
    if (policy == POLICY_LOWER || policy == POLICY_LINEAR) sites |= 1u << a->reader;
    return sites;
}

enum dtype tensor_id_dtype(int id, const struct precision *precision) {
    if (id == PARAMETERS) return precision->gradients;
    return precision->activation[activation_of(id)];
}

int trace_operation(struct traced traced[TRACED_MAX], struct model *model,
                    const struct trace_label *label) {
    for (int i = 0; label && i < label->count; i++) {
        enum activation_id id = label->tensors[i].id;
        int layer = label->tensors[i].layer;
        const struct tensor *whole = label->gradient && !activation_table[id].gradient_in_place
                                         ? activation_gradient(&model->activations, id)
                                         : activation_tensor(&model->activations, id, layer);
        int64_t columns = tensor_columns(whole);
        /* The memory of logits holds one chunk of rows at a time, from row 0 on. */
        bool chunk = tensor_rows(whole) < model->shape.rows;
        traced[i] = (struct traced){
            .id = label->gradient ? tensor_id_of_gradient(id) : (int)id,
            .layer = layer,
            .tensor = tensor_slice(whole, chunk ? 0 : label->first_row, label->rows),
            .first = label->first_row * columns,
            .total = model->shape.rows * columns,
        };
    }
    return label ? label->count : 0;
}

/* ---- passes */

/* Records the tensors that the operations of a micro-batch write. */
struct recorder {
    struct observer observer; /* first member, so that a struct observer * casts to this */
    struct audit_pass *pass;
    const struct audit_pass *reference;
    struct model *model;
    int batch, batches;
    struct fetched fetched;
};

/* Adds a tensor to its record. Returns the record. */
static const struct record *add(struct recorder *recorder, int id, int layer,
                                const struct tensor *tensor, int64_t first, int64_t total) {
    struct record *record = &recorder->pass->records[id][layer];
    const struct audit_pass *reference = recorder->reference;
    struct record_values values = {
        .values = fetch_tensor(&recorder->fetched, recorder->model->be, tensor),
        .first = first,
        .count = tensor_count(tensor),
        .total = total,
        .batch = recorder->batch,
        .batches = recorder->batches,
        .unscale = tensor_id_is_gradient(id) ? 1 / recorder->pass->loss_scale : 1,
    };
    record->stored = tensor->dtype;
    record_add(record, reference ? &reference->records[id][layer] : NULL, &values);
    return record;
}

static void record_operation(struct observer *observer, enum operation_id id, const void *args) {
    struct recorder *recorder = (struct recorder *)observer;
    struct traced traced[TRACED_MAX];
    int count = trace_operation(traced, recorder->model, operation_label(id, args));
    for (int i = 0; i < count; i++) {
        const struct traced *found = &traced[i];
        const struct record *record =
            add(recorder, found->id, found->layer, &found->tensor, found->first, found->total);
        if (recorder->pass->first_infinite < 0 && record->magnitudes.infinite > 0)
            recorder->pass->first_infinite = found->id;
    }
}

static void record_parameters(struct recorder *recorder) {
    const struct model *model = recorder->model;
    for (int i = 0; i < arrlen(recorder->pass->records[PARAMETERS]); i++) {
        struct tensor view = model_gradient(model, &model->list[i]);
        const struct record *record = add(recorder, PARAMETERS, i, &view, 0, tensor_count(&view));
        if (record->magnitudes.infinite > 0) recorder->pass->finite = false;
    }
}

static double sum_of_losses(struct recorder *recorder) {
    const struct tensor *losses = &recorder->model->activations.losses;
    int64_t count = tensor_count(losses);
    const float *values = fetch_tensor(&recorder->fetched, recorder->model->be, losses);
    double total = 0;
    for (int64_t i = 0; i < count; i++) total += (double)values[i];
    return total;
}

/* Returns the contribution of this micro-batch to the mean loss of all. */
static double share_of_loss(struct recorder *recorder, const struct subject *subject) {
    double own = (double)subject_counted(subject, recorder->batch, 1);
    double all = (double)subject_counted(subject, 0, recorder->batches);
    return own > 0 ? sum_of_losses(recorder) / own / (all / own) : 0;
}

static void allocate(struct audit_pass *pass, const struct model *model) {
    for (int id = 0; id < TENSOR_IDS; id++)
        for (int layer = 0; layer < tensor_id_layers(id, &model->shape); layer++)
            arrput(pass->records[id], (struct record){0});
    for (int i = 0; i < arrlen(model->list); i++) {
        if (i < parameter_trained_count(model->list))
            arrput(pass->records[PARAMETERS], (struct record){0});
        arrput(pass->weights, (struct magnitudes){0});
        arrput(pass->list, model->list[i]);
    }
}

void audit_pass_free(struct audit_pass *pass) {
    for (int id = 0; id <= PARAMETERS; id++) {
        for (int i = 0; i < arrlen(pass->records[id]); i++) arrfree(pass->records[id][i].samples);
        arrfree(pass->records[id]);
    }
    arrfree(pass->weights);
    arrfree(pass->list);
    memset(pass, 0, sizeof *pass);
}

/* Returns the root of the variance of micro-batch gradients over the squared norm of their mean,
 * both as unbiased estimates. */
static double noise_of(const struct audit_pass *pass, int batches) {
    double spread = 0, square = 0;
    if (batches < 2) return 0;
    for (int i = 0; i < arrlen(pass->records[PARAMETERS]); i++) {
        const struct record *record = &pass->records[PARAMETERS][i];
        for (int64_t k = 0; k < record->sample_count; k++) {
            double sum = 0, squares = 0, weight = (double)record->stride;
            for (int batch = 0; batch < batches; batch++) {
                double value = (double)record->samples[batch * record->sample_count + k];
                sum += value;
                squares += value * value;
            }
            double variance = (squares - sum * sum / batches) / (batches - 1);
            spread += variance * weight;
            square += (sum * sum / batches - variance) / batches * weight;
        }
    }
    return square > 0 && spread > 0 ? sqrt(spread / square) : 0;
}

/* Sets the error of the gradients of all micro-batches so far, and the cosine of their angle with
 * the reference's. */
static void set_errors(struct audit_pass *pass) {
    double difference = 0, reference = 0, own = 0;
    for (int i = 0; i < arrlen(pass->records[PARAMETERS]); i++) {
        difference += pass->records[PARAMETERS][i].difference;
        reference += pass->records[PARAMETERS][i].reference;
        own += pass->records[PARAMETERS][i].own;
    }
    pass->gradient_error = pass->finite ? relative_error(difference, reference) : INFINITY;
    pass->gradient_cosine = (own + reference - difference) / (2 * sqrt(own * reference));
}

static int run_batch(struct recorder *recorder, struct subject *subject, struct trainer *trainer,
                     enum audit_kind kind, struct error *error) {
    struct model *model = &trainer->model;
    struct audit_pass *pass = recorder->pass;
    if (kind == PASS_TRACED) backend_observe(model->be, &recorder->observer);
    int status = subject_run(subject, trainer, recorder->batch, true, error);
    if (kind == PASS_TRACED) backend_observe(model->be, NULL);
    if (status) return status;
    record_parameters(recorder);
    pass->loss += share_of_loss(recorder, subject);
    if (!isfinite(pass->loss)) pass->finite = false;
    set_errors(pass);
    if (recorder->batch < PASS_TRIAL_BATCHES) pass->first_error = pass->gradient_error;
    return model->be->failure.text[0] ? fail(error, "%s", model->be->failure.text) : 0;
}

int audit_pass_run(struct audit_pass *pass, struct subject *subject, struct trainer *trainer,
                   const struct audit_pass *reference, enum audit_kind kind, struct error *error) {
    struct model *model = &trainer->model;
    int batches = subject->repetitions;
    if (kind == PASS_TRIAL && batches > PASS_TRIAL_BATCHES) batches = PASS_TRIAL_BATCHES;
    *pass = (struct audit_pass){
        .precision = model->precision,
        .loss_scale = trainer->state.scaler.loss_scale,
        .finite = true,
        .first_infinite = -1,
    };
    allocate(pass, model);
    struct recorder recorder = {
        .observer = {.after = record_operation},
        .pass = pass,
        .reference = reference,
        .model = model,
        .batches = batches,
    };
    int status = 0;
    for (int i = 0; !reference && i < arrlen(pass->list); i++)
        magnitudes_add(&pass->weights[i], subject->masters + pass->list[i].offset,
                       (size_t)parameter_count(&pass->list[i]));
    for (; status == 0 && recorder.batch < batches; recorder.batch++)
        status = run_batch(&recorder, subject, trainer, kind, error);
    if (status == 0 && !reference) pass->gradient_noise = noise_of(pass, batches);
    fetched_free(&recorder.fetched);
    return status;
}

static enum pass_outcome outcome_of(struct recorder *recorder) {
    const struct model *model = recorder->model;
    struct magnitudes magnitudes = {0};
    if (!isfinite(sum_of_losses(recorder))) return PASS_LOSS_INFINITE;
    for (int i = 0; i < (int)parameter_trained_count(model->list); i++) {
        struct tensor view = model_gradient(model, &model->list[i]);
        magnitudes_add(&magnitudes, fetch_tensor(&recorder->fetched, model->be, &view),
                       (size_t)tensor_count(&view));
    }
    return magnitudes.infinite > 0 ? PASS_GRADIENTS_INFINITE : PASS_FINITE;
}

int audit_pass_tried(const struct subject *subject, const struct precision *precision) {
    int accumulated = (int)subject->config.train.grad_accum_steps;
    bool whole = precision->gradients != DTYPE_F32 && accumulated > subject->repetitions;
    return whole ? accumulated : subject->repetitions;
}

int audit_pass_try(enum pass_outcome *outcome, struct subject *subject, struct trainer *trainer,
                   float loss_scale, struct error *error) {
    struct model *model = &trainer->model;
    struct recorder recorder = {.model = model};
    int accumulated = (int)subject->config.train.grad_accum_steps, status = 0;
    int batches = audit_pass_tried(subject, &model->precision);
    assert(model->precision.scale_loss);
    trainer->state.scaler.loss_scale = loss_scale;
    trainer_restore_scaler(trainer);
    *outcome = PASS_FINITE;
    for (int i = 0; status == 0 && *outcome == PASS_FINITE && i < batches; i++) {
        status = subject_run(subject, trainer, i, i % accumulated == 0, error);
        if (status) break;
        *outcome = outcome_of(&recorder);
        if (model->be->failure.text[0]) status = fail(error, "%s", model->be->failure.text);
    }
    fetched_free(&recorder.fetched);
    return status;
}
