#include "model/cli/run.h"

#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "data/util/files.h"
#include "data/util/signals.h"
#include "data/corpus/tales.h"
#include "kernels/open/backend_open.h"
#include "kernels/ranks.h"
#include "model/config/config_check.h"
#include "model/io/checkpoint.h"
#include "model/plan/memory_text.h"
#include "model/plan/rank_text.h"
#include "model/cli/metrics.h"
#include "model/cli/report.h"
#include "model/cli/run_directory.h"
#include "model/cli/run_ranks.h"
#include "model/cli/run_sample.h"
#include "model/io/run_setup.h"
#include "model/plan/setup_trainer.h"
#include "model/cli/saving.h"
#include "model/cli/validation.h"
#include "model/core/trainer.h"

/* Steps that may end after the first failure: unfinished ones, and one more with several ranks. */
enum { UNWRITTEN_MAX = 2 * BACKEND_SLOTS };

struct run {
    const struct ranks *ranks;
    struct config config; /* with precision "auto" resolved */
    struct backend be;
    bool backend_open;
    struct precision precision;
    struct source train, val;
    struct tokenizer tokenizer; /* vocab_size 0: no tokenizer found */
    struct trainer trainer;
    struct report report;
    struct metrics metrics;
    struct error log_failure; /* why the metrics cannot be written any more; "": they can */
    struct step_line unwritten[UNWRITTEN_MAX]; /* since that failure */
    int unwritten_count;
    struct saving saving;
    char directory[FILE_PATH_MAX];     /* run_dir/name */
    char choices[FILE_PATH_MAX + 16];  /* file with the choices of autotune */
    double began;                      /* progress_clock() at the start of the program */
    double step_began;                 /* progress_clock() when the oldest unfinished step began */
    const volatile sig_atomic_t *stop; /* signal received by this process, or 0 */
    int agreed_stop;                   /* signal received by any rank; updated after each step */
    int lock;                          /* descriptor that holds the directory's lock, or -1 */
};

/* Opens training and validation data. If the data are not required, as in a dry run, an error
 * becomes a note. */
static int open_data(struct run *run, bool required, struct error *error) {
    const struct config *config = &run->config;
    int failed = source_open(&run->train, config, config->data.train, false, error);
    if (!failed && config->data.val[0])
        failed = source_open(&run->val, config, config->data.val, true, error) ||
                 validation_check(config, &run->val.loader, error);
    if (!failed || required) return failed;
    print_notes("note", error->text);
    error->text[0] = 0;
    return 0;
}

/* Opens the tokenizer, which is optional: only samples and the files of checkpoints need it. from:
 * checkpoint to resume from, whose tokenizer files take precedence, or NULL. */
static int open_tokenizer(struct run *run, const char *from, struct error *error) {
    const struct source *texts[] = {&run->train, &run->val};
    int status = setup_tokenizer(&run->tokenizer, &run->config, from, texts, 2, error);
    if (status == 0) {
        run->trainer.tokenizer = &run->tokenizer;
        run->config.data.tokenizer = (enum config_tokenizer)run->tokenizer.kind;
    }
    if (status != RESULT_NONE) return status;
    print_notes("note", error->text);
    print_notes("note", "without it there are no samples, and none of its files in checkpoints");
    error->text[0] = 0;
    return 0;
}

/* Resolves train.steps from train.epochs. Without data, in a dry run, the number of steps stays
 * unknown; no part of the plan needs it. */
static int resolve_steps(struct run *run, struct error *error) {
    char notes[4 * ERROR_MAX];
    if (run->config.train.epochs > 0 && run->train.open &&
        config_resolve_epochs(&run->config, run->train.loader.sequence_count, error))
        return -1;
    config_resolve_notes(&run->config, notes, sizeof notes);
    print_notes("note", notes);
    return 0;
}

/* Opens device, precision, data and trainer, in this order, and prints notes and warnings about the
 * resolved settings. */
