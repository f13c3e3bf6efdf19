/* State of a training run or its dry run, for the files of this directory: the session, and what
 * the run writes. */
#pragma once

#include <signal.h>

#include "data/util/error.h"
#include "data/util/files.h"
#include "kernels/ranks.h"
#include "model/cli/command_line.h"
#include "model/cli/divergence.h"
#include "model/cli/metrics.h"
#include "model/cli/report.h"
#include "model/cli/saving.h"
#include "model/cli/training_choices.h"
#include "model/io/base_files.h"
#include "model/session/session.h"
#include "model/task/rollouts.h"
#include "model/task/sample.h"

/* Steps that may end after the first failure: unfinished ones, and one more with several ranks. */
enum { UNWRITTEN_MAX = 2 * BACKEND_SLOTS };

struct run {
    struct session session;
    struct base_files base;   /* read by rank 0 only */
    struct sampler sampler;   /* of rank 0, if the run samples */
    struct rollouts rollouts; /* with prompts */
    struct training_choices questions;
    struct report report;
    struct metrics metrics;
    struct error log_failure; /* why the metrics cannot be written any more; "": they can */
    struct step_line unwritten[UNWRITTEN_MAX]; /* since that failure */
    int unwritten_count;
    struct divergence divergence;
    struct saving saving;
    char directory[FILE_PATH_MAX];            /* run_dir/name */
    char from[FILE_PATH_MAX];                 /* checkpoint that the run resumes from, or "" */
    char algorithms_path[FILE_PATH_MAX + 16]; /* file with the algorithms that autotune chose */
    double began;                             /* progress_clock() at the start of the program */
    double step_began;                        /* the same when the oldest unfinished step began */
    double waited;                            /* seconds that decisions waited for other ranks */
    const volatile sig_atomic_t *stop;        /* signal received by this process, or 0 */
    int agreed_stop;        /* signal received by any rank; updated after each step */
    bool warned_of_targets; /* the warning of a step without targets has been printed */
    bool warned_of_scale;   /* that of a loss scale below 1 */
    bool out_of_time;       /* train.minutes are over on any rank; updated with agreed_stop */
    int lock;               /* descriptor that holds the directory's lock, or -1 */
};

/* Opens the session of a run that `line` starts or resumes, or of a dry run if line is NULL. The
 * checkpoint is chosen before the trainer is opened, because train.epochs gives the steps that are
 * left. Returns an exit status. */
int run_open(struct run *run, const struct config *config, enum run_part part,
             const struct ranks *ranks, const struct command_line *line, struct error *error);
void run_close(struct run *run);

/* True if this part of the run has steps left and no validation has ended it. */
bool run_has_steps(const struct run *run);

/* Loads or initializes the weights, and opens the files of the run. Returns an exit status. */
int run_start(struct run *run, struct error *error);
