/* Shared by the tests of the program ./prepare, or $PREPARE, in a folder of its own. */
#pragma once

#include <criterion/criterion.h>
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

#include <stb/stb_ds.h>

#include "data/util/files.h"
#include "data/corpus/tokens.h"
#include "test/data/tokenize/token_at.h"
#include "test/notes.h"
#include "test/scratch.h"

enum { ARGUMENTS_MAX = 24, BLOCK_BYTES = 16 << 20, OUTPUT_MAX = 20000 };

static char out_text[OUTPUT_MAX], error_text[OUTPUT_MAX];

static inline void write_bytes(const char *name, const void *bytes, size_t size) {
    FILE *file = fopen(in_folder("%s", name), "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, size, file), size);
    cr_assert_eq(fclose(file), 0);
}

static inline void write_text(const char *name, const char *text) {
    write_bytes(name, text, strlen(text));
}

static inline void read_text(const char *name, char *text, size_t size) {
    char *bytes;
    size_t length;
    cr_assert_eq(file_read_all(&bytes, &length, in_folder("%s", name), size - 1, &error), 0, "%s",
                 error.text);
    memcpy(text, bytes, length + 1);
    free(bytes);
}

/* Starts the program in the folder with arguments separated by spaces. */
static inline pid_t start(const char *arguments, int input, rlim_t file_bytes) {
    const char *program = getenv("PREPARE") ? getenv("PREPARE") : "./prepare";
    char absolute[FILE_PATH_MAX], *words[ARGUMENTS_MAX + 1] = {absolute};
    char line[2 * FILE_PATH_MAX];
    cr_assert_not_null(realpath(program, absolute), "no program %s: build it or set PREPARE",
                       program);
    snprintf(line, sizeof line, "%s", arguments);
    int count = 1;
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) words[count++] = word;
    cr_assert_leq(count, ARGUMENTS_MAX);
    pid_t child = fork();
    if (child) return child;
    struct rlimit limit = {.rlim_cur = file_bytes, .rlim_max = file_bytes};
    if (chdir(folder) || dup2(open("out.txt", O_CREAT | O_TRUNC | O_WRONLY, 0644), 1) < 0 ||
        dup2(open("error.txt", O_CREAT | O_TRUNC | O_WRONLY, 0644), 2) < 0 ||
        dup2(input >= 0 ? input : open("/dev/null", O_RDONLY), 0) < 0 ||
        (file_bytes != RLIM_INFINITY && setrlimit(RLIMIT_FSIZE, &limit)))
        _exit(99);
    execv(absolute, words);
    _exit(98);
}

/* Waits for the program; out_text and error_text then hold its output. Returns its exit status. */
static inline int finish(pid_t child) {
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status), "the program was ended by signal %d", WTERMSIG(status));
    read_text("out.txt", out_text, sizeof out_text);
    read_text("error.txt", error_text, sizeof error_text);
    unfold(error_text);
    return WEXITSTATUS(status);
}

static inline int run(const char *arguments) {
    return finish(start(arguments, -1, RLIM_INFINITY));
}

static inline int exists(const char *name) {
    return file_exists(in_folder("%s", name));
}

/* Returns all tokens of a pattern as text; the caller frees it with arrfree. */
static inline char *tokens_text(const char *pattern) {
    struct tokens tokens;
    char *text = NULL;
    cr_assert_eq(tokens_open(&tokens, in_folder("%s", pattern), &error), 0, "%s", error.text);
    for (int s = 0; s < (int)arrlen(tokens.shards); s++)
        for (uint64_t i = 0; i < tokens.shards[s].count; i++) {
            const int32_t token = token_at(&tokens.shards[s], i);
            cr_assert_lt(token, 256);
            arrput(text, (char)token);
        }
    arrput(text, '\0');
    tokens_close(&tokens);
    return text;
}

static inline void expect_tokens(const char *pattern, const char *expected) {
    char *text = tokens_text(pattern);
    cr_assert_str_eq(text, expected, "%s", pattern);
    arrfree(text);
}