static int run_open(struct run *run, const struct config *config, const struct ranks *ranks,
                    bool allocate, struct error *error) {
    char warnings[4 * ERROR_MAX];
    memset(run, 0, sizeof *run);
    run->began = progress_clock();
    run->ranks = ranks;
    run->config = *config;
    run->lock = -1;
    run->metrics.last_validation = -1;
    config_warnings(config, warnings, sizeof warnings);
    print_notes("warning", warnings);
    if (run_ranks_compare_config(ranks, &run->config, error)) return -1;
    if (run_ranks_split(&run->config, ranks->size, error)) return -1;
    snprintf(run->directory, sizeof run->directory, "%s/%s", config->run_dir, config->name);
    snprintf(run->choices, sizeof run->choices, "%s/products.txt", run->directory);
    const char *choices = allocate ? run->choices : NULL;
    if (setup_backend(&run->be, config, choices, ranks, error)) return -1;
    run->backend_open = true;
    if (setup_precision(&run->precision, config, &run->be, error)) return -1;
    precision_warnings(&run->precision, config, warnings, sizeof warnings);
    print_notes("warning", warnings);
    /* The saved config names the resolved precision, which another machine could resolve
     * differently when it samples from the checkpoint. */
    run->config.precision = precision_setting(&run->precision, config);
    if (run->precision.compute_dtype != DTYPE_F32 &&
        config_dimension_notes(config, warnings, sizeof warnings))
        print_notes("note", warnings);
    if (ranks_agree(ranks, open_data(run, allocate, error), error)) return -1;
    if (ranks_agree(ranks, setup_isolation(&run->config, &run->train, error), error)) return -1;
    if (ranks_agree(ranks, resolve_steps(run, error), error)) return -1;
    if (run_ranks_compare_data(ranks, config, &run->train, &run->val, error)) return -1;
    if (!allocate)
        return trainer_open(&run->trainer, &run->config, &run->precision, &run->be, TRAINER_PLANNED,
                            error);
    int status = setup_trainer(&run->trainer, &run->config, &run->precision, &run->be, error);
    if (ranks_agree(ranks, status, error)) return -1;
    return run_ranks_compare_plan(ranks, &run->trainer, error);
}

static void run_close(struct run *run) {
    metrics_close(&run->metrics);
    saving_close(&run->saving);
    if (run->trainer.config) trainer_close(&run->trainer);
    source_close(&run->train);
    source_close(&run->val);
    tokenizer_close(&run->tokenizer);
    if (run->backend_open) backend_close(&run->be);
    if (run->lock >= 0) close(run->lock);
}

/* Returns the entropy of the corpus in nats per token, a lower bound of the loss, or 0 if it is
 * unknown. */
static double loss_floor(const struct config *config) {
    return strcmp(config->data.train, "tales") == 0 ? tales_nats_per_byte() : 0;
}

/* Rank 0 locks the directory and chooses the checkpoint to resume from; all ranks receive its path
 * in `from`, or "". Returns an exit status. */
static int choose_start(struct run *run, char from[FILE_PATH_MAX], const struct command_line *line,
                        struct error *error) {
    const struct config *config = &run->config;
    int status = EXIT_DONE;
    from[0] = 0;
    if (run->ranks->rank == 0) {
        status = run_directory_lock(&run->lock, run->directory, error) ? EXIT_FAILED : EXIT_DONE;
        if (!status) status = run_directory_start(from, run->directory, config, line, error);
        if (!status) checkpoint_directory_clean(run->directory);
    }
    ranks_agree(run->ranks, status, error);
    ranks_broadcast(run->ranks, &status, sizeof status);
    ranks_broadcast(run->ranks, from, FILE_PATH_MAX);
    return status;
}

/* Loads a checkpoint or the weights of model.init_from, or initializes the trainer. */
static int load(struct run *run, const char *from, struct error *error) {
    const struct config *config = &run->config;
    if (from[0]) {
        if (checkpoint_load(&run->trainer, from, stderr, error)) return -1;
        fprintf(stderr, "resuming from %s\n", from);
        return 0;
    }
    if (config->model.init_from[0] || shape_has_adapters(&run->trainer.gpt.shape))
        return checkpoint_load_initial(&run->trainer.gpt, config, error);
    trainer_initialize(&run->trainer);
    return 0;
}

/* Opens the files that only rank 0 writes. */
static int open_files(struct run *run, struct error *error) {
    const struct config *config = &run->config;
    if (run_directory_set_aside(run->directory, error)) return -1;
    if (run_directory_write_config(run->directory, config, error)) return -1;
    if (config->autotune && backend_write_choices(&run->be, run->choices, error)) return -1;
    return metrics_open(&run->metrics, run->directory, config, run->trainer.state.step, error);
}

/* Starts a new run or resumes one. Returns an exit status. */
static int start(struct run *run, const struct command_line *line, struct error *error) {
    char from[FILE_PATH_MAX];
    bool first = run->ranks->rank == 0;
    int status = choose_start(run, from, line, error);
    if (status) return status;
    status = first ? open_tokenizer(run, from[0] ? from : NULL, error) : 0;
    if (ranks_agree(run->ranks, status, error)) return EXIT_FAILED;
    if (ranks_agree(run->ranks, load(run, from, error), error)) return EXIT_FAILED;
    if (run_ranks_compare_start(run->ranks, &run->trainer, error)) return EXIT_FAILED;
    status = first ? saving_check_disk_space(&run->trainer, run->directory, error) : 0;
    if (status == 0 && first) status = open_files(run, error);
    if (ranks_agree(run->ranks, status, error)) return EXIT_FAILED;
    return run_ranks_check_visible(run->ranks, run->directory, error) ? EXIT_FAILED : EXIT_DONE;
}

