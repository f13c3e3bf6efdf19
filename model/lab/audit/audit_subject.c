#include "model/lab/audit/audit_subject.h"

#include <stdarg.h>
#include <stdlib.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/files.h"
#include "data/util/note.h"
#include "data/util/printed.h"
#include "data/util/progress.h"
#include "data/util/table.h"
#include "model/io/checkpoint.h"
#include "model/io/checkpoint_manifest.h"
#include "model/pass/backward.h"
#include "model/pass/forward.h"
#include "model/task/objective.h"
#include "model/task/reference.h"

/* Sets the precision to fp32 and enables autocast, since an audit chooses its own precisions.
 * Nothing is dropped, so that all of them compute the same. */
static void set_config(struct config *own, const struct config *config) {
    *own = *config;
    own->precision = CONFIG_PRECISION_FP32;
    own->autocast.enabled = true;
    own->sample.every = 0;
    own->model.dropout = own->adapter.dropout = 0;
}

static int open_trainer(struct subject *subject, struct trainer *trainer,
                        const struct config *config, struct error *error) {
    struct precision precision;
    if (precision_resolve(&precision, NULL, config, &subject->be, error)) return -1;
    if (trainer_open(trainer, config, &precision, &subject->be, TRAINER_INITIALIZED, error)) {
        trainer_close(trainer);
        return -1;
    }
    return 0;
}

/* Loads weights, moments, step and loss scale of a checkpoint, or only the weights of a model. */
static int load(struct subject *subject, struct trainer *trainer, const char *from,
                struct error *error) {
    char path[FILE_PATH_MAX];
    struct checkpoint_manifest manifest;
    if (file_path_join(path, from, checkpoint_manifest_name, error)) return -1;
    if (!file_exists(path))
        return checkpoint_load_weights(&trainer->model, trainer->config, from, error);
    if (checkpoint_manifest_open(&manifest, path, error)) return -1;
    if (manifest.precision == CONFIG_PRECISION_FP16) {
        subject->loss_scale = manifest.state.scaler.loss_scale;
        subject->scale_of_run = true;
    }
    checkpoint_manifest_close(&manifest);
    /* Notes about settings that differ from the run's are expected here. */
    int status = checkpoint_load(trainer, from, NULL, error);
    subject->step = trainer->state.step;
    subject->next_sample = trainer->state.next_sample;
    subject->fresh = trainer->state.scaler.updates == 0;
    return status;
}

static int keep_masters(struct subject *subject, const struct model *model, struct error *error) {
    arrsetlen(subject->masters, model->count);
    masters_download(&model->masters, model->be, subject->masters, 0, model->count);
    return model->be->failure.text[0] ? fail(error, "%s", model->be->failure.text) : 0;
}

static int open_reference(struct subject *subject, struct trainer *reference, const char *from,
                          struct error *error) {
    const char *init_from = subject->config.model.init_from;
    if (open_trainer(subject, reference, &subject->config, error)) return -1;
    int status = 0;
    if (from) status = load(subject, reference, from, error);
    else if (init_from[0])
        status = checkpoint_load_initial(&reference->model, &subject->config, NULL, error);
    if (status == 0) status = keep_masters(subject, &reference->model, error);
    if (status == 0 && config_has_reference(&subject->config)) {
        /* The model itself is the reference of its pairs. */
        struct evaluator evaluator = trainer_evaluator(reference);
        status = reference_compute(&evaluator, &subject->text.loader, subject->next_sample,
                                   subject->repetitions * subject->config.train.micro_batch_size,
                                   reference_is_base(&subject->config), error);
    }
    if (status) trainer_close(reference);
    return status;
}

static int check_counted(const struct subject *subject, struct error *error) {
    if (subject_counted(subject, 0, subject->repetitions) > 0) return 0;
    return fail(error,
                "no token of the %d micro-batch%s that the audit looks at counts in the loss: all "
                "are prompts\nlook at more of them (--repetitions), or use longer sequences "
                "(data.seq_len)",
                subject->repetitions, subject->repetitions == 1 ? "" : "es");
}

