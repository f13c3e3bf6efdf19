/* Runs of ./train on pairs of answers (train.objective): what they print and write, how they resume
 * with the log-probabilities of their reference model, and what they refuse. */
#include <math.h>

#include "test/model/cli/program_fixture.h"

TestSuite(preference_program, .init = set_up, .fini = remove_folder, .timeout = 300);

#define PAIRS "pairs.json"
#define RUN   "--config|" PAIRS
#define LORA  "--set|adapter.type=lora|--set|adapter.rank=4"
#define LAST  "checkpoints/step-00000024"

enum { VALUES_AT = 208 }; /* in a file of model/session/reference_file.h */

static const char pairs_config[] =
    "{\n"
    "  \"name\": \"run\", \"precision\": \"fp32\", \"threads\": 1, \"run_dir\": \"a\",\n"
    "  \"model\": {\"init_from\": \"a/base\"},\n"
    "  \"data\": {\"train\": \"pairs_train_*.bin\", \"val\": \"pairs_val_*.bin\",\n"
    "           \"seq_len\": 64},\n"
    "  \"train\": {\"objective\": \"dpo\", \"steps\": 24, \"micro_batch_size\": 2,\n"
    "            \"grad_accum_steps\": 2},\n"
    "  \"optimizer\": {\"lr\": 3e-3, \"warmup_steps\": 1},\n"
    "  \"eval\": {\"every\": 6, \"batches\": 20},\n"
    "  \"checkpoint\": {\"every\": 4, \"keep\": 9},\n"
    "  \"sample\": {\"every\": 0}\n"
    "}\n";

static void expect_text(const char *text, const char *part) {
    cr_expect_not_null(strstr(text, part), "\"%s\" is not in: %s", part, text);
}

/* Writes pairs of a prompt in small letters and answers of up to `longest` tokens: the chosen one
 * in small letters, the rejected one in capitals. With labels every third answer is undesirable. */
static void write_pairs(const char *prefix, int count, int longest, bool labelled, uint64_t seed) {
    struct shard_writer writer;
    char path[FILE_PATH_MAX];
    snprintf(path, sizeof path, "%s", in_folder("%s", prefix));
    cr_assert_eq(shard_writer_open(&writer, path, 256, 1 << 20, &error), 0);
    writer.has_pairs = true;
    for (int i = 0; i < 2 * count; i++) {
        int32_t tokens[1000];
        uint8_t marks[1000] = {0};
        uint16_t packed[1000];
        const bool rejected = i % 2;
        const int prompt = 1 + (int)(random_bits(seed, 0, (uint64_t)i / 2) % 5);
        const int size = prompt + 1 + (int)(random_bits(seed, 1, (uint64_t)i) % (uint64_t)longest);
        for (int t = 0; t < size; t++) {
            const uint64_t letter =
                random_bits(seed, 2 + (t >= prompt && rejected), (uint64_t)(1000 * (i / 2) + t));
            tokens[t] = (t >= prompt && rejected ? 'A' : 'a') + (int32_t)(letter % 9);
            if (t >= prompt) marks[t] = TOKEN_COUNTS;
        }
        marks[0] = TOKEN_BEGINS;
        if (rejected) marks[0] |= TOKEN_REJECTED;
        if (labelled && (rejected || i / 2 % 3 == 0)) marks[0] |= TOKEN_LABEL;
        shard_writer_pack(&writer, packed, tokens, (size_t)size);
        cr_assert_eq(shard_writer_put_packed(&writer, packed, marks, (size_t)size, &error), 0);
    }
    cr_assert_eq(shard_writer_finish(&writer, &error), 0);
    cr_assert_eq(shard_writer_publish(&writer, &error), 0);
}

/* Trains a base on text, and writes pairs to tune it on. */
static void make_base(void) {
    expect_exit("--config|tiny.json|--set|name=base|--set|eval.every=0|--set|sample.every=0"
                "|--set|checkpoint.every=0",
                0);
    write_file(PAIRS, pairs_config);
    write_pairs("pairs_train", 70, 12, false, 1);
    write_pairs("pairs_val", 8, 12, false, 2);
}

