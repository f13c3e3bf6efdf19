/* A folder for the files of one test: TestSuite(name, .init = make_folder, .fini =
 * remove_folder). */
#pragma once

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/error.h"
#include "data/util/files.h"

static char folder[] = "/tmp/mantissa-test-XXXXXX";
static struct error error;

/* Asserts that a call that reports to `error` returns 0. */
#define SUCCEEDS(call) cr_assert_eq(call, 0, "%s", error.text)

/* Another test of this process may have had a folder before. */
static inline void make_folder(void) {
    memset(folder + sizeof folder - sizeof "XXXXXX", 'X', sizeof "XXXXXX" - 1);
    cr_assert_not_null(mkdtemp(folder));
}

static inline void remove_folder(void) {
    cr_assert_eq(directory_remove(folder, &error), 0, "%s", error.text);
}

/* Returns a path in the folder, in one of a few buffers used in turn. */
__attribute__((format(printf, 1, 2))) static inline const char *in_folder(const char *format, ...) {
    static char paths[8][FILE_PATH_MAX];
    static int turn;
    char *path = paths[turn++ % 8];
    int length = snprintf(path, FILE_PATH_MAX, "%s/", folder);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path + length, (size_t)(FILE_PATH_MAX - length), format, arguments);
    va_end(arguments);
    return path;
}