int subject_open(struct subject *subject, struct trainer *reference, const struct config *config,
                 const char *from, struct error *error) {
    set_config(&subject->config, config);
    const char *init_from = config->model.init_from;
    snprintf(subject->from, sizeof subject->from, "%s",
             from           ? from
             : init_from[0] ? init_from
                            : "initial weights");
    subject->fresh = true;
    subject->last_progress = progress_clock();
    subject->loss_scale = (float)config->loss_scale.init_scale;
    if (setup_backend(&subject->be, config, NULL, NULL, error)) return -1;
    subject->open = true;
    if (source_open(&subject->text, config, config->data.train, SOURCE_TRAINING, error) == 0 &&
        setup_documents(&subject->config, &subject->text, error) == 0 &&
        setup_distillation(&subject->config, &subject->text, error) == 0 &&
        open_reference(subject, reference, from, error) == 0 && check_counted(subject, error) == 0)
        return 0;
    subject_close(subject);
    return -1;
}

void subject_close(struct subject *subject) {
    if (!subject->open) return;
    source_close(&subject->text);
    backend_close(&subject->be);
    arrfree(subject->masters);
    subject->open = false;
}

int subject_trainer(struct subject *subject, struct trainer *trainer, const struct config *config,
                    float loss_scale, struct error *error) {
    struct backend *be = &subject->be;
    if (open_trainer(subject, trainer, config, error)) return -1;
    masters_upload(&trainer->model.masters, be, subject->masters, 0, arrlen(subject->masters));
    masters_refresh(&trainer->model.masters, be);
    if (trainer->model.precision.scale_loss) trainer->state.scaler.loss_scale = loss_scale;
    trainer_restore_scaler(trainer);
    return 0;
}

static int64_t first_sample(const struct subject *subject, int micro) {
    return subject->next_sample + micro * subject->config.train.micro_batch_size;
}

/* Returns the weight of each target's loss in the step of micro-batch i. */
static float weight_of(const struct subject *subject, int i) {
    const struct config *config = &subject->config;
    int64_t step = i / config->train.grad_accum_steps;
    return batches_weight(config, &subject->text.loader,
                          subject->next_sample + step * batches_step_samples(config));
}

int subject_run(struct subject *subject, struct trainer *trainer, int i, bool first,
                struct error *error) {
    const struct step_inputs inputs = {.loss_weight = weight_of(subject, i)};
    if (*subject->stop) return RESULT_STOPPED;
    if (first) model_clear_gradients(&trainer->model);
    if (batches_put(&trainer->batches, &subject->text.loader, first_sample(subject, i),
                    subject->config.train.micro_batch_size, &inputs, error))
        return -1;
    const struct pass pass = trainer_pass(trainer, first, true);
    model_forward(&pass);
    objective_loss(&pass);
    model_backward(&pass);
    return 0;
}

uint64_t subject_counted(const struct subject *subject, int first, int count) {
    return loader_target_count(&subject->text.loader, (uint64_t)first_sample(subject, first),
                               (uint64_t)(count * subject->config.train.micro_batch_size));
}

void subject_print_progress(struct subject *subject, const char *format, ...) {
    enum { SILENCE_SECONDS = 4 };
    char text[200];
    va_list arguments;
    double now = progress_clock();
    if (now - subject->last_progress < SILENCE_SECONDS) return;
    subject->last_progress = now;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    note(stderr, "audit", "%s ...", text);
}

struct cJSON *subject_report(const struct subject *subject) {
    const struct config *config = &subject->config;
    cJSON *report = cJSON_CreateObject();
    cJSON_AddStringToObject(report, "config", config->name);
    cJSON_AddStringToObject(report, "from", subject->from);
    JSON_NUMBERS(report, {"step", (double)subject->step}, {"repetitions", subject->repetitions},
                 {"micro_batch_size", (double)config->train.micro_batch_size},
                 {"seq_len", (double)config->data.seq_len});
    cJSON_AddStringToObject(report, "device", subject->be.device.description);
    return report;
}

const float *fetch_tensor(struct fetched *fetched, struct backend *be,
                          const struct tensor *tensor) {
    size_t count = (size_t)tensor_count(tensor), bytes = tensor_bytes(tensor);
    arrsetlen(fetched->raw, bytes);
    arrsetlen(fetched->values, count);
    backend_download(be, fetched->raw, tensor->data, bytes);
    return dtype_widen(fetched->values, fetched->raw, tensor->dtype, 0, count);
}

void fetched_free(struct fetched *fetched) {
    arrfree(fetched->raw);
    arrfree(fetched->values);
}