/* Sets *best to true if this is the lowest loss so far; otherwise leaves it unchanged. */
static int validate(struct run *run, bool *best, struct error *error) {
    double loss;
    int64_t step = run->trainer.state.step;
    int64_t batches = validation_batches(&run->config, &run->val.loader);
    int status = trainer_evaluate(&run->trainer, &loss, &run->val.loader, batches, error);
    if (status) return status == RESULT_STOPPED ? 0 : -1;
    report_validation(&run->report, step, loss);
    saving_watch(&run->saving, step, loss);
    struct best_validation before = run->trainer.state.best;
    if (validation_record(&run->trainer.state.best, step, loss)) *best = true;
    if (!run->log_failure.text[0]) metrics_validation(&run->metrics, step, loss, &run->log_failure);
    /* A resume repeats a validation without a line in the metrics, so it must not count twice.
     * Several ranks stop early together, so none of them forgets it. */
    if (run->log_failure.text[0] && run->ranks->size == 1) run->trainer.state.best = before;
    return 0;
}

static int sample_now(struct run *run, struct error *error) {
    const struct config *config = &run->config;
    struct sample_result ignored;
    struct sample_options options = {
        .tokens = config->sample.tokens,
        .temperature = config->sample.temperature,
        .top_k = config->sample.top_k,
        .top_p = config->sample.top_p,
        .seed = derive_seed(config->seed, SEED_SAMPLE),
        .stream = (uint64_t)run->trainer.state.step,
        .stop = run->stop,
    };
    report_pause(&run->report);
    printf("--- sample at step %" PRId64 " ---\n", run->trainer.state.step);
    int failed = print_sample(stdout, &ignored, &run->trainer.gpt, &run->tokenizer,
                              config->sample.prompt, &options, error);
    printf("---\n");
    fflush(stdout);
    if (!failed || run->be.failure.text[0]) return failed;
    /* A model without finite predictions only warns here; its gradients decide whether training
     * continues. */
    print_notes("warning", error->text);
    error->text[0] = 0;
    return 0;
}

static int write_line(struct run *run, const struct step_line *line, struct error *error) {
    return metrics_step(&run->metrics, &line->report, line->step_ms, line->tokens_per_s,
                        line->memory_bytes, error);
}

/* Writes a step's line. If that fails, the run ends after the step and keeps the line so long. */
static void log_step(struct run *run, const struct step_line *line) {
    if (!run->log_failure.text[0] && write_line(run, line, &run->log_failure) == 0) return;
    if (run->unwritten_count < UNWRITTEN_MAX) run->unwritten[run->unwritten_count++] = *line;
}

/* Tries the unwritten lines again after the last save, which may have freed space, since a resume
 * does not repeat their steps. */
static void write_again(struct run *run) {
    struct error ignored;
    metrics_repair(&run->metrics);
    for (int i = 0; i < run->unwritten_count; i++)
        if (write_line(run, &run->unwritten[i], &ignored)) return;
}

/* Finishes the oldest unfinished step and logs it. Its time counts from the end of the previous
 * one. */
static int end_step(struct run *run, struct error *error) {
    struct step_report report;
    if (trainer_end_step(&run->trainer, &report, error)) return -1;
    double now = progress_clock(), seconds = now - run->step_began;
    run->step_began = now;
    const struct config *config = &run->config;
    double tokens = (double)batches_step_tokens(config);
    report_step(&run->report, &report, 1e3 * seconds, tokens / seconds);
    saving_watch(&run->saving, report.step, report.loss);
    if (run->precision.scale_loss && report.loss_scale >= 1 &&
        run->trainer.state.scaler.loss_scale < 1) {
        report_pause(&run->report);
        fprintf(stderr,
                "warning: step %" PRId64 ": the loss scale fell below 1, so small gradients are "
                "being lost; consider bf16 or a lower optimizer.lr\n",
                report.step);
    }
    log_step(run, &(struct step_line){report, 1e3 * seconds, tokens / seconds,
                                      backend_peak_bytes(&run->be)});
    return 0;
}

/* Finishes all steps, before work that reads the trainer's state or takes time of its own. */
static int finish_steps(struct run *run, struct error *error) {
    while (run->trainer.unfinished > 0)
        if (end_step(run, error)) return -1;
    trainer_wait_for_weights(&run->trainer);
    return 0;
}