/* Returns a value of a step's first line in metrics.jsonl, NAN if it has no such number. */
static double metric(const char *run_folder, long step, const char *key) {
    char line[1024], quoted[64];
    double value = NAN;
    long found;
    FILE *file = fopen(in_folder("%s/metrics.jsonl", run_folder), "r");
    cr_assert_not_null(file, "%s", run_folder);
    snprintf(quoted, sizeof quoted, "\"%s\": ", key);
    while (isnan(value) && fgets(line, sizeof line, file)) {
        const char *at = strstr(line, quoted);
        if (sscanf(line, "{\"step\": %ld", &found) != 1 || found != step || !at) continue;
        if (sscanf(at + strlen(quoted), "%lf", &value) != 1) value = NAN;
    }
    fclose(file);
    return value;
}

/* Expects metrics to be equal, but for those of time and memory. */
static void expect_same_metrics(const char *a, const char *b) {
    static const char *const keys[] = {"loss",
                                       "rewards_chosen",
                                       "rewards_rejected",
                                       "rewards_margins",
                                       "logps_chosen",
                                       "logps_rejected",
                                       "grad_norm",
                                       "rewards_accuracies",
                                       "val_loss",
                                       "val_rewards_chosen",
                                       "val_logps_chosen",
                                       "val_rewards_margins",
                                       "tokens",
                                       "val_logps_rejected",
                                       "lr",
                                       "val_rewards_rejected",
                                       "loss_scale",
                                       "val_rewards_accuracies"};
    for (long step = 1; step <= 24; step++)
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
            if (strncmp(keys[i], "val_", 4) == 0 && step % 6) continue;
            const double left = metric(a, step, keys[i]), right = metric(b, step, keys[i]);
            cr_expect(isfinite(left) && left == right, "step %ld: %s %g and %g", step, keys[i],
                      left, right);
        }
}

static void expect_columns(const char *text) {
    for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
        cr_expect_leq(end - line, 80, "%.*s", (int)(end - line), line);
}

Test(preference_program, answers_are_told_apart) {
    make_base();
    expect_exit(RUN, 0);
    expect_columns(out_text);
    expect_text(error_text, "reference: 70 pairs in the training data\n"
                            "reference: 8 pairs in the validation data\n");
    expect_text(out_text, "  data       pairs_train_*.bin: 70 pairs, ");
    expect_text(out_text, "  objective  dpo: beta 0.1\n"
                          "  reference  the model as it is before step 0\n");
    expect_text(out_text, " | right 100 %");
    /* Before the first update the model is its reference, in the same batches. */
    cr_expect_float_eq(metric("a/run", 1, "loss"), log(2), 1e-6);
    cr_expect_eq(metric("a/run", 1, "rewards_chosen"), 0);
    cr_expect_eq(metric("a/run", 1, "rewards_margins"), 0);
    cr_expect_lt(metric("a/run", 1, "logps_chosen"), 0);
    for (long step = 2; step <= 24; step++)
        cr_expect_float_eq(metric("a/run", step, "rewards_margins"),
                           metric("a/run", step, "rewards_chosen") -
                               metric("a/run", step, "rewards_rejected"),
                           1e-5);
    cr_expect_gt(metric("a/run", 24, "rewards_margins"), 1);
    cr_expect_eq(metric("a/run", 24, "rewards_accuracies"), 1);
    cr_expect_eq(metric("a/run", 24, "val_rewards_accuracies"), 1);
    cr_expect_gt(metric("a/run", 24, "val_rewards_margins"), 1);
    cr_expect(isnan(metric("a/run", 24, "kl")));
    /* --eval computes the reference again, and gets the values of the last validation. */
    expect_exit("--eval|--data|pairs_val_*.bin|--from|a/run", 0);
    char line[100];
    snprintf(line, sizeof line, "fp32       %8.4f  %10.4f          100.0",
             metric("a/run", 24, "val_loss"), metric("a/run", 24, "val_rewards_margins"));
    expect_text(out_text, line);
    expect_text(out_text, "loss      margin  right, of 100  tokens/s");
}

