/* ./train interrupted, killed and resumed gives the same bits as an uninterrupted run. */
#include "test/model/cli/program_fixture.h"

#include "test/caught.h"

TestSuite(program_resume, .init = set_up, .fini = remove_folder);

/* Long enough that a signal arrives during training. */
#define LONG "--config|tiny.json|--set|train.steps=300|--set|checkpoint.every=50"

static const char *const precisions[] = {"fp32", "bf16", "fp16"};

/* Returns the metrics without times, speed and memory. */
static char *story(const char *run_folder) {
    char *text = NULL, line[1024];
    size_t size;
    FILE *out = open_memstream(&text, &size);
    FILE *file = fopen(in_folder("%s/metrics.jsonl", run_folder), "r");
    cr_assert_not_null(file);
    while (fgets(line, sizeof line, file)) {
        cr_assert_not_null(strchr(line, '\n'), "half a line: %s", line);
        char *clock = strstr(line, ", \"step_ms\"");
        fprintf(out, "%.*s\n", (int)(clock ? clock - line : (ptrdiff_t)strcspn(line, "\n")), line);
    }
    fclose(file);
    fclose(out);
    return text;
}

/* Expects the same metrics and the same final checkpoint in runs a and b. */
static void expect_same_run(const char *a, const char *b) {
    char *left = story(a), *right = story(b);
    size_t at = 0;
    while (left[at] && left[at] == right[at]) at++;
    cr_expect(left[at] == right[at], "%s and %s part at: %.80s\nand: %.80s", a, b, left + at,
              right + at);
    cr_expect_gt(strlen(left), 1000u);
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    for (int i = 0; i < 2; i++) {
        char first[200], second[200];
        snprintf(first, sizeof first, "%s/checkpoints/step-00000300/%s", a, files[i]);
        snprintf(second, sizeof second, "%s/checkpoints/step-00000300/%s", b, files[i]);
        expect_same_file(first, second);
    }
    free(left);
    free(right);
}

/* arguments | format with value. */
static const char *with(const char *arguments, const char *format, const char *value) {
    static char texts[8][1000];
    static int turn;
    char *text = texts[turn++ % 8];
    size_t length = strlen(arguments);
    memmove(text, arguments, length);
    text[length] = '|';
    snprintf(text + length + 1, sizeof *texts - length - 1, format, value);
    return text;
}

/* Trains the uninterrupted reference in run directory b. */
static void run_undisturbed(const char *precision) {
    expect_exit(with(with(LONG, "--set|run_dir=%s", "b"), "--set|precision=%s", precision), 0);
}

static void check_signal(int signal_number, int expected, const char *precision) {
    const char *arguments = with(LONG, "--set|precision=%s", precision);
    long step = 300;
    int status = 0;
    signal(signal_number, SIG_DFL); /* the tests may have been started by nohup */
    for (int tries = 0; tries < 10 && step == 300; tries++) { /* 300: the signal came too late */
        if (tries > 0) cr_assert_eq(directory_remove(in_folder("a"), &error), 0);
        pid_t child = start(arguments);
        wait_for_step(child, "a/run", 70);
        bool repeats = signal_number == SIGHUP; /* the kernel and the shell both send it */
        do kill(child, signal_number);
        while (repeats && running(child));
        status = finish(child);
        step = last_step("a/run");
    }
    char name[64];
    cr_expect_eq(status, expected, "exit %d\n%s", status, error_text);
    cr_assert_lt(step, 300, "the signal came too late to test anything");
    snprintf(name, sizeof name, "a/run/checkpoints/step-%08ld/trainer.json", step);
    cr_expect(exists(name), "stopped after step %ld, but no %s", step, name);
    cr_expect_not_null(strstr(error_text, "--resume"), "%s", error_text);
    cr_expect_eq(strstr(error_text, "a second Ctrl-C ends at once") != NULL,
                 signal_number == SIGINT, "%s", error_text);
    expect_exit(with(arguments, "%s", "--resume"), 0);
    run_undisturbed(precision);
    expect_same_run("a/run", "b/run");
}

Test(program_resume, sigint_in_fp32) {
    check_signal(SIGINT, 130, "fp32");
}

Test(program_resume, sigterm_in_bf16) {
    check_signal(SIGTERM, 143, "bf16");
}

Test(program_resume, sigint_in_fp16) {
    check_signal(SIGINT, 130, "fp16");
}

Test(program_resume, sighup_again_and_again_in_fp32) {
    check_signal(SIGHUP, 129, "fp32");
}

Test(program_resume, nohup) {
    signal(SIGHUP, SIG_IGN);
    pid_t child = start("--config|tiny.json|--set|train.steps=1000000|--set|eval.every=0");
    wait_for_step(child, "a/run", 5);
    kill(child, SIGHUP);
    wait_for_step(child, "a/run", last_step("a/run") + 20);
    kill(child, SIGTERM);
    cr_expect_eq(finish(child), 143);
}

