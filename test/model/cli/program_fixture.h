/* Shared by the tests of the program itself: ./train, or $TRAIN, in a folder of its own that holds
 * a tiny config and shards of tokens. */
#pragma once

#include <criterion/criterion.h>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "data/util/files.h"
#include "data/util/random.h"
#include "data/corpus/tokens.h"
#include "test/data/corpus/shard_put.h"
#include "test/notes.h"
#include "test/scratch.h"

enum { PROGRAM_ARGUMENTS_MAX = 40, PROGRAM_OUTPUT_MAX = 1 << 18, PROGRAM_SECONDS_MAX = 60 };

static char program[FILE_PATH_MAX];
static char out_text[PROGRAM_OUTPUT_MAX], error_text[PROGRAM_OUTPUT_MAX];
static rlim_t file_bytes_max = RLIM_INFINITY; /* limit of the programs started later */
static bool as_nobody;                        /* start programs as nobody instead of root */

static const char tiny_config[] =
    "{\n"
    "  \"name\": \"run\", \"precision\": \"fp32\", \"threads\": 1, \"run_dir\": \"a\",\n"
    "  \"model\": {\"n_layer\": 2, \"n_head\": 2, \"n_embd\": 32, \"n_positions\": 32},\n"
    "  \"data\": {\"train\": \"tiny_train_*.bin\", \"val\": \"tiny_val_*.bin\",\n"
    "           \"seq_len\": 32},\n"
    "  \"train\": {\"steps\": 24, \"micro_batch_size\": 2, \"grad_accum_steps\": 2},\n"
    "  \"optimizer\": {\"lr\": 3e-3, \"warmup_steps\": 1},\n"
    "  \"eval\": {\"every\": 6, \"batches\": 2},\n"
    "  \"checkpoint\": {\"every\": 8, \"keep\": 3},\n"
    "  \"sample\": {\"every\": 12, \"tokens\": 12}\n"
    "}\n";

static inline void write_file(const char *name, const char *text) {
    FILE *file = fopen(in_folder("%s", name), "w");
    cr_assert_not_null(file, "%s", name);
    fputs(text, file);
    cr_assert_eq(fclose(file), 0);
}

/* Bytes of a made-up language; `foreign` in the middle, if not 0. Of 32 bits if it needs them. */
static inline void write_shard(const char *prefix, int count, int32_t foreign) {
    static const char *const words[] = {"the ", "cat ", "sat ", "on a ", "mat. "};
    struct shard_writer writer;
    char path[FILE_PATH_MAX];
    snprintf(path, sizeof path, "%s", in_folder("%s", prefix));
    const int vocabulary = foreign >= 256 ? foreign + 1 : 256;
    cr_assert_eq(shard_writer_open(&writer, path, vocabulary, 1 << 20, &error), 0, "%s",
                 error.text);
    for (int i = 0; i < count;) {
        const char *word = words[random_bits(1, 0, (uint64_t)i) % 5];
        for (; *word; word++, i++) {
            const int32_t token = foreign && i == count / 2 ? foreign : *word;
            cr_assert_eq(shard_writer_put(&writer, &token, 1, &error), 0, "%s", error.text);
        }
    }
    cr_assert_eq(shard_writer_finish(&writer, &error), 0, "%s", error.text);
    cr_assert_eq(shard_writer_publish(&writer, &error), 0, "%s", error.text);
}

static inline void set_up(void) {
    const char *name = getenv("TRAIN") ? getenv("TRAIN") : "./train";
    cr_assert_not_null(realpath(name, program), "no program %s: build it or set TRAIN", name);
    make_folder();
    setenv("XDG_CACHE_HOME", in_folder("cache"), 1);
    write_file("tiny.json", tiny_config);
    write_shard("tiny_train", 6000, 0);
    write_shard("tiny_val", 1000, 0);
}

/* Copies the program, so that a user without access to the build directory can run it. */
static inline void copy_program(void) {
    size_t size;
    struct stat status;
    char *bytes = NULL;
    cr_assert_eq(file_read_all(&bytes, &size, program, 1 << 28, &error), 0, "%s", error.text);
    int file = open(in_folder("train"), O_CREAT | O_WRONLY, 0755);
    cr_assert_eq(write(file, bytes, size), (ssize_t)size);
    cr_assert(fstat(file, &status) == 0 && close(file) == 0);
    free(bytes);
    snprintf(program, sizeof program, "%s", in_folder("train"));
}

/* Makes a folder that the programs started later may not write to: they run as nobody, because root
 * may write anywhere. */
static inline void make_locked_folder(const char *name) {
    copy_program();
    cr_assert_eq(chmod(folder, 0755), 0);
    cr_assert_eq(mkdir(in_folder("%s", name), 0555), 0);
    as_nobody = geteuid() == 0;
}

/* Sets directory, output files and limits in the child process. */
static inline void enter(void) {
    struct rlimit limit = {.rlim_cur = file_bytes_max, .rlim_max = file_bytes_max};
    if (chdir(folder) || dup2(open("out.txt", O_CREAT | O_TRUNC | O_WRONLY, 0644), 1) < 0 ||
        dup2(open("error.txt", O_CREAT | O_TRUNC | O_WRONLY, 0644), 2) < 0 ||
        dup2(open("/dev/null", O_RDONLY), 0) < 0 ||
        (file_bytes_max != RLIM_INFINITY && setrlimit(RLIMIT_FSIZE, &limit)) ||
        (as_nobody && (setgid(65534) || setuid(65534))))
        _exit(99);
    signal(SIGXFSZ, SIG_DFL);
    unsetenv("TERM");
}