Test(preference_program, labelled_answers_are_learnt) {
    make_base();
    write_pairs("rows_train", 70, 12, true, 3);
    write_pairs("rows_val", 9, 12, true, 4);
    expect_exit(RUN "|--set|train.objective=kto|--set|data.train=rows_train_*.bin|--set|data.val="
                    "rows_val_*.bin",
                0);
    expect_columns(out_text);
    expect_text(error_text, "reference: 70 labelled answers in the training data\n");
    expect_text(out_text, "rows_train_*.bin: 70 labelled answers, ");
    expect_text(out_text, "  objective  kto: beta 0.1, weights 1 and 1, z of about ");
    cr_expect_null(strstr(out_text, "right"));
    cr_expect(isfinite(metric("a/run", 24, "kl")) && isfinite(metric("a/run", 24, "val_kl")));
    cr_expect(isnan(metric("a/run", 24, "rewards_accuracies")));
    cr_expect_float_eq(metric("a/run", 1, "loss"), 0.5, 1e-6);
    cr_expect_lt(metric("a/run", 24, "loss"), 0.5);
    expect_exit("--eval|--data|rows_val_*.bin|--from|a/run", 0);
    expect_text(out_text, "              -");
    cr_expect_null(strstr(out_text, "0.0  "));
}

/* TRL logs no margin where one side is missing either. */
Test(preference_program, one_label_has_no_margin) {
    make_base();
    write_pairs("rows_train", 1, 12, true, 3);
    write_pairs("rows_val", 1, 12, true, 4);
    expect_exit(RUN "|--set|train.objective=kto|--set|data.train=rows_train_*.bin|--set|data.val="
                    "rows_val_*.bin|--set|train.steps=6",
                0);
    cr_expect_null(strstr(out_text, "nan"), "%s", out_text);
    cr_expect_null(strstr(out_text, "margin"), "%s", out_text);
    cr_expect(isnan(metric("a/run", 6, "rewards_margins")) && isfinite(metric("a/run", 6, "kl")));
    expect_exit("--eval|--data|rows_val_*.bin|--from|a/run", 0);
    cr_expect_null(strstr(out_text, "nan"), "%s", out_text);
}

/* Removes a run's checkpoints after step 8, which is in the middle of an epoch. */
static void forget_later(const char *run_folder) {
    for (int step = 12; step <= 24; step += 4) {
        const char *path = in_folder("%s/checkpoints/step-%08d", run_folder, step);
        if (access(path, F_OK) == 0) cr_assert_eq(directory_remove(path, &error), 0);
    }
}

/* Kills a run, resumes it, and compares it with one that was never interrupted. */
static void expect_resumed(const char *set, const char *const *files) {
    char arguments[500];
    snprintf(arguments, sizeof arguments, RUN "|--set|name=whole%s", set);
    expect_exit(arguments, 0);
    snprintf(arguments, sizeof arguments, RUN "|--set|name=parts%s", set);
    pid_t child = start(arguments);
    while (running(child) && !exists("a/parts/checkpoints/step-00000008")) usleep(200);
    kill(child, SIGKILL);
    finish(child);
    forget_later("a/parts");
    snprintf(arguments, sizeof arguments, RUN "|--set|name=parts%s|--resume", set);
    expect_exit(arguments, 0);
    expect_text(error_text, "resuming from a/parts/checkpoints/step-00000008\n");
    cr_expect_null(strstr(error_text, "reference:"), "computed again");
    expect_same_metrics("a/whole", "a/parts");
    for (; *files; files++) {
        char other[100];
        snprintf(other, sizeof other, "a/parts/" LAST "/%s", *files);
        cr_assert(exists(other), "%s", other);
        snprintf(arguments, sizeof arguments, "a/whole/" LAST "/%s", *files);
        expect_same_file(arguments, other);
    }
}

static const char *const model_files[] = {"model.safetensors", "optimizer.safetensors", NULL};
static const char *const adapter_files[] = {"adapter_model.safetensors", "optimizer.safetensors",
                                            NULL};

Test(preference_program, resumes_bit_for_bit) {
    make_base();
    expect_resumed("", model_files);
}

Test(preference_program, resumes_bit_for_bit_in_16_bit) {
    make_base();
    expect_resumed("|--set|precision=bf16", model_files);
    cr_assert_eq(directory_remove(in_folder("a/whole"), &error), 0);
    cr_assert_eq(directory_remove(in_folder("a/parts"), &error), 0);
    expect_resumed("|--set|precision=fp16", model_files);
}

