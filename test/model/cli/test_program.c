/* The ./train program: exit statuses, messages and files. */
#include "data/util/files.h"
#include "test/model/cli/program_fixture.h"

#include <math.h>

#include "test/match.h"

TestSuite(program, .init = set_up, .fini = remove_folder);

#define TINY "--config|tiny.json"

static void expect_text(const char *text, const char *part) {
    cr_expect_not_null(strstr(text, part), "\"%s\" is not in: %s", part, text);
}

Test(program, trains) {
    expect_exit(TINY, 0);
    cr_expect_str_eq(error_text, "");
    expect_run_files("a/run");
    cr_expect_str_eq(names_in("a/run/checkpoints", ""),
                     "step-00000008 step-00000016 step-00000024");
    cr_expect_str_eq(names_in("a/run/checkpoints/step-00000024", ""),
                     "config.json generation_config.json model.safetensors "
                     "optimizer.safetensors tokenizer.json tokenizer_config.json trainer.json");
    static const char *const parts[] = {"mantissa: training run",
                                        "fp32 everywhere",
                                        "tiny_train_",
                                        "tiny_val_",
                                        "a/run",
                                        "step   1/24 |",
                                        "step  24/24 |",
                                        "step 6: validation loss",
                                        "sample at step 12",
                                        "Once upon a time",
                                        "saved a/run/checkpoints/step-00000024"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) expect_text(out_text, parts[i]);
    cr_expect_eq(last_step("a/run"), 24);
}

Test(program, help_version_and_schema) {
    expect_exit("--help", 0);
    expect_text(out_text, "--resume");
    cr_expect_str_eq(error_text, "");
    expect_exit("--version", 0);
    expect_text(out_text, "mantissa 0.");
    expect_exit("--print-schema", 0);
    cr_expect_eq(out_text[0], '{');
    expect_exit("--print-reference", 0);
    expect_text(out_text, "optimizer.lr");
    cr_expect_str_eq(names_in(".", "run"), "");
}

Test(program, usage_errors) {
    expect_error("", 2, "--config");
    expect_error("--nonsense", 2, "--nonsense");
    expect_error("--config", 2, "--config");
    expect_error("--config|missing.json", 2, "missing.json");
    expect_error("--config|", 2, "");
    expect_error("--config|.", 2, "");
    expect_error(TINY "|--device|gpu", 2, "Did you mean \"cuda\"?");
    expect_error(TINY "|--set|optimizer.lrr=1", 2, "optimizer.lr");
    expect_error(TINY "|--set|train.steps=many", 2, "train.steps");
    expect_error(TINY "|--set|train.steps", 2, "KEY=VALUE");
    expect_error("--sample|x", 2, "--from");
    cr_expect_not(exists("a"));
}

Test(program, config_errors_name_file_line_and_nearest_key) {
    write_file("typo.json", "{\n  \"optimizer\": {\n    \"warmup_stepz\": 3\n  }\n}\n");
    expect_error("--config|typo.json", 2, "typo.json");
    expect_text(error_text, "3");
    expect_text(error_text, "warmup_steps");
    write_file("broken.json", "{\n  \"seed\": 3,\n");
    expect_error("--config|broken.json", 2, "broken.json");
    write_file("range.json", "{\"train\": {\"steps\": 0}}");
    expect_error("--config|range.json", 2, "train.steps");
    expect_error(TINY "|--set|data.seq_len=64", 2, "n_positions");
}

Test(program, missing_gpu_is_an_error) {
    if (access("/dev/nvidiactl", F_OK) == 0) return;
    expect_error(TINY "|--device|cuda", 1, "cuda");
    cr_expect_not(exists("a"));
}

Test(program, dry_run_writes_nothing) {
    char before[2000];
    expect_exit(TINY "|--dry-run", 0); /* creates out.txt and error.txt */
    snprintf(before, sizeof before, "%s", names_in(".", ""));
    expect_exit(TINY "|--dry-run|--set|precision=fp16|--set|checkpoint.resume=auto", 0);
    cr_expect_str_eq(names_in(".", ""), before);
    cr_expect_not(exists("a"));
    expect_text(out_text, "MiB");
    expect_text(out_text, "moments");
    expect_text(out_text, "24 steps");
    cr_expect_null(strstr(out_text, "loss 5"));
    cr_expect_null(strstr(out_text, "step   1"));
}

