#include "model/session/session.h"

#include <inttypes.h>
#include <string.h>

#include "data/util/note.h"
#include "model/config/config_check.h"
#include "model/config/config_effects.h"
#include "model/config/precision_switch.h"
#include "model/io/checkpoint.h"
#include "model/plan/memory_plan.h"
#include "model/session/run_ranks.h"
#include "model/task/evaluate.h"

/* Fails if no target of the validation's sequences counts in the loss. */
static int check_validation(const struct config *config, const struct loader *val,
                            struct error *error) {
    int64_t sequences = evaluate_sequences(config, val);
    if (loader_target_count(val, 0, (uint64_t)sequences) > 0) return 0;
    return evaluate_fail_masked(sequences, error);
}

/* Opens training and validation data. If the data are not required, as in a dry run, an error
 * becomes a note. */
static int open_data(struct session *session, bool required, struct error *error) {
    const struct config *config = &session->config;
    int failed = source_open(&session->train, config, config->data.train, SOURCE_TRAINING, error);
    if (!failed && config->data.val[0])
        failed = source_open(&session->val, config, config->data.val, SOURCE_VALIDATION, error) ||
                 check_validation(config, &session->val.loader, error);
    if (!failed || required) return failed;
    note_error(stderr, "note", error);
    return 0;
}

/* Opens the teacher's logits. In a dry run an error becomes a note, as for the data. */
static int open_teacher(struct session *session, struct error *error) {
    int failed = setup_distillation(&session->config, &session->train, error);
    if (!failed || !session->planned) return failed;
    note_error(stderr, "note", error);
    note(stderr, "note", "without them the plan lacks the memory of the teacher's logits");
    return 0;
}

int session_open_tokenizer(struct session *session, const char *from, struct error *error) {
    const struct source *texts[] = {&session->train, &session->val};
    int status = setup_tokenizer(&session->tokenizer, &session->config, from, texts, 2, error);
    if (status == 0) {
        session->trainer.tokenizer = &session->tokenizer;
        session->config.data.tokenizer = session->tokenizer.kind;
    }
    if (status != RESULT_NONE) return status;
    note_error(stderr, "note", error);
    note(stderr, "note", "without it there are no samples, and none of its files in checkpoints");
    return 0;
}

/* Resolves train.steps from train.epochs, counted from the checkpoint `from`, or from step 0 if it
 * is "". Without data, in a dry run, the number of steps stays unknown; no part of the plan needs
 * it. */
static int resolve_steps(struct session *session, const char *from, struct error *error) {
    struct config *config = &session->config;
    const uint64_t sequences =
        session->train.loader.sequence_count * (uint64_t)config_draws(config);
    int64_t step = 0, next_sample = 0;
    if (config->train.epochs > 0 && session->train.open) {
        if (from[0] && checkpoint_read_progress(&step, &next_sample, config, from, error))
            return -1;
        if (config_resolve_epochs(config, sequences, step, next_sample, error)) return -1;
    }
    config_resolve_notes(config, stderr);
    return 0;
}

/* Fails if the memory does not suffice after the change of precision, before training starts. */
static int check_switch(struct session *session, struct error *error) {
    struct config switched = session->config;
    struct memory_plan plan;
    if (session->until == session->config.train.steps) return 0;
    precision_switch_apply(&switched);
    if (memory_plan_of(&plan, &switched, &session->be, error)) return -1;
    size_t needed = memory_total(&plan), available = backend_available(&session->be);
    if (needed <= available) return 0;
    return fail(error,
                "precision_switch: after step %" PRId64 " the run needs %.0f MiB, and %.0f MiB are "
                "available\nset train.recompute",
                session->until, (double)needed / 0x1p20, (double)available / 0x1p20);
}

/* Warns of settings without effect on this device, in this precision. */
static void warn_of_unused(const struct session *session) {
    struct config known = session->config;
    known.device = session->be.device.kind == BACKEND_CUDA ? DEVICE_CUDA : DEVICE_CPU;
    config_unused(&known, stderr);
}

