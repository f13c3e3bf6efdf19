#include "model/cli/run_state.h"

#include <string.h>
#include <unistd.h>

#include "data/util/program.h"
#include "data/util/progress.h"
#include "kernels/open/backend_open.h"
#include "model/cli/run_directory.h"
#include "model/io/checkpoint.h"
#include "model/session/run_ranks.h"

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
    snprintf(run->choices, sizeof run->choices, "%s/products.txt", run->directory);
    const char *choices = line ? run->choices : NULL;
    if (session_open(&run->session, config, part, ranks, choices, error)) return EXIT_FAILED;
    int status = line ? choose_start(run, line, error) : EXIT_DONE;
    if (status) return status;
    return session_open_trainer(&run->session, run->from, error) ? EXIT_FAILED : EXIT_DONE;
}

void run_close(struct run *run) {
    metrics_close(&run->metrics);
    saving_close(&run->saving);
    training_choices_close(&run->questions);
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
            fprintf(stderr, "resuming from %s\n", run->from);
        return 0;
    }
    if (config->model.init_from[0] || shape_has_adapters(&trainer->gpt.shape))
        return checkpoint_load_initial(&trainer->gpt, config, error);
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
    run->session.trainer.base = &run->base;
    if (!tokenizer || !run->session.train.open) return 0;
    return base_files_add_answers(&run->base, &run->session.train.tokens, tokenizer, error);
}

/* Opens the files that only rank 0 writes. */
static int open_files(struct run *run, struct error *error) {
    const struct config *config = &run->session.config;
    if (run_directory_set_aside(run->directory, error)) return -1;
    struct config whole = *config;
    whole.precision = run->session.given.precision;
    if (run_directory_write_config(run->directory, &whole, error)) return -1;
    if (algorithms_write(run->session.be.algorithms, run->choices, error)) return -1;
    if (algorithms_store(run->session.be.algorithms, error)) {
        print_notes("note", error->text);
        error->text[0] = 0;
    }
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
    status = first ? open_base(run, error) : 0;
    if (ranks_agree(run->session.ranks, status, error)) return EXIT_FAILED;
    status = training_choices_open(&run->questions, trainer, from, error);
    if (ranks_agree(run->session.ranks, status, error)) return EXIT_FAILED;
    if (run_ranks_compare_start(run->session.ranks, trainer, error)) return EXIT_FAILED;
    status = first ? saving_check_disk_space(trainer, run->directory, error) : 0;
    if (status == 0 && first) status = open_files(run, error);
    if (ranks_agree(run->session.ranks, status, error)) return EXIT_FAILED;
    return run_ranks_check_visible(run->session.ranks, run->directory, error) ? EXIT_FAILED
                                                                              : EXIT_DONE;
}
