#include "model/cli/run_state.h"

#include <string.h>
#include <unistd.h>

#include "data/util/note.h"
#include "data/util/program.h"
#include "data/util/progress.h"
#include "kernels/open/backend_open.h"
#include "model/cli/run_directory.h"
#include "model/cli/run_sample.h"
#include "model/cli/validation.h"
#include "model/io/checkpoint.h"
#include "model/session/run_ranks.h"
#include "model/session/sample_model.h"

/* Rank 0 locks the directory and chooses the checkpoint to resume from; all ranks receive its path.
 * Returns an exit status. */
static int choose_start(struct run *run, const struct command_line *line, struct error *error) {
    const struct ranks *ranks = run->session.ranks;
    const struct config *config = &run->session.config;
    int status = EXIT_DONE;
    if (ranks->rank == 0) {
        status = run_directory_lock(&run->lock, run->directory, error) ? EXIT_FAILED : EXIT_DONE;
        if (!status) status = run_directory_start(run->from, run->directory, config, line, error);
        if (!status) checkpoint_directory_clean(run->directory);
    }
    ranks_agree(ranks, status, error);
    ranks_broadcast(ranks, &status, sizeof status);
    ranks_broadcast(ranks, run->from, sizeof run->from);
    return status;
}

int run_open(struct run *run, const struct config *config, enum run_part part,
             const struct ranks *ranks, const struct command_line *line, struct error *error) {
    memset(run, 0, sizeof *run);
    run->began = progress_clock();
    run->lock = -1;
    run->metrics.last_validation = -1;
    snprintf(run->directory, sizeof run->directory, "%s/%s", config->run_dir, config->name);
    snprintf(run->algorithms_path, sizeof run->algorithms_path, "%s/products.txt", run->directory);
    const char *algorithms = line ? run->algorithms_path : NULL;
    if (session_open(&run->session, config, part, ranks, algorithms, error)) return EXIT_FAILED;
    int status = line ? choose_start(run, line, error) : EXIT_DONE;
    if (status) return status;
    return session_open_trainer(&run->session, run->from, error) ? EXIT_FAILED : EXIT_DONE;
}

void run_close(struct run *run) {
    metrics_close(&run->metrics);
    saving_close(&run->saving);
    training_choices_close(&run->questions);
    rollouts_close(&run->rollouts);
    sampler_close(&run->sampler);
    base_files_close(&run->base);
    session_close(&run->session);
    if (run->lock >= 0) close(run->lock);
}

/* Loads a checkpoint or the weights of model.init_from, or initializes the trainer. */
static int load(struct run *run, struct error *error) {
    struct trainer *trainer = &run->session.trainer;
    const struct config *config = &run->session.config;
    if (run->from[0]) {
        if (checkpoint_load(trainer, run->from, stderr, error)) return -1;
        if (trainer->state.step < run->session.until || run->session.until == config->train.steps)
            note(stderr, "note", "resuming from %s", run->from);
        return 0;
    }
    if (config->model.init_from[0] || shape_has_adapters(&trainer->model.shape))
        return checkpoint_load_initial(&trainer->model, config, stderr, error);
    trainer_initialize(trainer);
    return 0;
}

/* Reads the files that go into each checkpoint as they are: of the checkpoint that is resumed, or
 * of model.init_from. */
static int open_base(struct run *run, struct error *error) {
    const struct tokenizer *tokenizer = run->session.trainer.tokenizer;
    const char *model = run->from[0] ? run->from : run->session.config.model.init_from;
    if (base_files_open(&run->base, &run->session.config, tokenizer, model,
                        tokenizer ? tokenizer->directory : NULL, error))
        return -1;
    base_files_note_left_out(&run->base, stderr);
    run->session.trainer.base = &run->base;
    if (!tokenizer || !run->session.train.open) return 0;
    return base_files_add_answers(&run->base, &run->session.train.tokens, tokenizer, error);
}