/* Begins a step, and finishes earlier ones beyond the number the device may run ahead. */
static int step_once(struct run *run, struct error *error) {
    if (run->trainer.unfinished == 0) run->step_began = progress_clock();
    if (trainer_begin_step(&run->trainer, &run->train.loader, error)) return -1;
    while (run->trainer.unfinished > run->be.device.steps_ahead)
        if (end_step(run, error)) return -1;
    return 0;
}

/* Returns the signal that stops the run, or 0. With several ranks it changes only between steps, on
 * all ranks at once. */
static int stopped(const struct run *run) {
    return run->ranks->size > 1 ? run->agreed_stop : (int)*run->stop;
}

/* Sets this rank's decisions. A run whose metrics cannot be written ends as if out of time. */
static void own_decisions(struct rank_decisions *own, void *context) {
    struct run *run = context;
    bool out_of_time = report_out_of_time(&run->report) || run->log_failure.text[0];
    *own = (struct rank_decisions){*run->stop, out_of_time, saving_in_progress(&run->saving)};
}

/* Applies the decisions reduced over all ranks during the step. They are made now if there is one
 * rank, or after a pause, which may have been long. Completes a checkpoint that no rank is still
 * writing. */
static int apply_decisions(struct run *run, bool paused, bool *out_of_time, struct error *error) {
    struct exchange *exchange = &run->trainer.optimizer.exchange;
    if (run->ranks->size == 1 || paused) {
        own_decisions(&exchange->decisions, run);
        rank_decisions_reduce(&exchange->decisions, run->ranks);
    }
    run->agreed_stop = (int)exchange->decisions.signal;
    *out_of_time = exchange->decisions.out_of_time;
    return exchange->decisions.saving ? 0 : saving_end(&run->saving, error);
}

static bool due(int64_t step, int64_t every, int64_t steps) {
    return every > 0 && (step % every == 0 || step == steps);
}

/* Takes a step. If it cannot begin, saves the state, which is still that of the previous step. */
static int step_or_save(struct run *run, struct error *error) {
    struct error ignored;
    int64_t step = run->trainer.state.step;
    if (step_once(run, error) == 0) return 0;
    if (run->ranks->size > 1) return -1; /* the other ranks are in the middle of the step */
    bool intact = run->trainer.state.step == step && finish_steps(run, &ignored) == 0;
    if (intact) saving_finish(&run->saving, &ignored);
    return -1;
}

/* Runs the validation, sample and checkpoint that are due after a step, in this order. */
static int after_step(struct run *run, bool *paused, struct error *error) {
    const struct config *config = &run->config;
    int64_t step = run->trainer.state.step, steps = config->train.steps;
    bool validates = run->val.open && due(step, config->eval.every, steps);
    bool samples = due(step, config->sample.every, steps);
    bool saves = config->checkpoint.every > 0 && step % config->checkpoint.every == 0, best = false;
    /* The same on all ranks, although only rank 0 has the tokenizer and samples. */
    *paused = validates || samples || saves;
    samples = samples && run->tokenizer.vocab_size > 0;
    if (*paused && finish_steps(run, error)) return -1;
    if (validates && !stopped(run) && validate(run, &best, error)) return -1;
    if (samples && !stopped(run) && sample_now(run, error)) return -1;
    saves = saves || (best && config->checkpoint.keep_best);
    return saves ? saving_save(&run->saving, error) : 0;
}

/* Saves the last step. If metrics could not be written, the run fails after that. */
static int finish(struct run *run, struct error *error) {
    if (finish_steps(run, error)) return -1;
    int status = saving_finish(&run->saving, error);
    if (run->log_failure.text[0]) {
        if (status) saving_warn(run->trainer.state.step, error);
        write_again(run);
        *error = run->log_failure;
        status = -1;
    }
    return ranks_agree(run->ranks, status, error);
}

static int train(struct run *run, struct error *error) {
    const struct config *config = &run->config;
    int64_t *step = &run->trainer.state.step, steps = config->train.steps;
    /* A run stopped by a signal skips the validation that is due, so it is made up for here. */
    bool missed = *step > 0 && run->val.open && due(*step, config->eval.every, steps) &&
                  run->metrics.last_validation != *step;
    ranks_broadcast(run->ranks, &missed, sizeof missed);
    bool best = false;
    if (missed && validate(run, &best, error)) return -1;
    /* With its line in metrics.jsonl, a later resume would not repeat this validation: save now. */
    bool counts = config->checkpoint.keep_best || config->train.patience > 0;
    if (missed && counts && saving_save(&run->saving, error)) return -1;
    bool paused, out_of_time = false; /* checked after a step: each process takes at least one */
    run->trainer.optimizer.exchange.decide = own_decisions;
    run->trainer.optimizer.exchange.context = run;
    while (*step < steps && !stopped(run) && !out_of_time &&
           !validation_stops_early(config, &run->trainer.state.best)) {
        if (step_or_save(run, error) || after_step(run, &paused, error)) return -1;
        if (apply_decisions(run, paused, &out_of_time, error)) return -1;
    }
    return finish(run, error);
}

