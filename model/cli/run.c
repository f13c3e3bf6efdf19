#include "model/cli/run.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "data/corpus/tales.h"
#include "data/util/note.h"
#include "data/util/printed.h"
#include "data/util/progress.h"
#include "data/util/signals.h"
#include "model/cli/run_sample.h"
#include "model/cli/run_state.h"
#include "model/cli/validation.h"
#include "model/plan/memory_text.h"
#include "model/session/reference_file.h"
#include "model/session/sample_model.h"
#include "model/task/evaluate.h"

/* Sets the loss to minus the mean reward of completions of the first prompts. */
static int validate_rewards(struct run *run, double *loss, int64_t prompts, struct error *error) {
    struct policy_sums sums;
    if (rollouts_evaluate(&run->rollouts, &run->session.val.loader, prompts, &sums, error))
        return -1;
    memcpy(&run->session.trainer.validated, &sums, sizeof sums);
    *loss = -(double)(sums.reward / sums.sequences);
    return 0;
}

/* Sets *best to true if this is the lowest loss so far; otherwise leaves it unchanged. */
static int validate(struct run *run, bool *best, struct error *error) {
    struct trainer *trainer = &run->session.trainer;
    double loss;
    int64_t step = trainer->state.step;
    int64_t sequences = evaluate_sequences(&run->session.config, &run->session.val.loader);
    int status = config_reads_prompts(&run->session.config)
                     ? validate_rewards(run, &loss, sequences, error)
                     : trainer_evaluate(trainer, &loss, &run->session.val.loader, sequences, error);
    if (status) return status == RESULT_STOPPED ? 0 : -1;
    report_validation(&run->report, step, loss, &trainer->validated);
    saving_watch_validation(&run->saving, step, loss);
    struct best_validation before = trainer->state.best;
    if (validation_record(&trainer->state.best, step, loss)) *best = true;
    if (!run->log_failure.text[0])
        metrics_validation(&run->metrics, step, loss, &trainer->validated, &run->log_failure);
    /* A resume repeats a validation whose line could not be written, so it does not count yet.
     * Several ranks stop early together, so all of them count it. */
    if (run->log_failure.text[0] && run->session.ranks->size == 1) trainer->state.best = before;
    return 0;
}

static int answer_questions(struct run *run, struct error *error) {
    int64_t step = run->session.trainer.state.step;
    struct accuracy accuracy;
    int status = training_choices_answer(&run->questions, &run->session.trainer, &accuracy, error);
    if (status) return status == RESULT_STOPPED ? 0 : -1;
    report_accuracy(&run->report, step, &accuracy);
    if (!run->log_failure.text[0])
        metrics_accuracy(&run->metrics, step, &accuracy, &run->log_failure);
    return 0;
}

