/* The subject of an audit: a model's weights, the batches it would see next, and the device. */
#pragma once

#include <signal.h>

#include "data/util/error.h"
#include "model/config/config.h"
#include "model/io/run_setup.h"
#include "model/core/trainer.h"

enum { SUBJECT_REPETITIONS = 4 };

struct subject {
    struct config config; /* the user's, but for what an audit sets itself */
    struct backend be;
    struct source text;
    char from[512];    /* where the weights are from, for people */
    int64_t step;      /* the state of the run */
    bool fresh;        /* no moments: the next update is Adam's first */
    bool scale_of_run; /* loss_scale is that of an fp16 run, else loss_scale.init_scale */
    float loss_scale;
    float *masters; /* [count] as fp32, on the host */
    int64_t count;
    int repetitions;
    const volatile sig_atomic_t *stop;
    double said; /* when subject_say printed last, on progress_clock() */
    bool open;
};

/* Opens device and text, and `reference`: a trainer in fp32, in the state of `from`, or as
 * config->model.init_from and the seed have it if that is NULL. The trainer is to be closed before
 * the subject, and is open only if this succeeds. */
int subject_open(struct subject *subject, struct trainer *reference, const struct config *config,
                 const char *from, struct error *error);
void subject_close(struct subject *subject);

/* Opens a trainer for other settings of precision: config is a copy of subject->config, changed,
 * and must stay. It has the same weights, no moments, and this loss scale if it scales. */
int subject_trainer(struct subject *subject, struct trainer *trainer, const struct config *config,
                    float loss_scale, struct error *error);

/* Runs micro-batch i forward and backward: those from subject->step on, as the run would take them.
 * weight: what the loss of each target counts. Returns RESULT_STOPPED if *stop asked for it. */
int subject_run(struct subject *subject, struct trainer *trainer, int i, float weight,
                struct error *error);

/* Returns what the loss of each target of micro-batch i counts in its step. */
float subject_weight(const struct subject *subject, int i);

/* Returns how many targets of micro-batches first .. first + count - 1 count. */
uint64_t subject_counted(const struct subject *subject, int first, int count);

/* Prints to stderr what is being done, if nothing was said for some seconds. */
void subject_say(struct subject *subject, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Returns the head of a report (report.h), an object that the caller deletes. */
struct cJSON *subject_report(const struct subject *subject);

/* Memory for tensors on the host. */
struct fetched {
    char *raw;     /* stb_ds array */
    float *values; /* stb_ds array */
};

/* Returns the values of a tensor as fp32, valid until the next call or fetched_free. */
const float *fetch(struct fetched *fetched, struct backend *be, const struct tensor *tensor);
void fetched_free(struct fetched *fetched);
