/* The lowest validation loss (recorded, saved and resumed), early stopping and
 * train.epochs. */
#include "model/cli/validation.h"

#include <math.h>

#include "model/config/config_keys.h"
#include "test/data/corpus/shard_put.h"
#include "test/model/cli/program_fixture.h"

/* Validation text that becomes less likely with every step: the first validation is the best. */
static void set_up_noise(void) {
    struct shard_writer writer;
    char path[FILE_PATH_MAX];
    set_up();
    snprintf(path, sizeof path, "%s", in_folder("noise"));
    cr_assert_eq(shard_writer_open(&writer, path, 256, 1 << 20, &error), 0, "%s", error.text);
    for (uint64_t i = 0; i < 300; i++) {
        const int32_t token = (int32_t)(random_bits(2, 0, i) % 256);
        cr_assert_eq(shard_writer_put(&writer, &token, 1, &error), 0, "%s", error.text);
    }
    cr_assert_eq(shard_writer_finish(&writer, &error), 0, "%s", error.text);
    cr_assert_eq(shard_writer_publish(&writer, &error), 0, "%s", error.text);
}

TestSuite(validation, .init = set_up_noise, .fini = remove_folder);

#define RISING                                                                              \
    "--config|tiny.json|--set|data.val=noise_*.bin|--set|eval.every=2|--set|sample.every=0" \
    "|--set|checkpoint.every=6|--set|checkpoint.keep=1"
#define SIXTH RISING "|--set|eval.every=6|--set|train.patience=1"
#define BEST  RISING "|--set|checkpoint.keep_best=true"

Test(validation, record_counts_what_is_not_lower) {
    struct best_validation best = {0};
    struct config config;
    config_defaults(&config);
    cr_expect(!validation_record(&best, 1, (double)NAN) && best.step == 0);
    cr_expect_eq(best.last, 1);
    cr_expect(validation_record(&best, 2, 3.0) && best.step == 2 && best.since == 0);
    cr_expect(!validation_record(&best, 3, 3.0), "equal is not lower");
    cr_expect(!validation_record(&best, 4, (double)NAN));
    cr_expect(!validation_record(&best, 5, -(double)INFINITY));
    cr_expect(best.step == 2 && best.since == 3);
    cr_expect_not(validation_stops_early(&config, &best), "patience is off by default");
    config.train.patience = 3;
    cr_expect(validation_stops_early(&config, &best));
    config.train.patience = 4;
    cr_expect_not(validation_stops_early(&config, &best));
    cr_expect(validation_record(&best, 6, 2.5) && best.step == 6 && best.since == 0);
}

/* Finds the step and loss of the lowest validation in metrics.jsonl, up to a given step. */
static long lowest(const char *run_folder, long until) {
    char line[1024];
    long step, best = 0;
    double loss, least = (double)INFINITY;
    FILE *file = fopen(in_folder("%s/metrics.jsonl", run_folder), "r");
    cr_assert_not_null(file);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "{\"step\": %ld, \"val_loss\": %lf", &step, &loss) == 2 && step <= until &&
            loss < least)
            best = step, least = loss;
    fclose(file);
    return best;
}

Test(validation, the_best_checkpoint_stays) {
    char names[100], line[200];
    expect_exit(BEST, 0);
    long best = lowest("a/run", 24);
    cr_assert(best > 0 && best < 18, "the loss falls until step %ld", best);
    snprintf(names, sizeof names, "step-%08ld step-00000024", best);
    cr_expect_str_eq(names_in("a/run/checkpoints", ""), names);
    snprintf(line, sizeof line, "at step %ld, in a/run/checkpoints/step-%08ld\n", best, best);
    cr_expect_not_null(strstr(out_text, line), "%s\nis not in: %s", line, out_text);
    /* Only the newest checkpoint stays if keep_best is off. */
    expect_exit(RISING "|--set|name=b", 0);
    cr_expect_str_eq(names_in("a/b/checkpoints", ""), "step-00000024");
    cr_expect_null(strstr(out_text, "lowest"), "%s", out_text);
}

static double last_validation(const char *run_folder) {
    char line[1024];
    long step;
    double loss, last = -1;
    FILE *file = fopen(in_folder("%s/metrics.jsonl", run_folder), "r");
    cr_assert_not_null(file);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "{\"step\": %ld, \"val_loss\": %lf", &step, &loss) == 2) last = loss;
    fclose(file);
    return last;
}

#define BATCHES RISING "|--set|eval.batches=1|--set|optimizer.lr=0|--set|optimizer.min_lr=0"

/* Validation reads 8 sequences of the 10, whatever the micro-batch: sums of fp32 in another order
 * differ by some 2^-24 of the loss. Compare agrees. */
