/* ./train --logits, and training on what it writes. */
#include "data/corpus/teacher_logits.h"
#include "test/model/cli/program_fixture.h"

TestSuite(logits_program, .init = set_up, .fini = remove_folder, .timeout = 300);

#define TINY    "--config|tiny.json"
#define TEACHER "--from|a/run"
#define STUDENT TINY "|--set|eval.every=0|--set|sample.every=0|--set|distill.logits=top"

static void train_teacher(void) {
    expect_exit(TINY "|--set|eval.every=0|--set|sample.every=0|--set|checkpoint.every=0", 0);
}

static void expect_text(const char *text, const char *part) {
    cr_expect_not_null(strstr(text, part), "\"%s\" is not in: %s", part, text);
}

/* Returns the loss of the first step in metrics.jsonl. */
static double first_loss(const char *run_folder) {
    double loss;
    FILE *file = fopen(in_folder("%s/metrics.jsonl", run_folder), "r");
    cr_assert(file && fscanf(file, "{\"step\": 1, \"tokens\": %*d, \"loss\": %lf", &loss) == 1);
    fclose(file);
    return loss;
}

/* A student that begins as its teacher, with all logits: the divergence is 0 but for fp16. Another
 * token, sequence or context would show. */
static void expect_no_divergence(const char *set, const char *run) {
    char arguments[1000];
    snprintf(arguments, sizeof arguments,
             STUDENT "|--set|name=same|--set|distill.alpha=1|--set|train.steps=1|%s"
                     "|--set|model.init_from=a/run/checkpoints/step-00000024",
             set);
    expect_exit(arguments, 0);
    const double loss = first_loss(run);
    cr_expect_lt(loss, 2e-6, "%g", loss);
    cr_expect_gt(loss, -2e-6, "%g", loss);
    expect_text(out_text, "  teacher    top: top 256 logits, alpha 1, temperature 1\n");
}

Test(logits_program, teacher_and_student_agree_on_every_token) {
    train_teacher();
    expect_exit("--logits|top|--top|256|" TEACHER, 0);
    cr_expect_str_eq(error_text, "");
    cr_expect_str_eq(names_in("top", ""), "tiny_train_000000.logits");
    expect_text(out_text, "held       100.00 % of the probability");
    expect_no_divergence("--set|train.grad_accum_steps=4", "a/same");
    /* The teacher in 16 bit is another one; its logits in fp32 stay. */
    expect_error("--logits|top|--top|256|--set|precision=bf16|" TEACHER, 1, "is there already");
    expect_error("--logits|top|--top|255|" TEACHER, 1, "is there already");
    expect_exit("--logits|top|--top|256|" TEACHER, 0);
    expect_text(out_text, "files      0 written, 1 complete before\n");
}

/* Puts a text with documents of some tokens; the first of each does not count. */
static void write_documents(const char *prefix) {
    enum { COUNT = 3000 };
    struct shard_writer writer;
    int32_t tokens[COUNT];
    uint8_t marks[COUNT];
    uint16_t packed[COUNT];
    char path[FILE_PATH_MAX];
    snprintf(path, sizeof path, "%s", in_folder("%s", prefix));
    for (int i = 0, left = 0; i < COUNT; i++, left--) {
        marks[i] = left > 0 ? TOKEN_COUNTS : TOKEN_BEGINS;
        if (left == 0) left = 3 + (int)(random_bits(2, 0, (uint64_t)i) % 40);
        tokens[i] = 'a' + (int32_t)(random_bits(2, 1, (uint64_t)i) % 9);
    }
    cr_assert_eq(shard_writer_open(&writer, path, 256, 1 << 20, &error), 0);
    shard_writer_pack(&writer, packed, tokens, COUNT);
    cr_assert_eq(shard_writer_put_packed(&writer, packed, marks, COUNT, &error), 0);
    cr_assert_eq(shard_writer_finish(&writer, &error), 0);
    cr_assert_eq(shard_writer_publish(&writer, &error), 0);
}

Test(logits_program, documents_are_isolated_as_in_training) {
    write_documents("tiny_train");
    train_teacher();
    expect_exit("--logits|top|--top|256|" TEACHER, 0);
    expect_text(out_text, "documents isolated");
    expect_no_divergence("--set|train.grad_accum_steps=3", "a/same");
    expect_error(
        STUDENT "|--set|data.isolate=false", 1,
        "written with data.isolate true and data.pack whole, but now it is false and whole");
    expect_error(STUDENT "|--set|data.pack=cut", 1, "but now it is true and cut");
}