Test(preference_program, adapters_resume_bit_for_bit) {
    make_base();
    expect_resumed("|" LORA, adapter_files);
    /* Without the file it is computed again, by the model without adapters. */
    forget_later("a/parts");
    cr_assert_eq(unlink(in_folder("a/parts/reference_train.bin")), 0);
    expect_exit(RUN "|--set|name=parts|" LORA "|--resume", 0);
    expect_text(error_text, "reference: 70 pairs in the training data\n");
    expect_same_metrics("a/whole", "a/parts");
    expect_same_file("a/whole/" LAST "/adapter_model.safetensors",
                     "a/parts/" LAST "/adapter_model.safetensors");
}

/* Trains adapters on text, which preference tuning begins with. */
static void make_adapters(void) {
    make_base();
    expect_exit("--config|tiny.json|--set|name=sft|--set|eval.every=0|--set|sample.every=0"
                "|--set|checkpoint.every=0|--set|model.init_from=a/base|" LORA
                "|--set|adapter.alpha=64"
                "|--set|optimizer.lr=0.02",
                0);
}

#define TUNED "|" LORA "|--set|adapter.init_from=a/sft"

Test(preference_program, adapters_that_continue_are_their_reference) {
    make_adapters();
    expect_resumed(TUNED, adapter_files);
    expect_text(out_text, "  reference  the model as it is before step 0, with the adapters of\n"
                          "             a/sft/checkpoints/step-");
    expect_columns(out_text);
    cr_expect_float_eq(metric("a/whole", 1, "loss"), log(2), 1e-6);
    cr_expect_eq(metric("a/whole", 1, "rewards_margins"), 0);
    /* --eval computes the reference again, and gets the values of the last validation. */
    expect_exit("--eval|--data|pairs_val_*.bin|--from|a/whole", 0);
    char line[100];
    snprintf(line, sizeof line, "fp32       %8.4f  %10.4f", metric("a/whole", 24, "val_loss"),
             metric("a/whole", 24, "val_rewards_margins"));
    expect_text(out_text, line);
    /* The adapters of step 8 are not those of the reference. */
    forget_later("a/parts");
    cr_assert_eq(unlink(in_folder("a/parts/reference_train.bin")), 0);
    expect_error(RUN TUNED "|--set|name=parts|--resume", 1, "reference_train.bin is missing");
}

/* The base's values are those that the merged model's policy is compared to. */
Test(preference_program, a_base_can_be_the_reference) {
    make_adapters();
    expect_resumed(TUNED "|--set|objective.reference=base", adapter_files);
    expect_text(out_text, "  reference  the model as it is before step 0, without the adapters\n");
    cr_expect_gt(fabs(metric("a/whole", 1, "rewards_chosen")), 0.01);
    cr_expect_gt(fabs(metric("a/whole", 1, "loss") - log(2)), 1e-3);
    expect_exit("--eval|--data|pairs_val_*.bin|--from|a/whole", 0);
    char line[100];
    snprintf(line, sizeof line, "fp32       %8.4f  %10.4f", metric("a/whole", 24, "val_loss"),
             metric("a/whole", 24, "val_rewards_margins"));
    expect_text(out_text, line);
    /* A run that has begun cannot compute the other reference, but can return to the base. */
    forget_later("a/parts");
    expect_error(RUN TUNED "|--set|name=parts|--resume", 1, "another objective.reference");
    cr_assert_eq(unlink(in_folder("a/parts/reference_train.bin")), 0);
    expect_exit(RUN TUNED "|--set|name=parts|--set|objective.reference=base|--resume", 0);
    expect_text(error_text, "reference: 70 pairs in the training data\n");
    expect_same_metrics("a/whole", "a/parts");
}

Test(preference_program, quantized_models_begin_at_their_reference) {
    make_adapters();
    expect_exit(RUN TUNED "|--set|adapter.base=nf4|--set|train.steps=1", 0);
    cr_expect_float_eq(metric("a/run", 1, "loss"), log(2), 1e-6);
    expect_exit(RUN "|--set|name=new|" LORA "|--set|adapter.base=nf4|--set|train.steps=1", 0);
    expect_text(out_text, ", without the adapters\n");
    cr_expect_float_eq(metric("a/new", 1, "loss"), log(2), 1e-6);
}