Test(validation, reads_the_same_text_with_any_micro_batch) {
    static const int sizes[] = {1, 2, 4, 3, 12}; /* the first three divide the same step */
    char arguments[300], command[3 * FILE_PATH_MAX];
    const char *name = getenv("COMPARE") ? getenv("COMPARE") : "./compare";
    char compare[FILE_PATH_MAX];
    cr_assert_not_null(realpath(name, compare), "no program %s: build it or set COMPARE", name);
    for (int i = 0; i < 5; i++) {
        const int accumulated = sizes[i] <= 4 ? 4 / sizes[i] : 1;
        snprintf(arguments, sizeof arguments,
                 BATCHES "|--set|name=m%d|--set|train.micro_batch_size=%d|--set|"
                         "train.grad_accum_steps=%d",
                 sizes[i], sizes[i], accumulated);
        expect_exit(arguments, 0);
        char run_folder[20];
        snprintf(run_folder, sizeof run_folder, "a/m%d", sizes[i]);
        cr_expect_float_eq(last_validation(run_folder), last_validation("a/m1"), 2e-6, "%s",
                           run_folder);
    }
    snprintf(command, sizeof command, "cd %s && %s a/m1 a/m2 a/m4 >said", folder, compare);
    cr_expect_eq(system(command), 0);
    size_t size;
    char *text = read_whole("said", &size);
    cr_expect_null(strstr(text, " differs: "), "%s", text);
    free(text);
    /* A step of other tokens is another training, and validates on the same text. */
    snprintf(command, sizeof command, "cd %s && %s a/m1 a/m12 >said", folder, compare);
    cr_expect(system(command) >= 0);
    text = read_whole("said", &size);
    cr_expect_not_null(strstr(text, "train.micro_batch_size differs: these are different"), "%s",
                       text);
    cr_expect_null(strstr(text, "other text"), "%s", text);
    free(text);
}

static bool said(const char *text) {
    return strstr(error_text, text) != NULL;
}

/* A run with keep_best stands for its best checkpoint, others for the newest. */
Test(validation, reading_commands_take_the_best_checkpoint) {
    char best_line[100], newest_line[100];
    expect_exit(BEST, 0);
    const long best = lowest("a/run", 24);
    snprintf(best_line, sizeof best_line, "note: a/run: step %ld, of the lowest validation loss",
             best);
    snprintf(newest_line, sizeof newest_line, "note: a/run: step 24, the newest; the lowest");
    expect_exit("--export|kept|--from|a/run", 0);
    cr_expect(said(best_line), "%s", error_text);
    expect_exit("--export|newest|--from|a/run|--newest", 0);
    cr_expect(said(newest_line), "%s", error_text);
    expect_exit("--export|best|--from|a/run|--best", 0);
    char kept[60];
    snprintf(kept, sizeof kept, "a/run/checkpoints/step-%08ld/model.safetensors", best);
    expect_exit("--export|direct|--from|a/run/checkpoints/step-00000024", 0);
    cr_expect(!said("note: a/run"), "%s", error_text);
    expect_same_file("kept/model.safetensors", "best/model.safetensors");
    expect_same_file("newest/model.safetensors", "direct/model.safetensors");
    expect_exit("--eval|--data|noise_*.bin|--from|a/run", 0);
    cr_expect(said(best_line), "%s", error_text);
    expect_exit("--sample|On|--tokens|1|--from|a/run", 0);
    cr_expect(said(best_line), "%s", error_text);
    /* --resume goes on from the newest one. */
    expect_exit(BEST "|--set|train.steps=25|--resume", 0);
    cr_expect_eq(last_step("a/run"), 25);
    expect_error("--export|x|--from|a/run|--best|--newest", 2, "not both");
    expect_error("--audit|--config|tiny.json|--best", 2, "in --from");
    expect_error("--export|x|--from|kept|--best", 1, "is not a run");
    expect_exit(RISING "|--set|name=b", 0);
    expect_exit("--export|plain|--from|a/b", 0);
    cr_expect(!said("note: a/b"), "%s", error_text);
    expect_error("--export|x|--from|a/b|--best", 1, "has no checkpoint of its lowest validation");
}

/* A resumed run keeps the best checkpoint and stops early like one that was never interrupted. */
Test(validation, patience_and_the_best_survive_a_resume) {
    char ended[100];
    expect_exit(BEST "|--set|train.patience=4|--set|train.steps=100", 0);
    long best = lowest("a/run", 100), end = last_step("a/run");
    cr_assert_eq(end, best + 8, "best %ld, end %ld", best, end);
    snprintf(ended, sizeof ended, "stopped at step %ld of 100: no lower validation loss in 4", end);
    cr_expect_not_null(strstr(out_text, ended), "%s", out_text);
    /* A process takes one step if train.minutes is tiny. */
    int status = 0;
    for (int i = 0; i < 100 && status == 0 && last_step("a/b") < end; i++)
        status = run(BEST "|--set|train.patience=4|--set|train.steps=100|--set|name=b|--set|"
                          "train.minutes=1e-9|--set|checkpoint.resume=auto");
    cr_expect_eq(status, 0, "%s", error_text);
    cr_expect_eq(last_step("a/b"), end);
    cr_expect_str_eq(names_in("a/b/checkpoints", ""), names_in("a/run/checkpoints", ""));
    expect_same_file(
        in_folder("a/run/checkpoints/step-%08ld/model.safetensors", best) + strlen(folder) + 1,
        in_folder("a/b/checkpoints/step-%08ld/model.safetensors", best) + strlen(folder) + 1);
    expect_exit(BEST "|--set|train.patience=4|--set|train.steps=100|--resume", 0);
    cr_expect_not_null(strstr(out_text, ended), "resuming does not go on: %s", out_text);
    cr_expect_eq(last_step("a/run"), end);
    /* The record is reset for another validation text. */
    expect_exit(BEST "|--set|train.patience=4|--set|train.steps=100|--resume|--set|"
                     "data.val=tiny_train_*.bin",
                0);
    cr_expect_gt(last_step("a/run"), end);
}

