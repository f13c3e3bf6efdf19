/* Subject of an audit: the weights of a model, the batches of its next steps, and the device. */
#pragma once

#include <signal.h>

#include "data/util/error.h"
#include "model/config/config.h"
#include "model/optimize/trainer.h"
#include "model/session/setup.h"

enum { SUBJECT_REPETITIONS = 4 };

struct subject {
    struct config config; /* the user's config in fp32 with autocast enabled, without samples */
    struct backend be;
    struct source text;
    char from[512];      /* source of the weights, for the report */
    int64_t step;        /* step of the checkpoint, or 0 */
    int64_t next_sample; /* first sample of the first micro-batch */
    bool fresh;          /* there are no moments: the next update is Adam's first */
    bool scale_of_run;   /* loss_scale comes from an fp16 run, not from loss_scale.init_scale */
    float loss_scale;
    float *masters; /* stb_ds array: master weights in fp32, on the host */
    int repetitions;
    const volatile sig_atomic_t *stop;
    double last_progress; /* progress_clock() of the last output of subject_print_progress */
    bool open;
};

/* Opens device and text, and `reference`, an fp32 trainer in the state of `from`. If from is NULL,
 * the weights come from config->model.init_from or the seed. The trainer must be closed before the
 * subject; it is open only on success. */
int subject_open(struct subject *subject, struct trainer *reference, const struct config *config,
                 const char *from, struct error *error);
void subject_close(struct subject *subject);

/* Opens a trainer with other precision settings. config is a modified copy of subject->config and
 * must outlive the trainer. The trainer has the subject's weights, no moments, and this loss scale
 * if its precision scales the loss. */
int subject_trainer(struct subject *subject, struct trainer *trainer, const struct config *config,
                    float loss_scale, struct error *error);

/* Runs micro-batch i, counted from the next step of the run, forward and backward. first: its
 * gradients replace those before, else they are added. Returns RESULT_STOPPED after a signal in
 * *stop. */
int subject_run(struct subject *subject, struct trainer *trainer, int i, bool first,
                struct error *error);

/* Returns the number of unmasked targets of micro-batches first .. first + count - 1. */
uint64_t subject_counted(const struct subject *subject, int first, int count);

/* Prints progress to stderr, at most once in some seconds. */
void subject_print_progress(struct subject *subject, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Returns a new report with its common members; the caller deletes it. */
struct cJSON *subject_report(const struct subject *subject);

/* Host memory for tensors, reused between calls of fetch_tensor. */
struct fetched {
    char *raw;     /* stb_ds array */
    float *values; /* stb_ds array */
};

/* Returns the values of a tensor as fp32, valid until the next call or fetched_free. */
const float *fetch_tensor(struct fetched *fetched, struct backend *be, const struct tensor *tensor);
void fetched_free(struct fetched *fetched);