/* Dropout of the policy alone would compare it with another model, as of the first step. */
Test(preference_program, dropout_is_asked_for) {
    make_base();
    expect_exit(RUN "|--set|train.steps=2|--set|model.dropout=0.4", 0);
    expect_text(error_text,
                "warning: model.dropout has no effect: preference losses have no dropout "
                "unless objective.dropout is true\n");
    cr_expect_float_eq(metric("a/run", 1, "loss"), log(2), 1e-6);
    expect_exit(RUN "|--set|name=lora|--set|train.steps=2|" LORA "|--set|adapter.dropout=0.5", 0);
    expect_text(error_text, "warning: adapter.dropout has no effect");
    expect_exit(RUN "|--set|name=plain|--set|train.steps=2|" LORA, 0);
    for (long step = 1; step <= 2; step++)
        cr_expect_eq(metric("a/lora", step, "loss"), metric("a/plain", step, "loss"));
    expect_exit(RUN "|--set|name=drops|--set|train.steps=2|--set|model.dropout=0.4"
                    "|--set|objective.dropout=true",
                0);
    cr_expect_null(strstr(error_text, "dropout"), "%s", error_text);
    cr_expect_gt(fabs(metric("a/drops", 1, "loss") - log(2)), 1e-3);
}

Test(preference_program, precision_may_switch) {
    make_base();
    expect_exit(RUN "|--set|precision=fp16|--set|precision_switch.at=0.5", 0);
    expect_text(error_text, "precision: \"fp16\" in the checkpoint, now \"bf16\"");
    cr_expect_gt(metric("a/run", 24, "rewards_margins"), 1);
}

/* Losses of two objectives cannot be compared: those of ipo are far above. */
Test(preference_program, another_objective_begins_the_search_for_the_lowest_loss_anew) {
    make_base();
    expect_exit(RUN, 0);
    expect_exit(RUN "|--resume|--set|train.objective=ipo|--set|train.patience=1|--set|"
                    "train.steps=36|--set|optimizer.lr=1e-4",
                0);
    expect_text(error_text, "train.objective: \"dpo\" in the checkpoint, now \"ipo\"");
    expect_text(error_text, "validation: earlier losses are not comparable");
    cr_expect_eq(last_step("a/run"), 36, "%s", out_text);
}

Test(preference_program, references_are_checked) {
    static const char path[] = "a/run/reference_train.bin";
    char *bytes;
    size_t size;
    make_base();
    expect_exit(RUN, 0);
    bytes = read_whole(path, &size);
    cr_expect_eq(size, VALUES_AT + 70 * 2 * sizeof(float));
    forget_later("a/run");
    for (int kind = 0; kind < 4; kind++) {
        FILE *file = fopen(in_folder("%s", path), "w");
        if (kind == 1) fwrite(bytes, 1, size - 1, file);
        if (kind == 2) bytes[size - 1] ^= 1;
        if (kind >= 2) fwrite(bytes, 1, size, file);
        if (kind == 3) fputc(0, file);
        cr_assert_eq(fclose(file), 0);
        expect_error(RUN "|--resume", 1, "a/run/reference_train.bin is missing or damaged");
        if (kind == 2) bytes[size - 1] ^= 1;
    }
    unlink(in_folder("%s", path));
    expect_error(RUN "|--resume", 1, "begin the run again");
    expect_error(RUN "|--resume|--set|data.seq_len=16", 1, "belongs to other data");
    file_write_whole(in_folder("%s", path), bytes, size, NULL, &error);
    expect_exit(RUN "|--resume", 0);
    free(bytes);
}