static void print_banner(struct run *run) {
    snapshot_plan(&run->trainer);
    report_open(&run->report, stdout, &run->trainer, run->began, loss_floor(&run->config));
    report_banner(&run->report, &run->trainer, run->train.open ? &run->train.loader : NULL,
                  run->val.open ? &run->val.loader : NULL, run->directory);
}

/* Prints a summary, and why the run ended if that was before its last step. Returns the exit
 * status. */
static int report_end(const struct run *run) {
    const struct config *config = &run->config;
    report_waited(&run->report, &run->trainer);
    saving_report(stdout, &run->saving);
    validation_report(stdout, config, &run->trainer.state.best, run->directory);
    if (run->trainer.state.step >= config->train.steps) return EXIT_DONE;
    if (stopped(run)) {
        fprintf(stderr, "stopped by %s; continue with --resume\n", signal_text(stopped(run)));
        return EXIT_SIGNAL + stopped(run);
    }
    printf("stopped at step %" PRId64 " of %" PRId64 ": ", run->trainer.state.step,
           config->train.steps);
    if (validation_stops_early(config, &run->trainer.state.best))
        printf("no lower validation loss in %" PRId64 " validation%s (train.patience is %" PRId64
               ")\n",
               run->trainer.state.best.since, run->trainer.state.best.since == 1 ? "" : "s",
               config->train.patience);
    else
        printf("the %g minutes of train.minutes are over; continue with --resume\n",
               config->train.minutes);
    return EXIT_DONE;
}

int run_train(const struct config *config, const struct command_line *line,
              const struct ranks *ranks, struct error *error) {
    struct run run;
    int status = EXIT_FAILED;
    if (run_open(&run, config, ranks, true, error) == 0) status = start(&run, line, error);
    if (status != EXIT_DONE && run.lock >= 0) rmdir(run.directory); /* succeeds only if empty */
    if (status == EXIT_DONE) {
        print_banner(&run);
        int64_t steps = run.config.train.steps;
        if (run.trainer.state.step >= steps)
            printf("all %" PRId64 " steps are done already; raise train.%s to continue\n", steps,
                   config->train.epochs > 0 ? "epochs" : "steps");
        run.trainer.stop = run.stop = signals_catch();
        saving_open(&run.saving, &run.trainer, &run.report, run.directory);
        int failed = train(&run, error);
        report_pause(&run.report);
        status = failed ? EXIT_FAILED : report_end(&run);
    }
    /* After a failure, data may still be in flight between ranks: main() aborts them instead. */
    if (ranks->size == 1 || status != EXIT_FAILED) run_close(&run);
    return status;
}

static int print_estimate(struct run *run, const struct command_line *line, struct error *error) {
    struct rank_request request = {
        .config = &run->config,
        .be = &run->be,
        .ranks = (int)line->ranks,
        .flops = line->tflops > 0 ? 1e12 * line->tflops : 0,
        .link = line->link_gbs > 0 ? 1e9 * line->link_gbs : 0,
    };
    return rank_print(stdout, &request, error);
}

int run_dry(const struct config *config, const struct command_line *line, struct error *error) {
    struct run run;
    int status = RESULT_FAILED;
    if (run_open(&run, config, &ranks_alone, false, error) == 0 &&
        open_tokenizer(&run, NULL, error) == 0) {
        double gib = line->fit ? line->fit_gib : line->memory_gib;
        struct memory_request request = memory_request(&run.config, &run.be, gib);
        if (line->link > 0) run.be.device.link = 1e9 * line->link;
        if (!line->fit) print_banner(&run);
        status = line->fit ? memory_print_fit(stdout, &request, error)
                           : memory_print_run(stdout, &request, error);
        if (status >= 0 && line->sizes && memory_print_sizes(stdout, &request, error))
            status = RESULT_FAILED;
        if (status == 0 && line->ranks) status = print_estimate(&run, line, error);
    }
    if (status == RESULT_NONE) error->text[0] = 0; /* already printed on standard output */
    run_close(&run);
    return status ? EXIT_FAILED : EXIT_DONE;
}