/* A dry run plans a large model on a small machine, and without the data files. */
Test(program, dry_run_allocates_nothing) {
    expect_exit("--config|tiny.json|--dry-run|--set|model.n_embd=8192|--set|model.n_head=64|--set|"
                "model.n_layer=96|--set|data.train=none_*.bin|--set|data.val=|--set|eval.every=0",
                0);
    expect_text(error_text, "none_*.bin");
    expect_text(out_text, "B parameters");
}

Test(program, data_errors) {
    expect_error(TINY "|--set|data.train=none_*.bin", 1, "none_*.bin");
    expect_error(TINY "|--set|data.val=none_*.bin", 1, "none_*.bin");
    write_file("noise_000000.bin", "this is no shard");
    expect_error(TINY "|--set|data.train=noise_000000.bin", 1, "noise_000000.bin");
    write_shard("short", 20, 0);
    expect_error(TINY "|--set|data.train=short_000000.bin", 1, "data.seq_len");
    cr_assert_eq(truncate(in_folder("short_000000.bin"), 1030), 0);
    expect_error(TINY "|--set|data.train=short_000000.bin", 1, "short_000000.bin");
    cr_expect_str_eq(names_in("a/run", ""), "");
}

Test(program, tokens_outside_the_vocabulary) {
    write_shard("foreign", 2000, 999);
    expect_error(TINY "|--set|data.train=foreign_000000.bin|--set|train.steps=100", 1, "token 999");
    expect_text(error_text, "foreign_000000.bin");
    expect_text(error_text, "model.vocab_size");
    expect_error(TINY "|--set|name=b|--set|data.val=foreign_000000.bin|--set|eval.batches=100", 1,
                 "token 999");
}

/* 32-bit shards and a token embedding for a vocabulary beyond 16 bits. */
Test(program, trains_on_a_large_vocabulary) {
    write_shard("wide", 2000, 70000);
#define WIDE TINY "|--set|name=wide|--set|data.train=wide_000000.bin|--set|eval.every=0"
    expect_error(WIDE "|--set|train.steps=100|--set|model.vocab_size=70000", 1, "token 70000");
    expect_text(error_text, "model.vocab_size to 70001");
    expect_exit(WIDE "|--set|name=wider|--set|train.steps=16|--set|model.vocab_size=70001|--set|"
                     "sample.every=0|--set|checkpoint.every=0",
                0);
    expect_text(out_text, "70001");
    expect_exit("--sample|the cat|--from|a/wider|--tokens|4", 0);
    expect_exit("--config|tiny.json|--dry-run|--set|model.vocab_size=1048576", 0);
    expect_error(TINY "|--set|model.vocab_size=1048577", 2, "from 2 to 1048576");
}

Test(program, existing_checkpoints_are_refused_without_resume) {
    expect_exit(TINY "|--set|train.steps=8", 0);
    size_t size, size_after;
    char *before = read_whole("a/run/metrics.jsonl", &size);
    expect_error(TINY, 2, "--resume");
    expect_text(error_text, "step-00000008");
    char *after = read_whole("a/run/metrics.jsonl", &size_after);
    cr_expect(size == size_after && memcmp(before, after, size) == 0, "metrics were overwritten");
    cr_expect_str_eq(names_in("a/run/checkpoints", ""), "step-00000008");
    free(before);
    free(after);
    /* An empty shell variable as the path is refused too. */
    expect_exit(TINY "|--resume=", 2);
    expect_exit(TINY "|--set|name=other|--set|train.steps=1", 0);
}

Test(program, resume_without_checkpoints) {
    expect_error(TINY "|--resume", 1, "without --resume");
    expect_error(TINY "|--resume|a/run/checkpoints/step-00000001", 1, "step-00000001");
    expect_exit(TINY "|--set|checkpoint.resume=auto|--set|train.steps=2", 0);
    expect_exit(TINY "|--set|checkpoint.resume=auto|--set|train.steps=3", 0);
    expect_text(error_text, "resuming from a/run/checkpoints/step-00000002");
}