/* A run that ended before its first checkpoint leaves files that its next start may use. */
Test(preference_program, references_of_other_models_are_not_used) {
    make_base();
    expect_exit(RUN "|--set|name=other|--set|train.steps=1|--set|model.init_from=|"
                    "--set|model.n_layer=2|--set|model.n_head=2|--set|model.n_embd=32|"
                    "--set|model.n_positions=32",
                0);
    expect_exit(RUN, 0);
    for (int other = 0; other < 2; other++) {
        size_t size;
        char *bytes =
            read_whole(other ? "a/other/reference_train.bin" : "a/run/reference_train.bin", &size);
        cr_assert_eq(directory_remove(in_folder("a/run"), &error), 0);
        cr_assert_eq(mkdir(in_folder("a/run"), 0755), 0);
        cr_assert_eq(
            file_write_whole(in_folder("a/run/reference_train.bin"), bytes, size, NULL, &error), 0);
        free(bytes);
        expect_exit(RUN, 0);
        const bool computed = strstr(error_text, "in the training data");
        cr_expect_eq(computed, other == 1, "%s", error_text);
        cr_expect_eq(metric("a/run", 1, "rewards_margins"), 0);
    }
}

/* Rows that are prepared again may have the same tokens and other targets. */
Test(preference_program, references_of_another_mask_are_not_used) {
    make_base();
    expect_exit(RUN "|--set|train.steps=1", 0);
    size_t size;
    char *mask = read_whole("pairs_train_000000.mask", &size);
    bool cleared = false; /* the last target of a document that has others */
    for (size_t i = TOKEN_MASK_HEADER_BYTES; i < size && !cleared; i += TOKEN_MASK_PLANES)
        if ((cleared = mask[i] == (char)0xff)) mask[i] = 0x7f;
    cr_assert(cleared);
    file_write_whole(in_folder("pairs_train_000000.mask"), mask, size, NULL, &error);
    free(mask);
    cr_assert_eq(directory_remove(in_folder("a/run/checkpoints"), &error), 0);
    expect_exit(RUN, 0);
    expect_text(error_text, "reference: 70 pairs in the training data\n");
    cr_expect_null(strstr(error_text, "in the validation data"), "%s", error_text);
    cr_expect_eq(metric("a/run", 1, "rewards_margins"), 0);
}

/* Waits until the program has printed a text. */
static void wait_for_text(pid_t child, const char *part) {
    const double deadline = seconds_now() + PROGRAM_SECONDS_MAX;
    do {
        cr_assert(running(child) && seconds_now() < deadline, "no \"%s\"", part);
        usleep(500);
        read_output(error_text, "error.txt");
    } while (!strstr(error_text, part));
}

#define MANY RUN "|--set|data.train=many_train_*.bin|--set|train.steps=8|--set|data.seq_len=512"

/* With several ranks too no step is taken without the reference. */
static void expect_interrupted(const char *ranks) {
    char arguments[400];
    write_pairs("many_train", 9000, 60, false, 5);
    snprintf(arguments, sizeof arguments, MANY "%s", ranks);
    pid_t child = start(arguments);
    wait_for_text(child, "reference: 9000 pairs");
    kill(child, SIGINT);
    cr_expect_eq(finish(child), 130, "%s", error_text);
    expect_text(error_text, "no step was taken, so start again without --resume\n");
    cr_expect_eq(last_step("a/run"), 0);
    cr_expect(exists("a/run/reference_train.bin"));
}

/* Counts the pairs of a file without values. */
static size_t count_unknown(const char *name) {
    size_t size, count = 0;
    char *bytes = read_whole(name, &size);
    const float *values = (const float *)(bytes + VALUES_AT);
    for (size_t i = 0; i < (size - VALUES_AT) / sizeof *values; i += 2) count += isnan(values[i]);
    free(bytes);
    return count;
}

/* Expects that a pass continues where it was stopped, to the values of one that was not. `most`:
 * pairs that it may have left. */
static void expect_continued(size_t most) {
    const size_t unknown = count_unknown("a/run/reference_train.bin");
    cr_expect(unknown > 0 && unknown <= most, "%zu", unknown);
    expect_exit(MANY, 0);
    cr_expect_eq(count_unknown("a/run/reference_train.bin"), 0u);
    expect_exit(MANY "|--set|name=whole", 0);
    size_t size, other_size;
    char *parts = read_whole("a/run/reference_train.bin", &size);
    char *whole = read_whole("a/whole/reference_train.bin", &other_size);
    cr_assert_eq(size, other_size);
    cr_expect_eq(memcmp(parts + VALUES_AT, whole + VALUES_AT, size - VALUES_AT), 0);
    cr_expect_eq(metric("a/run", 1, "rewards_margins"), 0);
    free(parts);
    free(whole);
}