/* ./train | head -3, with and without standard error in the same pipe. */
Test(program_resume, the_reader_of_the_output_goes_away) {
    static const char *const where[] = {"2>error.txt", "2>&1"};
    for (int i = 0; i < 2; i++) {
        char line[2 * FILE_PATH_MAX], name[64];
        snprintf(line, sizeof line,
                 "cd %s && { '%s' --config tiny.json --set train.steps=1000000 --set log.every=1 "
                 "--set checkpoint.every=0 --set run_dir=p%d %s; echo $? >status; } | head -3 "
                 ">out.txt; exit $(cat status)",
                 folder, program, i, where[i]);
        int status = system(line);
        cr_expect_eq(WEXITSTATUS(status), 128 + SIGPIPE, "status %d", WEXITSTATUS(status));
        snprintf(name, sizeof name, "p%d/run", i);
        snprintf(line, sizeof line, "%s/checkpoints/step-%08ld", name, last_step(name));
        cr_expect(exists(line), "no %s", line);
    }
}

/* Each process takes at least one step, even if train.minutes are over at its start. */
Test(program_resume, after_train_minutes) {
    const char *late = with(LONG, "%s", "--set|train.minutes=1e-6|--set|checkpoint.resume=auto");
    for (int step = 1; step <= 3; step++) {
        char expected[64];
        expect_exit(late, 0);
        cr_expect_eq(last_step("a/run"), step);
        snprintf(expected, sizeof expected, "stopped at step %d of 300", step);
        cr_expect_not_null(strstr(out_text, expected), "%s", out_text);
        cr_expect_not_null(strstr(out_text, "--resume"), "%s", out_text);
        cr_expect_not_null(strstr(out_text, "train.minutes (1e-06) are over"), "%s", out_text);
    }
    expect_exit(with(LONG, "%s", "--resume|--set|train.minutes=9"), 0);
    cr_expect_null(strstr(out_text, "stopped at"), "%s", out_text);
    run_undisturbed("fp32");
    expect_same_run("a/run", "b/run");
}

/* The run is killed repeatedly, also in the middle of a save. */
Test(program_resume, kill_9) {
    const char *arguments = with(LONG, "--set|%s", "checkpoint.resume=auto");
    int kills = 0, status = 128 + SIGKILL;
    for (int round = 0; round < 60 && status == 128 + SIGKILL; round++) {
        pid_t child = start(arguments);
        long wanted = last_step("a/run") / 50 * 50 + 40;
        while (running(child) && last_step("a/run") <= wanted) usleep(200);
        usleep((useconds_t)(random_bits(9, 0, (uint64_t)round) % 20000));
        if (round < 12) kill(child, SIGKILL);
        status = finish(child);
        kills += status == 128 + SIGKILL;
    }
    cr_assert_eq(status, 0, "exit %d: %s", status, error_text);
    cr_expect_geq(kills, 3);
    cr_expect_str_eq(names_in("a/run/checkpoints", "."), "", "a killed writer's leftovers stay");
    run_undisturbed("fp32");
    expect_same_run("a/run", "b/run");
}

/* The metrics of a run killed before its first checkpoint are kept under another name. */
Test(program_resume, a_new_run_sets_the_metrics_of_a_killed_one_aside) {
    static const char run_on[] = "--config|tiny.json|--set|checkpoint.every=0|--set|train.steps=";
    char line[200], name[64];
    for (int kills = 1; kills <= 2; kills++) {
        snprintf(line, sizeof line, "%s1000000", run_on);
        pid_t child = start(line);
        double deadline = seconds_now() + 20; /* the metrics of the first run already exist */
        while (kills == 2 && !exists("a/run/metrics-1.jsonl") && seconds_now() < deadline)
            usleep(1000);
        wait_for_step(child, "a/run", 10);
        kill(child, SIGKILL);
        finish(child);
    }
    snprintf(line, sizeof line, "%s3", run_on);
    expect_exit(line, 0);
    cr_expect_not_null(strstr(error_text, "its metrics are kept as metrics-2.jsonl"), "%s",
                       error_text);
    cr_expect_eq(last_step("a/run"), 3);
    for (int i = 1; i <= 2; i++) {
        size_t size;
        snprintf(name, sizeof name, "a/run/metrics-%d.jsonl", i);
        char *text = read_whole(name, &size);
        cr_expect_not_null(strstr(text, "{\"step\": 10,"));
        free(text);
    }
    expect_exit("--config|tiny.json|--resume", 0);
    cr_expect_not(exists("a/run/metrics-3.jsonl"));
}