Test(program, runs_that_hold_no_checkpoint_yet) {
    copy_program();
    cr_assert_eq(mkdir(in_folder("a"), 0755), 0);
    cr_assert_eq(mkdir(in_folder("a/new"), 0755), 0);
    write_file("a/new/metrics.jsonl", "");
    cr_assert_eq(chmod(folder, 0755), 0);
    expect_error("--sample|x|--from|a/new", 1, "a/new has no complete checkpoint yet");
    expect_error(TINY "|--resume|a/new", 1, "a/new has no complete checkpoint yet");
    as_nobody = geteuid() == 0;
    cr_assert_eq(chmod(in_folder("a/new"), 0), 0);
    expect_error("--sample|x|--from|a/new", 1, "a/new: Permission denied");
}

Test(program, the_folder_of_a_run_is_enough_to_resume) {
    expect_exit(TINY "|--set|train.steps=2", 0);
    expect_exit("--resume|a/run|--set|train.steps=3", 0);
    expect_text(error_text, "resuming from a/run/checkpoints/step-00000002");
    expect_exit("--resume|a/run/checkpoints/step-00000003|--set|train.steps=4", 0);
    char command[2 * FILE_PATH_MAX];
    snprintf(command, sizeof command,
             "sed -i 's/\"log\": {/&\"csv\": true, /' %s/a/run/config.json", folder);
    cr_assert_eq(system(command), 0);
    expect_error("--config|a/run/config.json|--resume", 2, "\"log.csv\"");
    expect_exit("--resume|a/run|--set|train.steps=5", 0);
    cr_expect_not_null(strstr(error_text, "log.csv was set by an earlier version"), "%s",
                       error_text);
    expect_error("--resume|a/none", 2, "a/none/config.json");
    cr_assert_eq(mkdir(in_folder("a/pipe"), 0755), 0);
    cr_assert_eq(mkfifo(in_folder("a/pipe/config.json"), 0644), 0);
    expect_error("--resume|a/pipe", 2, "not a regular file");
}

Test(program, a_finished_run_has_nothing_to_resume) {
    expect_exit(TINY, 0);
    size_t size, size_after;
    char *before = read_whole("a/run/metrics.jsonl", &size);
    expect_exit(TINY "|--resume", 0);
    expect_text(out_text, "done already");
    char *after = read_whole("a/run/metrics.jsonl", &size_after);
    cr_expect(size == size_after && memcmp(before, after, size) == 0, "metrics changed");
    free(before);
    free(after);
    expect_exit(TINY "|--resume|--set|train.steps=26", 0);
    cr_expect_eq(last_step("a/run"), 26);
}

static void expect_same_folders(const char *a, const char *b) {
    char command[3 * FILE_PATH_MAX];
    snprintf(command, sizeof command, "cd %s && diff -r %s %s", folder, a, b);
    cr_expect_eq(system(command), 0, "%s and %s differ", a, b);
}

/* A later resume reads train.steps and the like from the run's config.json. */
Test(program, a_resume_without_steps_keeps_the_plan) {
    char command[2 * FILE_PATH_MAX];
    snprintf(command, sizeof command, "cd %s && cp -r a/run a/copy", folder);
    expect_exit(TINY "|--set|train.steps=12|--set|checkpoint.every=5", 0);
    cr_assert_eq(system(command), 0);
    expect_exit("--resume|a/run|--set|train.steps=10|--set|optimizer.warmup_steps=0", 0);
    expect_text(out_text, "all steps (10) are done already");
    expect_same_folders("a/copy", "a/run");
    expect_exit("--resume|a/run", 0);
    expect_text(out_text, "all steps (12) are done already");
    expect_exit("--resume|a/run|--set|train.steps=13", 0);
    expect_exit("--resume|a/run", 0);
    expect_text(out_text, "all steps (13) are done already");
}

Test(program, a_resume_after_early_stopping_keeps_the_plan) {
    char command[2 * FILE_PATH_MAX];
    snprintf(command, sizeof command, "cd %s && cp -r a/run a/copy", folder);
    expect_exit(TINY "|--set|optimizer.lr=0|--set|train.patience=1", 0);
    expect_text(out_text, "stopped at step 12 of 24: no lower validation loss");
    cr_assert_eq(system(command), 0);
    expect_exit("--resume|a/run|--set|train.steps=20", 0);
    expect_text(out_text, "stopped at step 12 of 20: no lower validation loss");
    expect_same_folders("a/copy", "a/run");
    expect_exit("--resume|a/run|--set|train.steps=20|--set|train.patience=0", 0);
    cr_expect_eq(last_step("a/run"), 20);
}