Test(preference_program, a_reference_can_be_interrupted) {
    make_base();
    expect_interrupted("");
    expect_error(MANY "|--resume", 1, "start without --resume");
    expect_continued(9000); /* a signal may come before its first batch */
}

/* A limit of time ends the pass before the first step too. */
Test(preference_program, minutes_end_a_reference) {
    make_base();
    write_pairs("many_train", 9000, 60, false, 5);
    expect_exit(MANY "|--set|train.minutes=0.001", 0);
    expect_text(out_text, "stopped at step 0 of 8: train.minutes (0.001) are over; the "
                          "same command continues before the first step\n");
    expect_continued(8999);
}

static bool has_ranks(void) {
    return run("--ranks|2|" RUN "|--set|name=probe|--set|train.steps=1") == 0;
}

Test(preference_program, ranks_interrupt_a_reference_together) {
    make_base();
    if (!has_ranks()) cr_skip_test("no MPI");
    expect_interrupted("|--ranks|2");
}

/* The same steps on one process, with as many pairs. */
Test(preference_program, ranks_compute_the_same) {
    make_base();
    if (!has_ranks()) cr_skip_test("no MPI");
    expect_exit(RUN "|--set|name=one|--set|train.grad_accum_steps=6", 0);
    expect_exit("--ranks|2|" RUN "|--set|name=two|--set|train.grad_accum_steps=3", 0);
    expect_exit("--ranks|3|" RUN "|--set|name=three", 0);
    static const char *const keys[] = {"loss", "rewards_margins", "logps_rejected", "grad_norm",
                                       "rewards_accuracies"};
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "three" : "two";
        char other[100];
        snprintf(other, sizeof other, "a/%s/reference_train.bin", name);
        size_t size, other_size;
        char *one = read_whole("a/one/reference_train.bin", &size);
        char *all = read_whole(other, &other_size);
        cr_assert_eq(size, other_size);
        cr_expect_eq(memcmp(one + VALUES_AT, all + VALUES_AT, size - VALUES_AT), 0, "%s", name);
        free(one);
        free(all);
        for (long step = 1; step <= 24; step += 4)
            for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
                const double left = metric("a/one", step, keys[k]);
                const double right = metric(i ? "a/three" : "a/two", step, keys[k]);
                cr_expect_lt(fabs(left - right), 1e-3 * fabs(left) + 1e-4, "step %ld: %s %g and %g",
                             step, keys[k], left, right);
            }
    }
}

/* A signal ends ranks in order, also those of a model that was read from files. */
Test(preference_program, ranks_save_after_a_signal) {
    make_base();
    if (!has_ranks()) cr_skip_test("no MPI");
    pid_t child = start("--ranks|2|" RUN "|--set|train.steps=100000|--set|checkpoint.every=0|"
                        "--set|eval.every=0");
    wait_for_step(child, "a/run", 2);
    kill(child, SIGTERM);
    cr_expect_eq(finish(child), 143, "%s", error_text);
    expect_text(error_text, "continue with --resume\n");
    cr_expect_neq(*names_in("a/run/checkpoints", "step-"), '\0');
}

Test(preference_program, lengths_of_all_kinds) {
    make_base();
    write_pairs("long_train", 6, 300, false, 6);
    write_pairs("one_train", 1, 3, false, 7);
    expect_exit(RUN "|--set|train.steps=1|--set|name=one|--set|data.train=one_train_*.bin|--set|"
                    "data.val=one_train_*.bin",
                0);
    expect_text(out_text, "one_train_*.bin: 1 pair, ");
    expect_text(error_text, "reference: 1 pair in the validation data\n");
    static const char *const lengths[] = {"2", "3", "7", "2048"};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char arguments[400];
        snprintf(arguments, sizeof arguments,
                 RUN "|--set|train.steps=2|--set|eval.every=1|--set|name=n%s|--set|data.seq_len=%s|"
                     "--set|data.train=long_train_*.bin|--set|data.val=long_train_*.bin",
                 lengths[i], lengths[i]);
        expect_exit(arguments, 0);
        expect_columns(out_text);
        expect_text(out_text, "documents of 6 pairs cut\n");
    }
    expect_error(RUN "|--set|data.seq_len=1", 1, "data.seq_len is 1");
}