/* A run resumes from another run's checkpoint into its own directory. */
Test(program_resume, from_a_path) {
    run_undisturbed("fp32");
    expect_exit(LONG "|--resume|b/run/checkpoints/step-00000200", 0);
    expect_same_file("a/run/checkpoints/step-00000300/model.safetensors",
                     "b/run/checkpoints/step-00000300/model.safetensors");
    char *whole = story("b/run"), *end = story("a/run");
    cr_expect_eq(strncmp(end, "{\"step\": 201,", 13), 0, "%.40s", end);
    cr_expect_not_null(strstr(whole, end));
    free(whole);
    free(end);
}

Test(program_resume, in_another_precision) {
    for (int i = 0; i < 3; i++) {
        char run_dir[20];
        snprintf(run_dir, sizeof run_dir, "p%d", i);
        const char *here = with("--config|tiny.json", "--set|run_dir=%s", run_dir);
        const char *first = with(here, "--set|train.steps=10|--set|precision=%s", precisions[i]);
        expect_exit(first, 0);
        const char *next = precisions[(i + 1) % 3];
        expect_exit(with(here, "--resume|--set|precision=%s", next), 0);
        cr_expect_not_null(strstr(error_text, precisions[i]), "%s", error_text);
        cr_expect_not_null(strstr(error_text, next), "%s", error_text);
    }
}

Test(program_resume, a_second_process_is_refused) {
    pid_t first = start("--config|tiny.json|--set|train.steps=1000000");
    wait_for_step(first, "a/run", 20);
    rename(in_folder("out.txt"), in_folder("first.txt"));
    expect_error("--config|tiny.json|--resume", 1, "another process");
    expect_error("--config|tiny.json", 1, "another process");
    expect_exit("--config|tiny.json|--set|name=other|--set|train.steps=1", 0);
    long before = last_step("a/run");
    wait_for_step(first, "a/run", before + 5);
    kill(first, SIGTERM);
    cr_expect_eq(finish(first), 143);
    expect_exit("--config|tiny.json|--resume|--set|train.steps=1000000|--dry-run", 0);
}

/* A second signal ends the program without waiting for the step. */
Test(program_resume, two_signals) {
    pid_t child = start("--config|tiny.json|--set|train.steps=100000|--set|model.n_embd=512|--set|"
                        "train.micro_batch_size=64|--set|sample.every=0|--set|eval.every=0");
    wait_until_caught(child, SIGINT, true);
    usleep(100000); /* into the first step, which takes seconds */
    kill(child, SIGINT);
    wait_until_caught(child, SIGINT, false);
    kill(child, SIGINT);
    double sent = seconds_now();
    int status = finish(child);
    cr_expect_eq(status, 130, "exit %d", status);
    cr_expect_lt(seconds_now() - sent, 5);
    cr_expect_null(strstr(error_text, "stopped by"), "it finished the step: %s", error_text);
    cr_expect_not(exists("a/run/checkpoints"));
}

/* The metrics alone reach the limit of the file size: checkpoints are smaller. */
Test(program_resume, saves_when_metrics_cannot_be_written) {
    enum { BYTES = 1 << 20, MORE = 700 /* less than ten lines */ };
    char saved[100] = "";
    expect_exit(LONG "|--set|train.steps=50", 0);
    FILE *file = fopen(in_folder("a/run/metrics.jsonl"), "a");
    cr_assert_not_null(file);
    for (fseek(file, 0, SEEK_END); ftell(file) < BYTES;)
        fputs("{\"step\": 50, \"tokens\": 1}\n", file);
    cr_assert_eq(fclose(file), 0);
    file_bytes_max = BYTES + MORE;
    expect_error(LONG "|--resume", 1, "metrics.jsonl");
    cr_expect_not_null(strstr(error_text, "File too large\nfree space"), "%s", error_text);
    const char *line = strstr(out_text, "\nsaved ");
    cr_assert(line && sscanf(line, "\nsaved %99s", saved) == 1, "%s", out_text);
    cr_expect_lt(strcmp(saved, "a/run/checkpoints/step-00000070"), 0, "%s", saved);
    cr_expect(file_exists_in(in_folder("%s", saved), "trainer.json"), "%s", saved);
}

/* The limit stops the metrics first, and then the checkpoint. */
Test(program_resume, metrics_and_checkpoint_cannot_be_written) {
    file_bytes_max = 20000;
    expect_error(LONG "|--set|checkpoint.every=0", 1, "train: metrics.jsonl: File too large");
    cr_expect_not_null(strstr(error_text, "was not saved: disk full"), "%s", error_text);
    cr_expect_lt(last_step("a/run"), 200);
    cr_expect_str_eq(names_in("a/run/checkpoints", "step-"), "");
}