Test(program, damaged_checkpoints_are_skipped_and_named) {
    expect_exit(TINY, 0);
    damage("a/run/checkpoints/step-00000024/model.safetensors");
    damage("a/run/checkpoints/step-00000016/trainer.json");
    expect_exit(TINY "|--resume", 0);
    expect_text(error_text, "step-00000024");
    expect_text(error_text, "step-00000016");
    expect_text(error_text, "resuming from a/run/checkpoints/step-00000008");
    cr_expect_eq(last_step("a/run"), 24);
    /* The damaged checkpoint has been rewritten. */
    expect_exit(TINY "|--resume", 0);
    expect_text(error_text, "resuming from a/run/checkpoints/step-00000024");
}

Test(program, only_damaged_checkpoints) {
    expect_exit(TINY "|--set|train.steps=8", 0);
    damage("a/run/checkpoints/step-00000008/optimizer.safetensors");
    expect_error(TINY "|--resume", 1, "step-00000008");
    expect_error(TINY "|--resume|a/run/checkpoints/step-00000008", 1, "optimizer.safetensors");
    cr_expect_eq(last_step("a/run"), 8, "the metrics of the damaged run are gone");
}

/* A note stands before the text that it is about, where both streams go to one place. */
Test(program, sample_notes_before_the_prompt) {
    char shell[2 * PATH_MAX];
    snprintf(shell, sizeof shell, "#!/bin/sh\nexec '%s' \"$@\" 2>&1\n", program);
    write_file("both", shell);
    cr_assert_eq(chmod(in_folder("both"), 0755), 0);
    snprintf(program, sizeof program, "%s", in_folder("both"));
    expect_exit(TINY "|--set|train.steps=1", 0);
    expect_exit("--sample|a prompt that is longer than the 32 positions that the model has"
                "|--from|a/run/checkpoints/step-00000001|--tokens|1",
                0);
    const char *note = strstr(out_text, "note: of 64 tokens of the prompt");
    cr_assert_not_null(note, "%s", out_text);
    cr_expect(note == out_text || note[-1] == '\n', "%s", out_text);
}

Test(program, sample) {
    static char first[PROGRAM_OUTPUT_MAX];
    expect_exit(TINY, 0);
#define FROM "|--from|a/run/checkpoints/step-00000024"
    expect_exit("--sample|the cat" FROM "|--tokens|30|--seed|1", 0);
    cr_expect_eq(strncmp(out_text, "the cat", 7), 0, "%s", out_text);
    cr_expect_geq(strlen(out_text), 7u + 30 + 1);
    expect_match(error_text, "^30 tokens, [0-9.]+ tokens/s; prompt [0-9]+ ms\n$");
    snprintf(first, sizeof first, "%s", out_text);
    expect_exit("--sample|the cat" FROM "|--tokens|30|--seed|1", 0);
    cr_expect_str_eq(out_text, first);
    expect_exit("--sample|the cat" FROM "|--tokens|30|--seed|2", 0);
    cr_expect_str_neq(out_text, first);
    expect_exit("--sample|the cat" FROM "|--tokens|30|--seed|3|--temperature|0", 0);
    snprintf(first, sizeof first, "%s", out_text);
    expect_exit("--sample|the cat" FROM "|--tokens|30|--seed|4|--top-k|1", 0);
    cr_expect_str_eq(out_text, first);
    expect_exit("--sample|the cat" FROM "|--tokens|0", 0);
    cr_expect_str_eq(out_text, "the cat\n");
    expect_exit("--sample|" FROM "|--tokens|100", 0);
    expect_exit("--sample|a prompt that is longer than the 32 positions that the model has" FROM
                "|--tokens|50|--set|precision=bf16",
                0);
    expect_text(out_text, "a prompt that is longer than the 32 positions that the model has");
    expect_error("--sample|x|--from|nowhere", 1, "nowhere");
    expect_error("--sample|x" FROM "|--tokens|-1", 2, "--tokens: sample.tokens is -1");
    expect_error("--sample|x" FROM "|--top-p|2", 2, "sample.top_p is 2");
    expect_error("--sample|x" FROM "|--temperature|inf", 2, "sample.temperature is inf");
    expect_error("--sample|x" FROM "|--set|model.n_layer=3", 1, "n_layer");
    expect_error("--sample|x" FROM "|--device|cuda", 1, "cuda");
    damage("a/run/checkpoints/step-00000024/trainer.json");
    expect_error("--sample|x" FROM, 1, "trainer.json");
    expect_run_files("a/run");
}