/* Starts the program with arguments separated by |. */
static inline pid_t start(const char *arguments) {
    char *words[PROGRAM_ARGUMENTS_MAX + 1] = {program}, line[2000], *rest = line, *word;
    int count = 1;
    snprintf(line, sizeof line, "%s", arguments);
    while (*arguments && (word = strsep(&rest, "|"))) {
        cr_assert_lt(count, PROGRAM_ARGUMENTS_MAX);
        words[count++] = word;
    }
    pid_t child = fork();
    if (child) return child;
    enter();
    execv(program, words);
    _exit(98);
}

static inline double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline void read_output(char *text, const char *name) {
    char *bytes;
    size_t size;
    text[0] = 0;
    if (file_read_all(&bytes, &size, in_folder("%s", name), PROGRAM_OUTPUT_MAX - 1, &error)) return;
    memcpy(text, bytes, size);
    text[size] = 0;
    free(bytes);
}

/* Waits for the end. Returns the exit status like a shell, 128 + signal for a killed program. */
static inline int finish(pid_t child) {
    int status;
    double deadline = seconds_now() + PROGRAM_SECONDS_MAX;
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (seconds_now() > deadline) kill(child, SIGKILL);
        usleep(1000);
    }
    read_output(out_text, "out.txt");
    read_output(error_text, "error.txt");
    unfold(error_text);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static inline int run(const char *arguments) {
    return finish(start(arguments));
}

static inline void expect_exit(const char *arguments, int expected) {
    int status = run(arguments);
    cr_expect_eq(status, expected, "%s: exit %d, expected %d\n%s%s", arguments, status, expected,
                 out_text, error_text);
}

/* Expects one error message on standard error, prefixed with the program's name. */
static inline void expect_error(const char *arguments, int expected, const char *part) {
    expect_exit(arguments, expected);
    cr_expect_not_null(strstr(error_text, "train: "), "%s: says nothing: %s", arguments,
                       error_text);
    cr_expect_not_null(strstr(error_text, part), "%s: \"%s\" is not in: %s", arguments, part,
                       error_text);
}

/* Returns the last step in metrics.jsonl, or 0 if it has none. */
static inline long last_step(const char *run_folder) {
    char line[1024];
    long step = 0, found;
    FILE *file = fopen(in_folder("%s/metrics.jsonl", run_folder), "r");
    while (file && fgets(line, sizeof line, file))
        if (strchr(line, '\n') && sscanf(line, "{\"step\": %ld, \"tokens\"", &found) == 1)
            step = found;
    if (file) fclose(file);
    return step;
}

/* True if the child is still running. Leaves its status for finish(). */
static inline bool running(pid_t child) {
    siginfo_t info = {.si_pid = 0};
    cr_assert_eq(waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT), 0);
    return info.si_pid == 0;
}

static inline void wait_for_step(pid_t child, const char *run_folder, long step) {
    double deadline = seconds_now() + PROGRAM_SECONDS_MAX;
    while (last_step(run_folder) < step) {
        cr_assert_lt(seconds_now(), deadline, "step %ld does not come", step);
        cr_assert(running(child), "it ended before step %ld", step);
        usleep(500);
    }
}

static inline bool exists(const char *name) {
    return access(in_folder("%s", name), F_OK) == 0;
}

/* Returns the sorted names in a directory that begin with `start`, separated by spaces. */
static inline const char *names_in(const char *name, const char *begin) {
    static char texts[4][2000];
    static int turn;
    char *text = texts[turn++ % 4];
    struct dirent **entries;
    int count = scandir(in_folder("%s", name), &entries, NULL, alphasort);
    text[0] = 0;
    for (int i = 0; i < count; i++) {
        size_t length = strlen(text);
        bool listed = strncmp(entries[i]->d_name, begin, strlen(begin)) == 0 &&
                      strcmp(entries[i]->d_name, ".") != 0 && strcmp(entries[i]->d_name, "..") != 0;
        if (listed)
            snprintf(text + length, sizeof *texts - length, "%s%s", length ? " " : "",
                     entries[i]->d_name);
        free(entries[i]);
    }
    if (count >= 0) free(entries);
    return text;
}

/* Expects the files of a run with one log, and products.txt, which runs on GPUs have. */
static inline void expect_run_files(const char *name) {
    static const char usual[] = "checkpoints config.json metrics.jsonl";
    const char *names = names_in(name, ""), *more = names + strlen(usual);
    cr_expect(strncmp(names, usual, strlen(usual)) == 0 &&
                  (!*more || strcmp(more, " products.txt") == 0),
              "%s", names);
}

static inline char *read_whole(const char *name, size_t *size) {
    char *bytes;
    cr_assert_eq(file_read_all(&bytes, size, in_folder("%s", name), 1 << 24, &error), 0, "%s",
                 error.text);
    return bytes;
}

static inline void expect_same_file(const char *a, const char *b) {
    size_t a_size, b_size;
    char *left = read_whole(a, &a_size), *right = read_whole(b, &b_size);
    cr_expect(a_size == b_size && memcmp(left, right, a_size) == 0, "%s and %s differ", a, b);
    free(left);
    free(right);
}

/* Flips a bit in the middle of a file. */
static inline void damage(const char *name) {
    FILE *file = fopen(in_folder("%s", name), "r+");
    cr_assert_not_null(file, "%s", name);
    fseek(file, 0, SEEK_END);
    long middle = ftell(file) / 2;
    fseek(file, middle, SEEK_SET);
    int byte = fgetc(file);
    fseek(file, middle, SEEK_SET);
    fputc(byte ^ 1, file);
    cr_assert_eq(fclose(file), 0);
}