/* Without isolation the context of a token is all that precedes it in its sequence. */
Test(logits_program, sequences_are_packed_as_in_training) {
    static const char *const sets[] = {"--set|data.isolate=false", "--set|data.pack=cut",
                                       "--set|data.pack=cut|--set|data.isolate=false"};
    write_documents("tiny_train");
    train_teacher();
    for (int i = 0; i < 3; i++) {
        char arguments[400], student[400], run[40];
        snprintf(run, sizeof run, "student%d/same", i);
        unlink(in_folder("top/tiny_train_000000.logits"));
        snprintf(arguments, sizeof arguments, "--logits|top|--top|256|%s|" TEACHER, sets[i]);
        expect_exit(arguments, 0);
        snprintf(student, sizeof student,
                 "--set|train.grad_accum_steps=3|%s|--set|run_dir=student%d", sets[i], i);
        expect_no_divergence(student, run);
    }
}

/* A run that a signal ends resumes bit for bit. */
Test(logits_program, training_resumes_bit_for_bit) {
    train_teacher();
    expect_exit("--logits|top|--top|16|" TEACHER, 0);
    expect_exit(STUDENT "|--set|name=whole", 0);
    pid_t child = start(STUDENT "|--set|name=parts|--set|train.steps=24");
    wait_for_step(child, "a/parts", 5);
    kill(child, SIGINT);
    cr_assert_eq(finish(child), 130, "%s", error_text);
    cr_expect_lt(last_step("a/parts"), 24);
    expect_exit(STUDENT "|--set|name=parts|--resume", 0);
    expect_same_file("a/whole/checkpoints/step-00000024/model.safetensors",
                     "a/parts/checkpoints/step-00000024/model.safetensors");
    expect_same_file("a/whole/checkpoints/step-00000024/optimizer.safetensors",
                     "a/parts/checkpoints/step-00000024/optimizer.safetensors");
}

/* Stops the writing of the two big shards. */
static void interrupt_when_there_is(const char *name) {
    pid_t child = start("--logits|top|--data|big_*.bin|" TEACHER);
    const double deadline = seconds_now() + PROGRAM_SECONDS_MAX;
    while (!exists(name)) {
        cr_assert(running(child) && seconds_now() < deadline);
        usleep(500);
    }
    kill(child, SIGINT);
    cr_assert_eq(finish(child), 130, "%s", error_text);
}

/* After a signal and a full disk the same command continues, and gives the same files. */
Test(logits_program, writing_continues_after_interruptions) {
    write_shard("big_a", 20000, 0);
    write_shard("big_b", 60000, 0);
    train_teacher();
    expect_exit("--logits|whole|--data|big_*.bin|" TEACHER, 0);
    interrupt_when_there_is("top/big_a_000000.logits.tmp");
    expect_text(error_text, "stopped by Ctrl-C (SIGINT); no file is complete yet");
    expect_text(out_text, "files      0 written, 0 complete before\n");
    cr_expect_str_eq(names_in("top", ""), "");
    interrupt_when_there_is("top/big_a_000000.logits");
    expect_text(error_text, "stopped by Ctrl-C (SIGINT); complete files are kept;");
    cr_expect_str_eq(names_in("top", ""), "big_a_000000.logits");
    file_bytes_max = 1 << 20;
    expect_error("--logits|top|--data|big_*.bin|" TEACHER, 1, "big_b_000000.logits");
    file_bytes_max = RLIM_INFINITY;
    cr_expect_str_eq(names_in("top", ""), "big_a_000000.logits");
    expect_exit("--logits|top|--data|big_*.bin|" TEACHER, 0);
    expect_text(out_text, "files      1 written, 1 complete before\n");
    expect_same_file("whole/big_a_000000.logits", "top/big_a_000000.logits");
    expect_same_file("whole/big_b_000000.logits", "top/big_b_000000.logits");
    /* 256 bytes for each token, by default 64 logits in 2 + 2 bytes */
    size_t size;
    free(read_whole("top/big_a_000000.logits", &size));
    cr_expect_eq((size - TEACHER_HEADER_BYTES) % 256, 0);
}

Test(logits_program, mistakes_are_refused) {
    train_teacher();
    expect_error("--logits|top", 2, "--from");
    expect_error("--logits|top|--top|0|" TEACHER, 2, "--top");
    expect_error("--logits|top|--top|1025|" TEACHER, 2, "--top");
    expect_error("--logits|top|--top|257|" TEACHER, 2, "a vocabulary of 256 tokens");
    expect_error("--eval|--top|3|" TEACHER, 2, "--top goes with --logits");
    expect_error("--logits|top|--data|none_*.bin|" TEACHER, 1, "none_*.bin");
    expect_error("--logits|tiny.json|" TEACHER, 1, "tiny.json");
    cr_expect_str_eq(out_text, "");
    cr_expect_not(exists("top"));
    expect_error(STUDENT, 1, "there is no top/tiny_train_000000.logits");
    expect_exit("--logits|top|" TEACHER, 0);
    expect_error(STUDENT "|--set|data.seq_len=16", 1, "data.seq_len is 16");
    expect_error(STUDENT "|--set|model.vocab_size=300", 1, "the student of 300");
    write_shard("tiny_train", 6001, 0);
    expect_error(STUDENT, 1, "other tokens");
    expect_error(STUDENT "|--set|distill.alpha=1.5", 2, "distill.alpha");
    expect_error(STUDENT "|--set|distill.temperature=0", 2, "distill.temperature");
}

