#include "model/cli/run_state.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "data/util/program.h"
#include "data/util/progress.h"
#include "kernels/open/backend_open.h"
#include "model/cli/run_directory.h"
#include "model/cli/run_ranks.h"
#include "model/cli/validation.h"
#include "model/config/config_check.h"
#include "model/config/precision_switch.h"
#include "model/io/checkpoint.h"
#include "model/plan/memory_plan.h"
#include "model/plan/setup_trainer.h"

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

int run_open_tokenizer(struct run *run, const char *from, struct error *error) {
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
        config_resolve_epochs(&run->config, run->train.loader.sequence_count, 0, 0, error))
        return -1;
    config_resolve_notes(&run->config, notes, sizeof notes);
    print_notes("note", notes);
    return 0;
}

/* Fails if the memory does not suffice after the change of precision, before training starts. */
static int check_switch(struct run *run, struct error *error) {
    struct config switched = run->config;
    struct memory_plan plan;
    if (run->until == run->config.train.steps) return 0;
    precision_switch_apply(&switched);
    if (memory_plan_of(&plan, &switched, &run->be, error)) return -1;
    size_t needed = memory_total(&plan), available = backend_available(&run->be);
    if (needed <= available) return 0;
    return fail(error,
                "precision_switch: after step %" PRId64 " the run needs %.0f MiB, and %.0f MiB are "
                "available\nset train.recompute, or switch the forward pass only "
                "(precision_switch.forward_only)",
                run->until, (double)needed / 0x1p20, (double)available / 0x1p20);
}

/* Resolves the precision, and prints notes and warnings about it. */
static int open_precision(struct run *run, struct error *error) {
    char warnings[4 * ERROR_MAX];
    struct config *config = &run->config;
    if (setup_precision(&run->precision, config, &run->be, error)) return -1;
    precision_warnings(&run->precision, config, warnings, sizeof warnings);
    print_notes("warning", warnings);
    /* The saved config names the resolved precision, which another machine could resolve
     * differently when it samples from the checkpoint. */
    config->precision = precision_setting(&run->precision, config);
    if (run->given.precision == CONFIG_PRECISION_AUTO) run->given.precision = config->precision;
    if (run->precision.compute_dtype != DTYPE_F32 &&
        config_dimension_notes(config, warnings, sizeof warnings))
        print_notes("note", warnings);
    return 0;
}

/* With autotune, rank 0 opens its trainer first and the others use its choices. */
static int open_trainer(struct run *run, struct error *error) {
    const struct ranks *ranks = run->ranks;
    bool tuned = backend_tuning(&run->be).on && ranks->size > 1;
    int status = 0;
    for (int turn = 0; turn <= tuned && status == 0; turn++) {
        if (!tuned || (ranks->rank == 0) == (turn == 0))
            status = setup_trainer(&run->trainer, &run->config, &run->precision, &run->be, error);
        status = ranks_agree(ranks, status, error);
        if (tuned && turn == 0 && status == 0)
            status = ranks_agree(ranks, backend_share_choices(&run->be, ranks, error), error);
    }
    return status ? status : run_ranks_compare_plan(ranks, &run->trainer, error);
}

int run_open(struct run *run, const struct config *config, enum run_part part,
             const struct ranks *ranks, bool allocate, struct error *error) {
    char warnings[4 * ERROR_MAX];
    memset(run, 0, sizeof *run);
    run->began = progress_clock();
    run->ranks = ranks;
    run->config = run->given = *config;
    if (part == RUN_SWITCHED) precision_switch_apply(&run->config);
    run->lock = -1;
    run->metrics.last_validation = -1;
    if (part == RUN_FIRST) {
        config_warnings(config, warnings, sizeof warnings);
        print_notes("warning", warnings);
    }
    if (run_ranks_compare_config(ranks, &run->config, error)) return -1;
    if (config_split_batch(&run->config, ranks->size, error)) return -1;
    snprintf(run->directory, sizeof run->directory, "%s/%s", config->run_dir, config->name);
    snprintf(run->choices, sizeof run->choices, "%s/products.txt", run->directory);
    const char *choices = allocate ? run->choices : NULL;
    if (setup_backend(&run->be, config, choices, ranks, error)) return -1;
    run->backend_open = true;
    if (open_precision(run, error)) return -1;
    if (ranks_agree(ranks, open_data(run, allocate, error), error)) return -1;
    if (ranks_agree(ranks, setup_isolation(&run->config, &run->train, error), error)) return -1;
    if (ranks_agree(ranks, resolve_steps(run, error), error)) return -1;
    run->until = part == RUN_FIRST ? precision_switch_step(&run->config) : run->config.train.steps;
    if (run_ranks_compare_data(ranks, config, &run->train, &run->val, error)) return -1;
    if (ranks_agree(ranks, check_switch(run, error), error)) return -1;
    if (!allocate)
        return trainer_open(&run->trainer, &run->config, &run->precision, &run->be, TRAINER_PLANNED,
                            error);
    return open_trainer(run, error);
}