static int sample_now(struct run *run, struct error *error) {
    struct trainer *trainer = &run->session.trainer;
    const struct config *config = &run->session.config;
    struct sample_result ignored;
    run->sampler.options.stream = (uint64_t)trainer->state.step;
    run->sampler.options.stop = run->stop;
    report_pause(&run->report);
    printf("--- sample at step %" PRId64 " ---\n", trainer->state.step);
    int failed = print_sample(stdout, &ignored, &run->sampler, &run->session.tokenizer,
                              config->sample.prompt, error);
    printf("---\n");
    fflush(stdout);
    if (!failed || run->session.be.failure.text[0]) return failed;
    /* A model without finite predictions only warns here; its gradients decide whether training
     * continues. */
    note_error(stderr, "warning", error);
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

/* Warns once of a step without a target that counts in the loss. */
static void warn_of_targets(struct run *run, const struct step_report *step) {
    if (step->loss != 0 || step->gradient_norm != 0 || run->warned_of_targets ||
        config_reads_prompts(&run->session.config)) /* all rewards may be equal */
        return;
    report_pause(&run->report);
    note(stderr, "warning",
         "step %" PRId64 ": no target counts in the loss: sequences are cut before answers begin; "
         "raise data.seq_len, or leave out long prompts",
         step->step);
    run->warned_of_targets = true;
}

/* Warns once of a loss scale below 1, also one that the run starts or resumes with. */
static void warn_of_scale(struct run *run, int64_t step) {
    const double scale = (double)run->session.trainer.state.scaler.loss_scale;
    if (!run->session.precision.scale_loss || run->warned_of_scale || scale >= 1) return;
    report_pause(&run->report);
    note(stderr, "warning",
         "step %" PRId64 ": the loss scale is %.6g, below 1, so small gradients are being lost; "
         "consider bf16 or a lower optimizer.lr",
         step, scale);
    run->warned_of_scale = true;
}

#define DIVERGED          "training diverges: the last %d losses are above %.4g; %s"
#define DIVERGENCE_ADVICE "lower optimizer.lr, or limit gradients (optimizer.grad_clip)"

/* Finishes the oldest unfinished step and logs it, also one that ends a diverged run. Its time
 * counts from the end of the previous one. */
static int end_step(struct run *run, struct error *error) {
    struct step_report report;
    int status = trainer_end_step(&run->session.trainer, &report, error);
    if (report.step == 0) return status;
    double now = progress_clock(), seconds = now - run->step_began;
    run->step_began = now;
    const struct config *config = &run->session.config;
    double tokens = (double)batches_step_tokens(config);
    report_step(&run->report, &report, 1e3 * seconds, tokens / seconds);
    saving_watch_step(&run->saving, report.step, report.loss);
    warn_of_targets(run, &report);
    warn_of_scale(run, report.step);
    if (divergence_watch(&run->divergence, config, report.loss)) {
        report_pause(&run->report);
        note(stderr, "warning", "step %" PRId64 ": " DIVERGED, report.step, DIVERGENCE_STEPS,
             run->divergence.limit, DIVERGENCE_ADVICE);
    }
    log_step(run, &(struct step_line){report, 1e3 * seconds, tokens / seconds,
                                      backend_peak_bytes(&run->session.be)});
    return status;
}

/* Finishes all steps, before work that reads the trainer's state or takes time of its own. */
static int finish_steps(struct run *run, struct error *error) {
    while (run->session.trainer.unfinished > 0)
        if (end_step(run, error)) return -1;
    trainer_wait_for_weights(&run->session.trainer);
    return 0;
}

/* Reasons to end a run or to wait, on any rank. */
struct decisions {
    int64_t signal;      /* number of a signal that ends the run, or 0 */
    int64_t out_of_time; /* 1: train.minutes have passed */
    int64_t saving;      /* 1: a checkpoint is still being written */
};

/* Decides with the other ranks. A run whose metrics cannot be written ends as if out of time. */
static struct decisions decide(struct run *run) {
    bool out_of_time = report_out_of_time(&run->report) || run->log_failure.text[0];
    int64_t values[] = {*run->stop, out_of_time, saving_in_progress(&run->saving)};
    double began = progress_clock();
    ranks_max_each(run->session.ranks, values, 3);
    if (run->session.ranks->size > 1) run->waited += progress_clock() - began;
    return (struct decisions){values[0], values[1], values[2]};
}

/* Draws the completions of the next step, after all steps before. */
static int roll_out(struct run *run, struct error *error) {
    struct trainer *trainer = &run->session.trainer;
    if (finish_steps(run, error)) return -1;
    run->step_began = progress_clock();
    struct evaluator evaluator = trainer_evaluator(trainer);
    return rollouts_make(&run->rollouts, &evaluator, &run->session.train.loader,
                         trainer->state.step + 1, trainer->state.next_sample, error);
}

/* Begins a step, and finishes earlier ones beyond the number the device may run ahead. With several
 * ranks, decisions are exchanged before the update, because the weights that it sends would delay
 * them. */
static int step_once(struct run *run, struct decisions *decisions, struct error *error) {
    if (run->session.trainer.unfinished == 0) run->step_began = progress_clock();
    if (config_reads_prompts(&run->session.config) && roll_out(run, error)) return -1;
    if (trainer_accumulate(&run->session.trainer, &run->session.train.loader, error)) return -1;
    if (run->session.ranks->size > 1) *decisions = decide(run);
    trainer_update(&run->session.trainer);
    while (run->session.trainer.unfinished > run->session.be.device.steps_ahead)
        if (end_step(run, error)) return -1;
    return 0;
}

/* Returns the signal that stops the run, or 0. With several ranks it changes only between steps, on
 * all ranks at once. */
static int stopped(const struct run *run) {
    return run->session.ranks->size > 1 ? run->agreed_stop : (int)*run->stop;
}

/* Completes a checkpoint that no rank is still writing. */
static int apply(struct run *run, const struct decisions *decisions, struct error *error) {
    run->agreed_stop = (int)decisions->signal;
    run->out_of_time = decisions->out_of_time;
    return decisions->saving ? 0 : saving_end(&run->saving, error);
}

static bool due(int64_t step, int64_t every, int64_t steps) {
    return every > 0 && (step % every == 0 || step == steps);
}

/* Takes a step. If it cannot begin, saves the state, which is still that of the previous step. */
static int step_or_save(struct run *run, struct decisions *decisions, struct error *error) {
    struct error ignored;
    int64_t step = run->session.trainer.state.step;
    if (step_once(run, decisions, error) == 0) return 0;
    if (run->session.ranks->size > 1) return -1; /* the other ranks are in the middle of the step */
    bool intact = run->session.trainer.state.step == step && finish_steps(run, &ignored) == 0;
    if (intact) saving_finish(&run->saving, &ignored);
    return -1;
}

/* Runs the validation, questions, sample and checkpoint that are due after a step, in this order.
 */
static int after_step(struct run *run, bool *paused, struct error *error) {
    const struct config *config = &run->session.config;
    int64_t step = run->session.trainer.state.step, steps = config->train.steps;
    bool validates = run->session.val.open && due(step, config->eval.every, steps);
    int64_t answers_every = config->eval.choices_every > 0 ? config->eval.choices_every
                            : config->eval.every > 0       ? config->eval.every
                                                           : steps;
    bool answers = run->questions.open && due(step, answers_every, steps);
    bool samples = due(step, config->sample.every, steps);
    bool saves = config->checkpoint.every > 0 && step % config->checkpoint.every == 0, best = false;
    /* The same on all ranks, although only rank 0 has the tokenizer and samples. */
    *paused = validates || answers || samples || saves;
    samples = samples && run->session.tokenizer.vocab_size > 0;
    if (*paused && finish_steps(run, error)) return -1;
    if (validates && !stopped(run) && validate(run, &best, error)) return -1;
    if (answers && !stopped(run) && answer_questions(run, error)) return -1;
    if (samples && !stopped(run) && sample_now(run, error)) return -1;
    saves = saves || (best && config->checkpoint.keep_best);
    return saves ? saving_save(&run->saving, error) : 0;
}

/* Names the run that follows one on the built-in sums. */
static void print_next(const struct run *run) {
    const struct config *config = &run->session.config;
    if (run->session.ranks->rank == 0 && config_reads_text(config) && !run_has_steps(run) &&
        strcmp(config->data.train, "sums") == 0)
        printf("next: ./train --config grpo.json --set model.init_from=%s\n", run->directory);
}

/* Saves the last step. If metrics could not be written, the run fails after that. */
static int finish(struct run *run, struct error *error) {
    if (finish_steps(run, error)) return -1;
    int status = saving_finish(&run->saving, error);
    if (run->log_failure.text[0]) {
        if (status) saving_warn(run->session.trainer.state.step, error);
        write_again(run);
        *error = run->log_failure;
        status = -1;
    }
    if (status == 0) print_next(run);
    return ranks_agree(run->session.ranks, status, error);
}

/* True if the next step trains on completions that the one before has drawn: no run ends there. */
static bool in_generation(const struct run *run) {
    const struct config *config = &run->session.config;
    return config_reads_prompts(config) &&
           run->session.trainer.state.step % config->grpo.num_iterations != 0;
}

static int train(struct run *run, struct error *error) {
    struct trainer *trainer = &run->session.trainer;
    const struct config *config = &run->session.config;
    int64_t *step = &trainer->state.step, steps = config->train.steps;
    /* A run stopped by a signal skips the validation that is due, so it is made up for here. The
     * metrics also show one that no checkpoint was saved after. */
    bool missed = *step > 0 && run->session.val.open && due(*step, config->eval.every, steps) &&
                  trainer->state.best.last != *step && run->metrics.last_validation != *step;
    ranks_broadcast(run->session.ranks, &missed, sizeof missed);
    bool best = false;
    warn_of_scale(run, *step);
    if (missed && validate(run, &best, error)) return -1;
    /* With its line in metrics.jsonl, a later resume would not repeat this validation: save now. */
    bool counts = config->checkpoint.keep_best || config->train.patience > 0;
    if (missed && counts && saving_save(&run->saving, error)) return -1;
    struct decisions decisions = {0};
    bool paused; /* run->out_of_time is updated after a step: each process takes at least one */
    while (run_has_steps(run) && (in_generation(run) || (!stopped(run) && !run->out_of_time))) {
        if (step_or_save(run, &decisions, error) || after_step(run, &paused, error)) return -1;
        /* One rank decides here, and all do so again after a pause, which may have been long. */
        if (run->session.ranks->size == 1 || paused) decisions = decide(run);
        if (apply(run, &decisions, error)) return -1;
    }
    return finish(run, error);
}

/* Returns the entropy of the corpus in nats per token, a lower bound of the loss, or 0 if it is
 * unknown. An objective with figures has another loss than the cross entropy. */
static double loss_floor(const struct config *config) {
    const bool known = !objective_of(config)->figures && strcmp(config->data.train, "tales") == 0;
    return known ? tales_nats_per_byte() : 0;
}

static void print_banner(struct run *run) {
    struct trainer *trainer = &run->session.trainer;
    snapshot_plan(trainer);
    report_open(&run->report, stdout, trainer, run->began, loss_floor(&run->session.config));
    report_banner(&run->report, trainer,
                  run->session.train.open ? &run->session.train.loader : NULL,
                  run->session.val.open ? &run->session.val.loader : NULL, run->directory);
}

/* True if this part of the run has ended, and the next one follows. */
static bool switches(const struct run *run) {
    return run->session.trainer.state.step >= run->session.until &&
           run->session.until < run->session.config.train.steps && !(run->stop && stopped(run)) &&
           !run->out_of_time &&
           !validation_stops_early(&run->session.config, &run->session.trainer.state.best);
}

/* Prints a summary, and why the run ended if that was before its last step. Returns the exit
 * status. */
static int report_end(const struct run *run) {
    const struct trainer *trainer = &run->session.trainer;
    const struct config *config = &run->session.config;
    report_waited(&run->report, run->waited + trainer->optimizer.exchange.waited);
    saving_report(stdout, &run->saving);
    validation_report(stdout, config, &trainer->state.best, run->directory);
    if (trainer->state.step >= config->train.steps) return EXIT_DONE;
    if (switches(run)) {
        printf("step %" PRId64 ": the precision changes\n", trainer->state.step);
        return EXIT_DONE;
    }
    if (stopped(run)) {
        note(stderr, "note", "stopped by %s; %s", signal_text(stopped(run)),
             trainer->state.step > 0 ? "continue with --resume"
                                     : "no step was taken, so start again without --resume");
        return EXIT_SIGNAL + stopped(run);
    }
    printf("stopped at step %" PRId64 " of %" PRId64 ": ", trainer->state.step,
           config->train.steps);
    if (validation_stops_early(config, &trainer->state.best))
        printf("no lower validation loss in %" PRId64 " validation%s (train.patience is %" PRId64
               ")\n",
               trainer->state.best.since, PLURAL(trainer->state.best.since),
               config->train.patience);
    else
        printf("train.minutes (%g) are over; %s\n", config->train.minutes,
               trainer->state.step > 0 ? "continue with --resume"
                                       : "the same command continues before the first step");
    return EXIT_DONE;
}

#define ENDING_TEXT                                                                \
    "saving and stopping after this step; a second Ctrl-C ends at once, and the\n" \
    "steps since the last checkpoint are lost\n"

/* Trains one part of a run, unless a checkpoint is beyond it. Sets *next to true if another part
 * follows. Returns an exit status. */
static int train_part(struct run *run, bool *next, struct error *error) {
    struct trainer *trainer = &run->session.trainer;
    int64_t steps = run->session.config.train.steps;
    *next = switches(run);
    if (*next) return EXIT_DONE;
    print_banner(run);
    if (trainer->state.step >= steps)
        printf("all steps (%" PRId64 ") are done already; raise train.%s to continue\n", steps,
               run->session.config.train.epochs > 0 ? "epochs" : "steps");
    trainer->stop = run->stop = signals_catch();
    signals_explain(run->report.terminal ? "\r\033[K" ENDING_TEXT : ENDING_TEXT);
    saving_open(&run->saving, trainer, &run->report, run->directory);
    int failed = session_open_reference(&run->session, run->directory, run->report.deadline, error);
    if (failed == RESULT_STOPPED) {
        const struct decisions decisions = decide(run);
        run->agreed_stop = (int)decisions.signal, run->out_of_time = decisions.out_of_time;
    }
    if (failed != RESULT_FAILED) failed = train(run, error);
    signals_explain(NULL);
    report_pause(&run->report);
    *next = !failed && switches(run);
    int status = failed ? EXIT_FAILED : report_end(run);
    if (status != EXIT_DONE || *next || run->divergence.steps < DIVERGENCE_STEPS) return status;
    fail(error, DIVERGED, run->divergence.steps, run->divergence.limit, DIVERGENCE_ADVICE);
    return EXIT_FAILED;
}

/* Opens, starts, trains and closes one part of a run, and stores its resolved precision in config.
 * Returns an exit status. */
static int open_and_train(struct run *run, struct config *config, enum run_part part,
                          const struct command_line *line, const struct ranks *ranks, bool *next,
                          struct error *error) {
    *next = false;
    int status = run_open(run, config, part, ranks, line, error);
    if (status == EXIT_DONE) status = run_start(run, error);
    if (status != EXIT_DONE && run->lock >= 0) rmdir(run->directory); /* only if it is empty */
    if (status == EXIT_DONE) status = train_part(run, next, error);
    config->precision = run->session.given.precision;
    /* After a failure, data may still be in flight between ranks: main() aborts them instead. */
    if (ranks->size == 1 || status != EXIT_FAILED) run_close(run);
    return status;
}

int run_train(const struct config *config, const struct command_line *line,
              const struct ranks *ranks, struct error *error) {
    struct run run;
    bool next;
    struct config whole = *config;
    int status = open_and_train(&run, &whole, RUN_FIRST, line, ranks, &next, error);
    if (!next) return status;
    struct command_line resuming = *line;
    resuming.resume = true, resuming.resume_path = NULL;
    return open_and_train(&run, &whole, RUN_SWITCHED, &resuming, ranks, &next, error);
}

int run_dry(const struct config *config, const char *from, const struct command_line *line,
            struct error *error) {
    (void)from;
    struct run run;
    int status = RESULT_FAILED;
    if (run_open(&run, config, RUN_FIRST, &ranks_alone, NULL, error) == EXIT_DONE &&
        session_open_tokenizer(&run.session, NULL, error) == 0) {
        double gib = line->fit ? line->fit_gib : line->memory_gib;
        struct memory_request request =
            memory_request(&run.session.config, &run.session.be, gib > 0 ? gib : -1);
        if (line->link > 0) run.session.be.device.link = 1e9 * line->link;
        if (!line->fit) print_banner(&run);
        status = line->fit ? memory_print_fit(stdout, &request, error)
                           : memory_print_run(stdout, &request, error);
        if (status >= 0 && line->sizes && memory_print_sizes(stdout, &request, error))
            status = RESULT_FAILED;
    }
    if (status == RESULT_NONE) error->text[0] = 0; /* already printed on standard output */
    run_close(&run);
    return status ? EXIT_FAILED : EXIT_DONE;
}