Test(program, samples_of_several_prompts) {
    static char both[PROGRAM_OUTPUT_MAX];
    expect_exit(TINY, 0);
    expect_exit("--sample|the cat|--sample|a dog" FROM "|--tokens|9|--temperature|0", 0);
    snprintf(both, sizeof both, "%s", out_text);
    expect_exit("--sample|the cat" FROM "|--tokens|9|--temperature|0", 0);
    size_t length = strlen(out_text);
    cr_expect_eq(strncmp(both, out_text, length), 0, "%s, alone %s", both, out_text);
    cr_assert_eq(strncmp(both + length, "---\n", 4), 0, "%s", both);
    expect_exit("--sample|a dog" FROM "|--tokens|9|--temperature|0", 0);
    cr_expect_str_eq(both + length + 4, out_text);
    /* The same prompt gives two different texts. */
    expect_exit("--sample|the cat|--sample|the cat" FROM "|--tokens|30|--temperature|2", 0);
    const char *second = strstr(out_text, "---\n");
    cr_assert_not_null(second);
    cr_expect_neq(strncmp(out_text, second + 4, (size_t)(second - out_text)), 0, "%s", out_text);
}

/* --eval of the training data gives the loss that training reports, with its bits and perplexity.
 */
Test(program, evaluates) {
    double loss, perplexity, bits, validation;
    int sequences;
    expect_exit(TINY "|--set|train.micro_batch_size=1|--set|eval.batches=100000", 0);
    const char *reported = strstr(out_text, "step 24: validation loss ");
    cr_assert_not_null(reported, "%s", out_text);
    cr_assert_eq(sscanf(reported, "step 24: validation loss %lf", &validation), 1);
    expect_exit("--eval" FROM "|--data|tiny_val_*.bin|--precision|fp32,bf16,fp16", 0);
    const char *fp32 = strstr(out_text, "\nfp32 ");
    cr_assert_not_null(fp32, "%s", out_text);
    cr_assert_eq(sscanf(strchr(out_text, ':'), ": %d sequences", &sequences), 1);
    cr_assert_eq(sscanf(fp32, "\nfp32 %lf %lf %lf", &loss, &perplexity, &bits), 3);
    cr_expect_gt(sequences, 0);
    /* Both losses are of the same sequences and printed to four digits. */
    cr_expect_float_eq(loss, validation, 1.1e-4, "%g, in training %g", loss, validation);
    cr_expect_float_eq(perplexity, exp(loss), 1e-3 * perplexity);
    cr_expect_float_eq(bits, loss / log(2), 1e-3 * bits, "a token of this model is a byte");
    expect_match(out_text, "\nbf16 .* [+-]0\\.[0-9]+ %\nfp16 .* [+-]0\\.[0-9]+ %\n$");
    cr_expect_null(strstr(error_text, "not finite"), "%s", error_text);
    /* A weight that is NaN is said, beside the loss. */
    size_t size;
    char *weights = read_whole("a/run/checkpoints/step-00000024/model.safetensors", &size);
    char *keys = read_whole("a/run/checkpoints/step-00000024/config.json", &(size_t){0});
    memset(weights + size - sizeof(float), 0xff, sizeof(float));
    cr_assert_eq(mkdir(in_folder("broken"), 0755), 0);
    cr_assert_eq(
        file_write_whole(in_folder("broken/model.safetensors"), weights, size, NULL, &error), 0);
    write_file("broken/config.json", keys);
    free(weights);
    free(keys);
    expect_exit("--eval|--from|broken|--data|tiny_val_*.bin|--precision|fp32", 0);
    cr_expect_not_null(strstr(error_text, "the loss is not finite: weights of broken are not"),
                       "%s", error_text);
    expect_error("--eval" FROM "|--data|nothing*.bin", 1, "nothing*.bin");
    expect_error("--eval" FROM "|--data|tiny.json", 1, "tiny.json");
    expect_error("--eval|--from|nowhere|--data|tiny_val_*.bin", 1, "nowhere");
}