/* Opens the sampler once for all samples, since the graphs of a step are lost whenever memory is
 * released. */
static int open_sampler(struct run *run, struct error *error) {
    const struct config *config = &run->session.config;
    const struct tokenizer *tokenizer = &run->session.tokenizer;
    struct sample_options options = sample_options_of(config);
    const bool rolls_out = config_reads_prompts(config);
    if (rolls_out && tokenizer->vocab_size == 0)
        return fail(error,
                    "train.objective is grpo, which needs the tokenizer of its prompts\nname "
                    "its folder in data.tokenizer_dir");
    if (config_texts(config) == 0 || tokenizer->vocab_size == 0) return 0;
    options.exact = false;
    options.vocabulary = tokenizer->vocab_size;
    sample_set_ends(&options, &run->base.tokens, tokenizer);
    if (rolls_out) options = rollouts_options(config, &options, tokenizer);
    return sampler_open(&run->sampler, &run->session.trainer.model, &options, error);
}

/* Opens the rollouts of a run with prompts. */
static int open_rollouts(struct run *run, struct error *error) {
    struct session *session = &run->session;
    struct loader *loaders[] = {&session->train.loader,
                                session->val.open ? &session->val.loader : NULL};
    if (!config_reads_prompts(&session->config)) return 0;
    return rollouts_open(&run->rollouts, &session->config, &run->sampler, &session->tokenizer,
                         loaders, run->directory, session->trainer.state.step, error);
}

bool run_has_steps(const struct run *run) {
    const struct training_state *state = &run->session.trainer.state;
    return state->step < run->session.until &&
           !validation_stops_early(&run->session.config, &state->best);
}

/* Writes the files that a later resume reads. */
static int write_plan(const struct run *run, struct error *error) {
    struct config whole = run->session.config;
    whole.precision = run->session.given.precision;
    if (run_directory_write_config(run->directory, &whole, error)) return -1;
    return algorithms_write(run->session.be.algorithms, run->algorithms_path, error);
}

/* Opens the files that only rank 0 writes. A resume that takes no step keeps the run's plan: its
 * train.steps may be too low by mistake. */
static int open_files(struct run *run, struct error *error) {
    const struct config *config = &run->session.config;
    if (run_directory_set_aside(run->directory, error)) return -1;
    if (run_has_steps(run) && write_plan(run, error)) return -1;
    if (algorithms_store(run->session.be.algorithms, error)) note_error(stderr, "note", error);
    return metrics_open(&run->metrics, run->directory, config, run->session.trainer.state.step,
                        error);
}

int run_start(struct run *run, struct error *error) {
    struct trainer *trainer = &run->session.trainer;
    const char *from = run->from[0] ? run->from : NULL;
    bool first = run->session.ranks->rank == 0;
    int status = first ? session_open_tokenizer(&run->session, from, error) : 0;
    if (ranks_agree(run->session.ranks, status, error)) return EXIT_FAILED;
    if (ranks_agree(run->session.ranks, load(run, error), error)) return EXIT_FAILED;
    status = first && (open_base(run, error) || open_sampler(run, error)) ? -1 : 0;
    if (ranks_agree(run->session.ranks, status, error)) return EXIT_FAILED;
    status = training_choices_open(&run->questions, trainer, from, error);
    if (ranks_agree(run->session.ranks, status, error)) return EXIT_FAILED;
    if (run_ranks_compare_start(run->session.ranks, trainer, error)) return EXIT_FAILED;
    status = first ? saving_check_disk_space(trainer, run->directory, error) : 0;
    if (status == 0 && first) status = open_files(run, error);
    if (status == 0) status = open_rollouts(run, error);
    if (ranks_agree(run->session.ranks, status, error)) return EXIT_FAILED;
    return run_ranks_check_visible(run->session.ranks, run->directory, error) ? EXIT_FAILED
                                                                              : EXIT_DONE;
}