/* A validation counts once, also if the run that resumes does not have the metrics of it. */
Test(validation, a_resume_does_not_repeat_the_last) {
    static const char *const resumes[] = {
        SIXTH "|--set|name=b|--resume|a/run/checkpoints/step-00000006",
        SIXTH "|--set|log.metrics=false|--resume",
    };
    expect_exit(SIXTH "|--set|log.metrics=false|--set|train.steps=6", 0);
    for (size_t i = 0; i < sizeof resumes / sizeof *resumes; i++) {
        expect_exit(resumes[i], 0);
        cr_expect_null(strstr(out_text, "step 6: validation"), "%s", out_text);
        cr_expect_null(strstr(out_text, "stopped at step 6 "), "%s", out_text);
        cr_expect_not_null(strstr(out_text, "step 12: validation"), "%s", out_text);
    }
}

/* A resume makes up for the validation of the last step, and the checkpoint of that step records
 * it: a longer run keeps the checkpoint as its best, here from losses that only rise. */
Test(validation, a_resume_at_the_last_step_saves_what_it_validates) {
#define LAST BEST "|--set|checkpoint.every=2|--resume"
    expect_exit(RISING "|--set|eval.every=0|--set|train.steps=6", 0);
    expect_exit(LAST "|--set|train.steps=6", 0);
    cr_expect_not_null(strstr(out_text, "at step 6, in a/run/checkpoints/step-00000006"), "%s",
                       out_text);
    expect_exit(LAST "|--set|train.steps=12|--set|optimizer.lr=10", 0);
    cr_expect_not_null(strstr(out_text, "at step 6, in a/run/checkpoints/step-00000006"), "%s",
                       out_text);
    cr_expect_str_eq(names_in("a/run/checkpoints", ""), "step-00000006 step-00000012");
}

/* Training refuses a validation text that fills no sequence; --eval pads it. */
Test(validation, a_text_shorter_than_a_sequence_is_refused) {
    expect_error("--config|tiny.json|--set|data.val=noise_*.bin|--set|data.seq_len=320|--set|"
                 "model.n_positions=320",
                 1, "too few tokens for one sequence in noise_000000.bin");
}

Test(validation, epochs_count_the_training_text) {
    expect_exit("--config|tiny.json|--set|train.epochs=0.5", 0);
    /* 5999 / 32 = 187.5, so 188 sequences, 4 a step: 0.5 * 188 / 4 = 23.5 */
    cr_expect_eq(last_step("a/run"), 24, "%ld", last_step("a/run"));
    cr_expect_not_null(strstr(out_text, "24 steps (0.511 epochs) of"), "%s", out_text);
    expect_exit("--config|tiny.json|--set|train.epochs=3|--set|train.grad_accum_steps=512|--dry-run",
                0);
    cr_expect_not_null(strstr(out_text, "1 step (5.45 epochs) of 512 x 2"), "%s", out_text);
    expect_exit("--resume|a/run", 0);
    cr_expect_not_null(strstr(out_text, "raise train.epochs"), "%s", out_text);
    expect_exit("--resume|a/run|--set|train.steps=26", 0);
    cr_expect_eq(last_step("a/run"), 26);
}

/* 64 of 188 sequences in 16 steps, and the rest in 16 steps of 8. From the start there would be 24
 * of 8, fewer than those of the warmup. */
Test(validation, epochs_continue_with_a_larger_batch) {
    expect_exit("--config|tiny.json|--set|train.epochs=0.34", 0);
    cr_expect_eq(last_step("a/run"), 16, "%ld", last_step("a/run"));
    expect_exit("--resume|a/run|--set|train.epochs=1|--set|train.grad_accum_steps=4|--set|"
                "optimizer.warmup_steps=30",
                0);
    cr_expect_eq(last_step("a/run"), 32, "%ld", last_step("a/run"));
    cr_expect_not_null(strstr(error_text, "train.steps: 16 in the checkpoint, now 32\n"), "%s",
                       error_text);
}