/* Text is tokenized, trained on and sampled. Training resumes from the checkpoint alone, which
 * contains the tokenizer. */
Test(program, trains_on_tokens_of_gpt2) {
#define TOKENS                                                                             \
    "--config|tiny.json|--set|data.train=words_train_*.bin|--set|data.val=words_val_*.bin" \
    "|--set|data.tokenizer=gpt2|--set|model.vocab_size=1200|--set|name=words"
    const char *name = getenv("PREPARE") ? getenv("PREPARE") : "./prepare";
    char prepare[FILE_PATH_MAX], vocabulary[FILE_PATH_MAX], command[5 * FILE_PATH_MAX];
    cr_assert_not_null(realpath(name, prepare), "no program %s: build it or set PREPARE", name);
    cr_assert_not_null(realpath("test/golden/tokenizer/small", vocabulary));
    snprintf(command, sizeof command,
             "cd %s && cp -r %s words && cat words/* words/* > words.txt && "
             "%s --tokenizer gpt2:words --out words words.txt >/dev/null 2>&1",
             folder, vocabulary, prepare);
    cr_assert_eq(system(command), 0, "%s", command);
    expect_exit(TOKENS "|--set|train.steps=8|--set|sample.every=8", 0);
    expect_text(out_text, "sample at step 8");
    cr_expect(exists("a/words/checkpoints/step-00000008/merges.txt"));
    expect_exit("--sample|the cat|--from|a/words|--tokens|9", 0);
    expect_exit("--eval|--data|words_val_*.bin|--from|a/words", 0);
    expect_exit("--export|small|--dtype|bf16|--from|a/words", 0);
    expect_exit("--sample|the cat|--from|small|--tokens|9", 0);
    expect_error("--eval|--data|tales|--from|a/words", 2, "a corpus of bytes");
    expect_error(TOKENS "|--resume|--set|data.tokenizer=bytes", 1,
                 "set data.tokenizer to \"gpt2\"");
    /* The original tokenizer directory no longer exists. */
    cr_assert_eq(directory_remove(in_folder("words"), &error), 0, "%s", error.text);
    expect_exit(TOKENS "|--resume|--set|train.steps=16|--set|sample.every=8", 0);
    expect_text(out_text, "sample at step 16");
    cr_expect(exists("a/words/checkpoints/step-00000016/merges.txt"));
}

/* Prompts of 40 bytes fill most of the sequences of 16. */
Test(program, steps_without_targets_are_warned_of) {
    static const char row[] = "{\"prompt\": \"aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd\", "
                              "\"completion\": \"e\"}\n";
    const char *name = getenv("PREPARE") ? getenv("PREPARE") : "./prepare";
    char prepare[FILE_PATH_MAX], command[5 * FILE_PATH_MAX];
    cr_assert_not_null(realpath(name, prepare), "no program %s: build it or set PREPARE", name);
    FILE *file = fopen(in_folder("rows.jsonl"), "w");
    for (int i = 0; i < 8; i++) fputs(row, file);
    cr_assert_eq(fclose(file), 0);
    snprintf(command, sizeof command,
             "cd %s && %s --tokenizer bytes --val-fraction 0 --out rows rows.jsonl >/dev/null 2>&1",
             folder, prepare);
    cr_assert_eq(system(command), 0, "%s", command);
#define ROWS_RUN                                                                                 \
    "--config|tiny.json|--set|data.train=rows_train_*.bin|--set|data.val=|--set|eval.every=0"    \
    "|--set|sample.every=0|--set|train.steps=4|--set|train.micro_batch_size=1|--set|train.grad_" \
    "accum_steps=1|--set|data.seq_len=16|--set|data.pack=cut"
    expect_exit(ROWS_RUN "|--set|name=short", 0);
    expect_text(error_text, ": no target counts in the loss: sequences are cut");
    const char *first = strstr(error_text, "no target counts");
    cr_expect_null(strstr(first + 1, "no target counts"), "said twice: %s", error_text);
}

