#include "data/util/file_reader.h"
#include "test/scratch.h"

#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/util/files.h"

static struct file_reader reader;

static void set_up(void) {
    make_folder();
}

static void tear_down(void) {
    file_reader_close(&reader);
    file_reader_close(&reader);
    remove_folder();
}

TestSuite(file_reader, .init = set_up, .fini = tear_down);

enum { SIZE = 100003 };

static void write_it(uint8_t bytes[SIZE]) {
    for (int i = 0; i < SIZE; i++) bytes[i] = (uint8_t)(i * 7 + i / 5003);
    cr_assert_eq(file_write_whole(in_folder("x"), bytes, SIZE, NULL, &error), 0);
}

static void open_it(void) {
    cr_assert_eq(file_reader_open(&reader, in_folder("x"), &error), 0, "%s", error.text);
    cr_assert_eq(reader.bytes, SIZE);
}

Test(file_reader, any_piece_by_any_thread) {
    enum { PIECE = 1009, PIECES = SIZE / PIECE };
    static uint8_t bytes[SIZE], back[SIZE];
    int failed = 0;
    write_it(bytes);
    open_it();
#pragma omp parallel for reduction(+ : failed)
    for (int i = PIECES; i >= 0; i--) {
        struct error failure;
        size_t at = (size_t)i * PIECE, size = i < PIECES ? PIECE : SIZE - PIECES * PIECE;
        failed += file_reader_get(&reader, back + at, at, size, &failure) != 0;
    }
    cr_expect_eq(failed, 0);
    cr_expect_eq(memcmp(back, bytes, SIZE), 0);
    cr_expect_eq(file_reader_get(&reader, back, SIZE, 0, &error), 0, "nothing, at the end");
}

Test(file_reader, a_truncated_file_is_named) {
    static uint8_t bytes[SIZE];
    char expected[200];
    write_it(bytes);
    open_it();
    cr_assert_eq(truncate(in_folder("x"), 5000), 0);
    cr_expect_eq(file_reader_get(&reader, bytes, 0, 5000, &error), 0);
    cr_expect_eq(file_reader_get(&reader, bytes, 4999, 2, &error), -1);
    snprintf(expected, sizeof expected, "%s: it had 100003 bytes when it was opened, and has 5000",
             in_folder("x"));
    cr_expect_not_null(strstr(error.text, expected), "%s", error.text);
    cr_assert_eq(unlink(in_folder("x")), 0);
    cr_expect_eq(file_reader_get(&reader, bytes, 0, 5000, &error), 0, "removed, but still open");
}

Test(file_reader, unreadable_files_are_refused) {
    cr_expect_eq(file_reader_open(&reader, in_folder("x"), &error), -1);
    cr_expect_not_null(strstr(error.text, "x: No such file"), "%s", error.text);
    cr_expect_eq(file_reader_open(&reader, folder, &error), RESULT_NONE);
    cr_expect_not_null(strstr(error.text, "it is a directory"), "%s", error.text);
    cr_assert_eq(mkfifo(in_folder("pipe"), 0600), 0);
    cr_expect_eq(file_reader_open(&reader, in_folder("pipe"), &error), RESULT_NONE);
    cr_expect_not_null(strstr(error.text, "not a regular file"), "%s", error.text);
    cr_expect_null(reader.path);
}

/* Descriptors do not leak, so a process that fails often does not run out of them. */
Test(file_reader, more_files_than_the_default_limit) {
    enum { FILES = 100, BEGIN = 40 };
    struct file_reader readers[FILES];
    struct rlimit before, limit;
    static uint8_t bytes[SIZE];
    write_it(bytes);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = (struct rlimit){BEGIN, before.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int i = 0; i < 10 * BEGIN; i++)
        cr_assert_eq(file_reader_open(&reader, folder, &error), RESULT_NONE, "%s", error.text);
    for (int i = 0; i < FILES; i++)
        cr_assert_eq(file_reader_open(&readers[i], in_folder("x"), &error), 0, "%s", error.text);
    for (int i = 0; i < FILES; i++) file_reader_close(&readers[i]);
    limit = (struct rlimit){BEGIN, BEGIN};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    int opened = 0, status = 0;
    while (opened < BEGIN && status == 0)
        status = file_reader_open(&readers[opened++], in_folder("x"), &error);
    cr_expect_eq(status, -1);
    cr_expect_not_null(strstr(error.text, "Too many open files"), "%s", error.text);
    while (--opened >= 0) file_reader_close(&readers[opened]);
}