Test(preference_program, long_settings_take_two_lines) {
    make_base();
    expect_exit(RUN "|--dry-run|--set|train.objective=simpo|--set|objective.gamma=1.23456"
                    "|--set|objective.label_smoothing=0.123456|--set|objective.beta=0.123456"
                    "|--set|objective.nll_weight=0.333333",
                0);
    expect_columns(out_text);
    expect_text(out_text, "  objective  simpo: beta 0.123456, gamma 1.23456, "
                          "label smoothing 0.123456,\n"
                          "             plus 0.333333 x cross entropy\n");
    /* ipo has no label smoothing. */
    expect_exit(RUN "|--dry-run|--set|train.objective=ipo|--set|objective.label_smoothing=0.1", 0);
    expect_text(out_text, "  objective  ipo: beta 0.1\n");
    expect_exit(RUN "|--dry-run|--set|train.objective=orpo|--set|objective.reference=base", 0);
    cr_expect_null(strstr(out_text, "  reference  "));
    expect_text(error_text, "warning: objective.reference has no effect: ");
}

Test(preference_program, mistakes_are_refused) {
    make_base();
    write_pairs("rows_train", 20, 12, true, 3);
    expect_error(RUN "|--set|train.objective=language|--set|data.seq_len=32", 1,
                 "holds pairs of answers");
    expect_error(RUN "|--set|train.objective=kto", 1, "\"completion\" and \"label\"");
    expect_error(RUN "|--set|data.train=rows_train_*.bin", 1, "\"chosen\" and \"rejected\"");
    expect_error(RUN "|--set|data.train=tiny_train_*.bin", 1, "does not hold rows");
    expect_error(RUN "|--set|data.val=tiny_val_*.bin", 1, "does not hold rows");
    expect_error(RUN "|--set|data.isolate=false", 2, "data.isolate");
    expect_error(RUN "|--set|distill.logits=top", 2, "distill.logits");
    expect_error(RUN "|--set|objective.beta=0", 2, "objective.beta");
    expect_error(RUN "|--set|objective.nll_weight=-1", 2, "objective.nll_weight");
    expect_error(RUN "|--set|objective.label_smoothing=0.6", 2, "objective.label_smoothing");
    expect_error(RUN "|--set|model.vocab_size=100", 2, "model.vocab_size");
    cr_expect_str_eq(names_in("a", ""), "base");
}

/* The line of the memory that a dry run plans is that of the run. */
Test(preference_program, dry_run_plans_the_same_memory) {
    make_base();
    char planned[100];
    expect_exit(RUN "|--dry-run", 0);
    const char *at = strstr(out_text, "  memory     ");
    cr_assert_not_null(at);
    snprintf(planned, sizeof planned, "%.60s", at);
    expect_exit(RUN "|--set|train.steps=1", 0);
    expect_text(out_text, planned);
    expect_exit(RUN "|--dry-run|--set|data.train=none_*.bin|--set|data.val=none_*.bin", 0);
    expect_text(out_text, planned);
    expect_text(out_text, "  objective  dpo: beta 0.1\n");
}

/* A tuned model reads text like any other, also as a teacher. */
Test(preference_program, tuned_models_read_text) {
    make_base();
    expect_exit(RUN "|--set|train.steps=1", 0);
    expect_exit("--logits|top|--data|tiny_train_*.bin|--from|a/run", 0);
    expect_text(out_text, "tokens, sequences of 32\n");
    cr_expect_str_eq(names_in("top", ""), "tiny_train_000000.logits");
    expect_exit(
        "--config|tiny.json|--set|name=student|--set|distill.logits=top|--set|train.steps=1", 0);
    expect_error("--eval|--data|tiny_val_*.bin|--from|a/run", 1, "train.objective is dpo");
    expect_exit("--eval|--data|tiny_val_*.bin|--from|a/run|--set|train.objective=language"
                "|--set|data.seq_len=32|--set|data.isolate=false",
                0);
    expect_text(out_text, "perplexity");
}