Test(program, begins_from_given_weights) {
#define START "|--set|name=b|--set|model.init_from=a/run/checkpoints/"
    float fresh, continued;
    expect_exit(TINY "|--set|train.steps=100|--set|sample.every=0", 0);
    cr_assert_eq(sscanf(strstr(out_text, "step   1/"), "step 1/100 | loss %f", &fresh), 1);
    expect_exit(TINY START "step-00000096", 0);
    cr_assert_eq(sscanf(strstr(out_text, "step   1/"), "step 1/24 | loss %f", &continued), 1);
    cr_expect_lt(continued, fresh - 1, "from %g to %g", fresh, continued);
    expect_error(TINY START "none|--set|name=c", 1, "checkpoints/none");
    expect_error(TINY START "step-00000096|--set|name=d|--set|model.n_embd=64", 1, "n_embd");
    cr_expect_not(exists("a/d/metrics.jsonl"));
}

Test(program, metrics_can_be_switched_off) {
    expect_exit(TINY "|--set|log.metrics=false|--set|train.steps=8", 0);
    cr_expect_not(exists("a/run/metrics.jsonl"));
    /* Metrics are switched on again later. */
    expect_exit(TINY "|--resume", 0);
    cr_expect_eq(last_step("a/run"), 24);
}

static void expect_stopped_by_disk(const char *arguments, const char *part) {
    expect_error(arguments, 1, part);
    expect_text(error_text, "File too large");
}

/* The tiny model takes 140 KB, its moments twice that. */
Test(program, full_disk_leaves_no_broken_checkpoint) {
    static const rlim_t limits[] = {100000, 200000};
    expect_exit(TINY "|--set|train.steps=8", 0);
    for (size_t i = 0; i < 2; i++) {
        file_bytes_max = limits[i];
        expect_stopped_by_disk(TINY "|--resume", i ? "optimizer.safetensors" : "model.safetensors");
        cr_expect_str_eq(names_in("a/run/checkpoints", ""), "step-00000008");
        file_bytes_max = RLIM_INFINITY;
    }
    expect_exit(TINY "|--resume", 0);
    cr_expect_eq(last_step("a/run"), 24);
    file_bytes_max = 700;
    expect_error(TINY "|--set|name=b", 1, "b/config.json");
    cr_expect_str_eq(names_in("a/b", ""), "");
}

Test(program, a_start_that_fails_leaves_no_folder) {
    expect_error(TINY "|--resume", 1, "no complete checkpoint");
    expect_error(TINY "|--set|model.init_from=nowhere", 1,
                 "no nowhere, which model.init_from names");
    expect_error(TINY "|--set|data.train=nothing_*.bin", 1, "nothing_");
    cr_expect_not(exists("a/run"));
}

/* A million checkpoints of 76 MB do not fit the disk, one does. */
Test(program, too_little_disk_space_is_a_warning_at_the_start) {
    expect_exit(TINY
                "|--set|model.n_embd=512|--set|checkpoint.every=1|--set|checkpoint.keep=1000000"
                "|--set|train.steps=2000000|--set|train.minutes=1e-6|--set|eval.every=0",
                0);
    expect_text(error_text, "warning: a/run: ");
    expect_text(error_text, " of disk space are free, but 1000001 checkpoints more take 7");
    expect_exit(TINY "|--set|name=b", 0);
    cr_expect_null(strstr(error_text, "disk space"), "%s", error_text);
}

/* Weight decay of 99 times the weights takes them beyond fp32 in a few steps; how many depends on
 * the CPU level. */