/* A dry run counts the teacher's rows, and does without the folder. */
Test(logits_program, dry_run_plans_the_teacher) {
    train_teacher();
    expect_exit(STUDENT "|--dry-run", 0);
    expect_text(error_text, "note: there is no top/tiny_train_000000.logits");
    expect_text(error_text, "lacks the memory of the teacher's logits");
    expect_exit("--logits|top|--top|128|" TEACHER, 0);
    expect_exit(STUDENT "|--dry-run", 0);
    cr_expect_str_eq(error_text, "");
    expect_text(out_text, "  teacher    top: top 128 logits, alpha 0.5, temperature 1\n");
}

/* Changes a text in a file to another one of the same length. */
static void replace_text(const char *name, const char *before, const char *after) {
    size_t size;
    char *bytes = read_whole(name, &size), *at = strstr(bytes, before);
    cr_assert(at && strlen(before) == strlen(after), "%s", bytes);
    memcpy(at, after, strlen(after));
    cr_assert_eq(file_write_whole(in_folder("%s", name), bytes, size, NULL, &error), 0);
    free(bytes);
}

#define WRITE "--logits|top|--from|m|--data|tiny_train_*.bin|--set|data.seq_len=32"

/* Files are complete for one teacher: its config, its weights and their precision. */
Test(logits_program, files_of_another_teacher_are_not_kept) {
    train_teacher();
    expect_exit("--export|m|--from|a/run", 0);
    expect_exit(WRITE, 0);
    replace_text("m/config.json", "\"layer_norm_epsilon\": 1e-05", "\"layer_norm_epsilon\": 1e-02");
    expect_error(WRITE, 1, "of another teacher");
    replace_text("m/config.json", "\"layer_norm_epsilon\": 1e-02", "\"layer_norm_epsilon\": 1e-05");
    expect_exit(WRITE, 0);
    expect_text(out_text, "files      0 written, 1 complete before\n");
    damage("m/model.safetensors");
    expect_error(WRITE, 1, "of another teacher");
    damage("m/model.safetensors");
    cr_assert_eq(rename(in_folder("m"), in_folder("moved")), 0);
    expect_exit("--logits|top|--from|moved|--data|tiny_train_*.bin|--set|data.seq_len=32", 0);
    expect_text(out_text, "files      0 written, 1 complete before\n");
}

Test(logits_program, shards_of_one_name_are_refused_before_the_work) {
    train_teacher();
    cr_assert(mkdir(in_folder("x"), 0755) == 0 && mkdir(in_folder("y"), 0755) == 0);
    write_shard("x/t", 3000, 0);
    write_shard("y/t", 2000, 0);
    expect_error("--logits|top|--data|[xy]/t_*.bin|" TEACHER, 1,
                 "x/t_000000.bin and y/t_000000.bin would have one file");
    cr_expect_not(exists("top"));
}

/* A resume says which of its data are others under the same names. */
Test(logits_program, replaced_data_are_noted) {
    static const char train[] = "data.train: the shards hold other tokens",
                      val[] = "data.val: the shards hold other tokens",
                      teacher[] = "distill.logits: they are of another teacher";
    train_teacher();
    expect_exit(TINY "|--set|name=other|--set|seed=9|--set|eval.every=0|--set|sample.every=0", 0);
    expect_exit("--logits|top|" TEACHER, 0);
#define PARTS STUDENT "|--set|eval.every=4|--set|name=parts|--set|train.steps="
    expect_exit(PARTS "4", 0);
    expect_exit(PARTS "8|--resume", 0);
    cr_expect(!strstr(error_text, train) && !strstr(error_text, val) &&
                  !strstr(error_text, teacher),
              "%s", error_text);
    cr_assert_eq(directory_remove(in_folder("top"), &error), 0);
    expect_exit("--logits|top|--from|a/other", 0);
    expect_exit(PARTS "12|--resume", 0);
    expect_text(error_text, teacher);
    cr_expect_null(strstr(error_text, train));
    write_shard("tiny_val", 1100, 0);
    expect_exit(PARTS "16|--resume", 0);
    expect_text(error_text, val);
    cr_expect(!strstr(error_text, train) && !strstr(error_text, teacher), "%s", error_text);
    write_shard("tiny_train", 6000, 'z'); /* one token differs */
    cr_assert_eq(directory_remove(in_folder("top"), &error), 0);
    expect_exit("--logits|top|--from|a/other", 0);
    expect_exit(PARTS "20|--resume", 0);
    expect_text(error_text, train);
    cr_expect(!strstr(error_text, val) && !strstr(error_text, teacher), "%s", error_text);
}