void run_close(struct run *run) {
    metrics_close(&run->metrics);
    saving_close(&run->saving);
    training_choices_close(&run->questions);
    if (run->trainer.config) trainer_close(&run->trainer);
    base_files_close(&run->base);
    source_close(&run->train);
    source_close(&run->val);
    tokenizer_close(&run->tokenizer);
    if (run->backend_open) backend_close(&run->be);
    if (run->lock >= 0) close(run->lock);
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

/* Resolves train.epochs again for a checkpoint whose run had another batch size. */
static int resolve_steps_left(struct run *run, struct error *error) {
    struct config *config = &run->config;
    const struct training_state *state = &run->trainer.state;
    bool last_part = run->until == config->train.steps;
    if (config->train.epochs == 0 ||
        state->next_sample == state->step * batches_step_samples(config))
        return 0;
    if (config_resolve_epochs(config, run->train.loader.sequence_count, state->step,
                              state->next_sample, error))
        return -1;
    run->until = last_part ? config->train.steps : precision_switch_step(config);
    return 0;
}

/* Loads a checkpoint or the weights of model.init_from, or initializes the trainer. */
static int load(struct run *run, const char *from, struct error *error) {
    const struct config *config = &run->config;
    if (from[0]) {
        if (checkpoint_load(&run->trainer, from, stderr, error) || resolve_steps_left(run, error))
            return -1;
        if (run->trainer.state.step < run->until || run->until == config->train.steps)
            fprintf(stderr, "resuming from %s\n", from);
        return 0;
    }
    if (config->model.init_from[0] || shape_has_adapters(&run->trainer.gpt.shape))
        return checkpoint_load_initial(&run->trainer.gpt, config, error);
    trainer_initialize(&run->trainer);
    return 0;
}

/* Reads the files that go into each checkpoint as they are: of the checkpoint that is resumed, or
 * of model.init_from. */
static int open_base(struct run *run, const char *from, struct error *error) {
    const struct tokenizer *tokenizer = run->trainer.tokenizer;
    const char *model = from[0] ? from : run->config.model.init_from;
    if (base_files_open(&run->base, &run->config, tokenizer, model,
                        tokenizer ? tokenizer->directory : NULL, error))
        return -1;
    run->trainer.base = &run->base;
    if (!tokenizer || !run->train.open) return 0;
    return base_files_add_answers(&run->base, &run->train.tokens, tokenizer, error);
}

/* Opens the files that only rank 0 writes. */
static int open_files(struct run *run, struct error *error) {
    const struct config *config = &run->config;
    if (run_directory_set_aside(run->directory, error)) return -1;
    struct config whole = *config;
    whole.precision = run->given.precision;
    whole.autocast.lower16_forward = run->given.autocast.lower16_forward;
    if (run_directory_write_config(run->directory, &whole, error)) return -1;
    if (backend_write_choices(&run->be, run->choices, error)) return -1;
    if (backend_store_choices(&run->be, error)) {
        print_notes("note", error->text);
        error->text[0] = 0;
    }
    return metrics_open(&run->metrics, run->directory, config, run->trainer.state.step, error);
}

int run_start(struct run *run, const struct command_line *line, struct error *error) {
    char from[FILE_PATH_MAX];
    bool first = run->ranks->rank == 0;
    int status = choose_start(run, from, line, error);
    if (status) return status;
    status = first ? run_open_tokenizer(run, from[0] ? from : NULL, error) : 0;
    if (ranks_agree(run->ranks, status, error)) return EXIT_FAILED;
    if (ranks_agree(run->ranks, load(run, from, error), error)) return EXIT_FAILED;
    status = first ? open_base(run, from, error) : 0;
    if (ranks_agree(run->ranks, status, error)) return EXIT_FAILED;
    status = training_choices_open(&run->questions, &run->trainer, from[0] ? from : NULL, error);
    if (ranks_agree(run->ranks, status, error)) return EXIT_FAILED;
    if (run_ranks_compare_start(run->ranks, &run->trainer, error)) return EXIT_FAILED;
    status = first ? saving_check_disk_space(&run->trainer, run->directory, error) : 0;
    if (status == 0 && first) status = open_files(run, error);
    if (ranks_agree(run->ranks, status, error)) return EXIT_FAILED;
    return run_ranks_check_visible(run->ranks, run->directory, error) ? EXIT_FAILED : EXIT_DONE;
}