/* Resolves the precision, and prints notes and warnings about it. */
static int open_precision(struct session *session, struct error *error) {
    struct config *config = &session->config;
    if (precision_resolve(&session->precision, stderr, config, &session->be, error)) return -1;
    /* The saved config names the resolved precision, which another machine could resolve
     * differently when it samples from the checkpoint. */
    config->precision = precision_setting(&session->precision, config);
    if (session->given.precision == CONFIG_PRECISION_AUTO)
        session->given.precision = config->precision;
    if (session->part == RUN_FIRST) warn_of_unused(session);
    if (session->precision.compute_dtype != DTYPE_F32) config_dimension_notes(config, stderr);
    return 0;
}

/* With autotune, rank 0 opens its trainer first and the others use its algorithms. */
static int open_trainer(struct session *session, struct error *error) {
    const struct ranks *ranks = session->ranks;
    bool tuned = algorithms_tuning(session->be.algorithms).on && ranks->size > 1;
    int status = 0;
    for (int turn = 0; turn <= tuned && status == 0; turn++) {
        if (!tuned || (ranks->rank == 0) == (turn == 0))
            status = setup_trainer(&session->trainer, &session->config, &session->precision,
                                   &session->be, error);
        status = ranks_agree(ranks, status, error);
        if (tuned && turn == 0 && status == 0)
            status =
                ranks_agree(ranks, algorithms_share(session->be.algorithms, ranks, error), error);
    }
    return status ? status : run_ranks_compare_plan(ranks, &session->trainer, error);
}

int session_open(struct session *session, const struct config *config, enum run_part part,
                 const struct ranks *ranks, const char *algorithms, struct error *error) {
    *session = (struct session){
        .ranks = ranks, .part = part, .planned = !algorithms, .config = *config, .given = *config};
    if (part == RUN_SWITCHED) precision_switch_apply(&session->config);
    if (part == RUN_FIRST) config_warnings(config, stderr);
    if (run_ranks_compare_config(ranks, &session->config, error)) return -1;
    if (config_split_batch(&session->config, ranks->size, error)) return -1;
    if (setup_backend(&session->be, config, algorithms, ranks, error)) return -1;
    session->backend_open = true;
    if (open_precision(session, error)) return -1;
    if (ranks_agree(ranks, open_data(session, !session->planned, error), error)) return -1;
    if (ranks_agree(ranks, setup_documents(&session->config, &session->train, error), error))
        return -1;
    if (ranks_agree(ranks, open_teacher(session, error), error)) return -1;
    return run_ranks_compare_data(ranks, config, &session->train, &session->val, error);
}

/* Warns if no tensor qualifies for moments in 8 bits. */
static void warn_of_moments(const struct session *session) {
    const struct trainer *trainer = &session->trainer;
    if (session->config.optimizer.moments == CONFIG_MOMENTS_INT8 && session->part == RUN_FIRST &&
        trainer->optimizer.exchange.shards.coded_count[0] == 0)
        note(stderr, "warning",
             "optimizer.moments has no effect: no tensor has a multiple of 256 elements, and at "
             "least optimizer.min_8bit_size of them");
}

int session_open_trainer(struct session *session, const char *from, struct error *error) {
    const struct ranks *ranks = session->ranks;
    const struct config *config = &session->config;
    if (ranks_agree(ranks, resolve_steps(session, from, error), error)) return -1;
    session->until =
        session->part == RUN_FIRST ? precision_switch_step(config) : config->train.steps;
    if (ranks_agree(ranks, check_switch(session, error), error)) return -1;
    int status = session->planned ? trainer_open(&session->trainer, config, &session->precision,
                                                 &session->be, TRAINER_PLANNED, error)
                                  : open_trainer(session, error);
    const char **hashes = session->trainer.data_hashes;
    hashes[HASHED_TRAIN] = session->train.hash;
    if (session->val.open) hashes[HASHED_VAL] = session->val.hash;
    if (session->train.loader.teacher)
        hashes[HASHED_TEACHER] = session->train.teacher.header.teacher;
    if (status == 0) warn_of_moments(session);
    return status;
}

void session_close(struct session *session) {
    if (session->trainer.config) trainer_close(&session->trainer);
    source_close(&session->train);
    source_close(&session->val);
    tokenizer_close(&session->tokenizer);
    if (session->backend_open) backend_close(&session->be);
}