Test(program, losses_that_are_not_finite_end_the_run) {
    static const char diverging[] =
        TINY "|--resume|--set|optimizer.lr=10|--set|optimizer.min_lr=10|--set|log.every=1|--set|"
             "optimizer.weight_decay=10|--set|eval.every=0|--set|sample.every=0|--set|"
             "checkpoint.every=0|--set|train.steps=100";
    static const char warning[] = "warning: loss is not finite since step ";
    char line[400], said[100];
    size_t size;
    expect_exit(TINY "|--set|train.steps=2", 0);
    expect_error(diverging, 1, "10 times in a row (loss nan)");
    const char *ended = strstr(error_text, "train: step ");
    cr_expect(ended && atol(ended + strlen("train: step ")) == last_step("a/run"),
              "metrics end at %ld: %s", last_step("a/run"), error_text);
    expect_text(out_text, "| loss nan |");
    cr_expect_null(strstr(out_text, "-nan"), "%s", out_text);
    const char *warned = strstr(error_text, warning);
    cr_assert_not_null(warned, "%s", error_text);
    cr_expect_null(strstr(warned + 1, warning), "said twice: %s", error_text);
    const int since = atoi(warned + strlen(warning));
    char *metrics = read_whole("a/run/metrics.jsonl", &size);
    expect_text(metrics, "\"loss\": null");
    free(metrics);
    snprintf(line, sizeof line, "%s|--set|checkpoint.every=%d|--set|train.steps=%d", diverging,
             since + 1, since + 3);
    snprintf(said, sizeof said, "step %d was not saved: its loss is not finite, since step %d",
             since + 3, since);
    expect_error(line, 1, said);
    cr_expect_str_eq(names_in("a/run/checkpoints", ""), "step-00000002");
}

Test(program, run_directory_that_cannot_be_written) {
    make_locked_folder("locked");
    expect_error(TINY "|--set|run_dir=locked", 1, "locked/run");
    expect_text(error_text, "Permission denied");
    as_nobody = false;
    expect_error(TINY "|--set|run_dir=tiny.json", 1, "tiny.json");
    expect_error(TINY "|--set|run_dir=/proc/none", 1, "/proc/none");
}

Test(program, standard_output_is_full) {
    char line[2 * FILE_PATH_MAX + 100];
    static const char *const commands[] = {"--help", "--version", "--print-schema",
                                           "--sample x --from a/run/checkpoints/step-00000001"};
    expect_exit(TINY "|--set|train.steps=1", 0);
    for (size_t i = 0; i < 4; i++) {
        snprintf(line, sizeof line, "cd %s && '%s' %s >/dev/full 2>error.txt", folder, program,
                 commands[i]);
        int status = system(line);
        read_output(error_text, "error.txt");
        cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 1, "%s: status %d", commands[i],
                  WEXITSTATUS(status));
        expect_text(error_text, "train: ");
    }
}

/* The program sets GOMP_SPINCOUNT and executes itself once more, under its own name. */
Test(program, waiting_threads_sleep_soon) {
#ifndef __clang__
    char path[64], name[64] = "", *environment, *setting = NULL;
    size_t size;
    unsetenv("OMP_WAIT_POLICY");
    unsetenv("GOMP_SPINCOUNT");
    pid_t child = start(TINY "|--set|train.steps=100000");
    wait_for_step(child, "a/run", 1);
    snprintf(path, sizeof path, "/proc/%d/environ", (int)child);
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file);
    environment = calloc(1, 1 << 16);
    size = fread(environment, 1, (1 << 16) - 1, file);
    fclose(file);
    for (char *at = environment; at < environment + size; at += strlen(at) + 1)
        if (strncmp(at, "GOMP_SPINCOUNT=", 15) == 0) setting = at + 15;
    long turns = setting ? atol(setting) : 0;
    cr_expect(turns >= 100 && turns <= 300000, "GOMP_SPINCOUNT %s", setting ? setting : "unset");
    free(environment);
    snprintf(path, sizeof path, "/proc/%d/comm", (int)child);
    file = fopen(path, "r");
    cr_assert(file && fgets(name, sizeof name, file));
    fclose(file);
    cr_expect_str_eq(name, "train\n");
    kill(child, SIGKILL);
    finish(child);
#endif
}

Test(program, two_runs_give_the_same_bits) {
    expect_exit(TINY "|--set|threads=2", 0);
    expect_exit(TINY "|--set|threads=2|--set|run_dir=b|--set|train.steps=24", 0);
    expect_same_file("a/run/checkpoints/step-00000024/model.safetensors",
                     "b/run/checkpoints/step-00000024/model.safetensors");
}
