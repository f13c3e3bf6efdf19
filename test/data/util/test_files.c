#include "data/util/files.h"

#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test/scratch.h"

TestSuite(files, .init = make_folder, .fini = remove_folder);

static void write_text(const char *path, const char *text) {
    cr_assert_eq(file_write_whole(path, text, strlen(text), NULL, &error), 0, "%s", error.text);
}

static void expect_text(const char *path, const char *text) {
    char *bytes;
    size_t size;
    cr_assert_eq(file_read_all(&bytes, &size, path, 1 << 20, &error), 0, "%s", error.text);
    cr_expect_eq(size, strlen(text));
    cr_expect_str_eq(bytes, text);
    free(bytes);
}

static void expect_message(const char *part) {
    cr_expect_not_null(strstr(error.text, part), "\"%s\" is not in: %s", part, error.text);
}

Test(files, old_file_stays_until_the_commit) {
    const char *path = in_folder("a");
    write_text(path, "old");
    struct file_writer writer;
    cr_assert_eq(file_writer_open(&writer, path, &error), 0);
    cr_assert_eq(file_writer_put(&writer, "new", 3, &error), 0);
    expect_text(path, "old");
    cr_expect(file_exists(in_folder("a.tmp")));
    cr_assert_eq(file_writer_commit(&writer, &error), 0);
    expect_text(path, "new");
    cr_expect_not(file_exists(in_folder("a.tmp")));
    file_writer_abandon(&writer);
    expect_text(path, "new");
}

Test(files, abandon_leaves_the_old_file_and_nothing_else) {
    const char *path = in_folder("a");
    write_text(path, "old");
    struct file_writer writer;
    cr_assert_eq(file_writer_open(&writer, path, &error), 0);
    cr_assert_eq(file_writer_put(&writer, "new", 3, &error), 0);
    file_writer_abandon(&writer);
    file_writer_abandon(&writer);
    expect_text(path, "old");
    cr_expect_not(file_exists(in_folder("a.tmp")));
    memset(&writer, 0, sizeof(writer));
    file_writer_abandon(&writer);
    cr_expect_geq(fcntl(0, F_GETFD), 0, "a writer of zeros must not close descriptor 0");
}

/* flock also separates two descriptors of one process. */
Test(files, a_file_has_one_writer_at_a_time) {
    struct file_writer first, second;
    cr_assert_eq(file_writer_open(&first, in_folder("a"), &error), 0);
    cr_assert_eq(file_writer_put(&first, "first", 5, &error), 0);
    cr_expect_eq(file_writer_open(&second, in_folder("a"), &error), -1);
    expect_message("another process is writing it");
    cr_assert_eq(file_writer_commit(&first, &error), 0);
    expect_text(in_folder("a"), "first");
    cr_assert_eq(file_write_whole(in_folder("a"), "second", 6, NULL, &error), 0);
    expect_text(in_folder("a"), "second");
}

Test(files, a_lock_is_of_the_file_that_has_the_name) {
    write_text(in_folder("a"), "old");
    const int old = open(in_folder("a"), O_RDWR);
    cr_assert_eq(unlink(in_folder("a")), 0);
    cr_expect_eq(file_lock(old, in_folder("a")), ESTALE);
    write_text(in_folder("a"), "new");
    cr_expect_eq(file_lock(old, in_folder("a")), ESTALE);
    const int new = open(in_folder("a"), O_RDWR), other = open(in_folder("a"), O_RDWR);
    cr_expect_eq(file_lock(new, in_folder("a")), 0);
    cr_expect_eq(file_lock(other, in_folder("a")), EWOULDBLOCK);
    close(new);
    cr_expect_eq(file_lock(other, in_folder("a")), 0);
    close(other);
    close(old);
}

Test(files, a_locked_directory_is_refused_until_it_is_closed) {
    int first, second;
    bool has_lock;
    cr_assert_eq(directory_lock(&first, &has_lock, in_folder("a/b"), &error), 0);
    cr_expect(has_lock);
    cr_expect_eq(directory_lock(&second, &has_lock, in_folder("a/b"), &error), RESULT_NONE);
    write_text(in_folder("a/b/c"), "old");
    cr_assert_eq(directory_clear(in_folder("a/b"), &error), 0);
    cr_expect(file_exists(in_folder("a/b")));
    cr_expect_not(file_exists(in_folder("a/b/c")));
    close(first);
    cr_expect_eq(directory_lock(&second, &has_lock, in_folder("a/b"), &error), 0);
    close(second);
}

Test(files, leftovers_of_a_crash_are_overwritten) {
    FILE *stale = fopen(in_folder("a.tmp"), "w");
    cr_assert_not_null(stale);
    fputs("a long rest of an earlier, interrupted save", stale);
    fclose(stale);
    write_text(in_folder("a"), "short");
    expect_text(in_folder("a"), "short");
}

Test(files, pieces_of_any_size_arrive_with_size_and_hash) {
    static const size_t pieces[] = {1, WRITE_BEHIND_BYTES - 1,     1,  WRITE_BEHIND_BYTES, 0,
                                    7, 2 * WRITE_BEHIND_BYTES + 3, 100};
    size_t total = 0;
    for (size_t i = 0; i < sizeof(pieces) / sizeof(*pieces); i++) total += pieces[i];
    uint8_t *source = malloc(total);
    cr_assert_not_null(source);
    for (size_t i = 0; i < total; i++) source[i] = (uint8_t)(i * 2654435761u >> 13);

    struct file_writer writer;
    cr_assert_eq(file_writer_open(&writer, in_folder("a"), &error), 0);
    size_t done = 0;
    for (size_t i = 0; i < sizeof(pieces) / sizeof(*pieces); i++) {
        cr_assert_eq(file_writer_put(&writer, source + done, pieces[i], &error), 0, "%s",
                     error.text);
        done += pieces[i];
    }
    cr_assert_eq(file_writer_commit(&writer, &error), 0, "%s", error.text);
    cr_expect_eq(writer.size, total);

    char hex[SHA256_HEX_MAX];
    uint64_t size;
    cr_assert_eq(sha256_file(hex, &size, in_folder("a"), &error), 0);
    cr_expect_str_eq(writer.hex, hex);
    cr_expect_eq(size, total);
    char *bytes;
    size_t read;
    cr_assert_eq(file_read_all(&bytes, &read, in_folder("a"), total, &error), 0, "%s", error.text);
    cr_assert_eq(read, total);
    cr_expect_eq(memcmp(bytes, source, total), 0);
    free(bytes);
    free(source);
}

Test(files, patch_changes_written_and_buffered_bytes) {
    struct file_writer writer;
    cr_assert_eq(file_writer_open(&writer, in_folder("a"), &error), 0);
    cr_assert_eq(file_writer_put(&writer, "count=00 first ", 15, &error), 0);
    cr_assert_eq(file_writer_patch(&writer, 6, "42", 2, &error), 0);
    cr_assert_eq(file_writer_put(&writer, "second", 6, &error), 0);
    cr_assert_eq(file_writer_patch(&writer, 20, "D", 1, &error), 0);
    cr_assert_eq(file_writer_put(&writer, "!", 1, &error), 0);
    cr_assert_eq(file_writer_commit(&writer, &error), 0, "%s", error.text);
    expect_text(in_folder("a"), "count=42 first seconD!");
    char hex[SHA256_HEX_MAX];
    cr_assert_eq(sha256_file(hex, NULL, in_folder("a"), &error), 0);
    cr_expect_str_eq(writer.hex, hex);
    cr_expect_eq(writer.size, 22);
}

/* A file size limit fails like a full disk, without needing one. */
Test(files, full_disk_is_named_and_leaves_nothing) {
    signal(SIGXFSZ, SIG_IGN);
    write_text(in_folder("a"), "old");
    struct rlimit limit;
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    const struct rlimit before = limit;
    limit.rlim_cur = 10000;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    static const uint8_t bytes[2 * WRITE_BEHIND_BYTES];
    for (int when = 0; when < 3; when++) {
        struct file_writer writer;
        strcpy(error.text, "");
        cr_expect_eq(file_writer_open(&writer, in_folder("a"), &error), 0, "%s", error.text);
        const size_t size = when == 0 ? sizeof(bytes) : 20000;
        int result = file_writer_put(&writer, bytes, size, &error);
        cr_expect_eq(result, when == 0 ? -1 : 0);
        if (when == 1) result = file_writer_patch(&writer, 0, "x", 1, &error);
        if (when == 2) result = file_writer_commit(&writer, &error);
        cr_expect_eq(result, -1);
        cr_expect_not(file_exists(in_folder("a.tmp")));
        expect_message("disk full");
        expect_message("choose another place");
        expect_message(in_folder("a"));
    }
    setrlimit(RLIMIT_FSIZE, &before);
    expect_text(in_folder("a"), "old");
}

Test(files, impossible_paths_to_write) {
    struct file_writer writer;
    cr_expect_eq(file_writer_open(&writer, in_folder("missing/a"), &error), -1);
    expect_message("missing/a");
    file_writer_abandon(&writer);
    cr_expect_eq(file_writer_open(&writer, folder, &error), -1);
    expect_message("directory");
    cr_expect_eq(file_writer_open(&writer, in_folder("a/"), &error), -1);
    cr_expect_eq(file_writer_open(&writer, "", &error), -1);
    char *path = malloc(FILE_PATH_MAX + 100);
    memset(path, 'x', FILE_PATH_MAX + 99);
    path[FILE_PATH_MAX + 99] = '\0';
    cr_expect_eq(file_writer_open(&writer, path, &error), -1);
    expect_message("choose a shorter path");
    path[300] = '\0';
    cr_expect_eq(file_writer_open(&writer, path, &error), -1);
    expect_message("choose a shorter path");
    free(path);

    write_text(in_folder("other"), "kept");
    cr_assert_eq(symlink(in_folder("other"), in_folder("a.tmp")), 0);
    cr_expect_eq(file_writer_open(&writer, in_folder("a"), &error), -1);
    expect_message("symbolic link");
    expect_text(in_folder("other"), "kept");
}

/* An untrusted folder may contain links to the user's files. */
Test(files, own_files_must_not_be_links) {
    write_text(in_folder("other"), "kept");
    cr_assert_eq(symlink(in_folder("other"), in_folder("symbolic")), 0);
    cr_assert_eq(symlink(in_folder("none"), in_folder("dangling")), 0);
    cr_assert_eq(link(in_folder("other"), in_folder("hard")), 0);
    cr_assert_eq(mkfifo(in_folder("pipe"), 0600), 0);
    cr_expect_eq(file_open_own(in_folder("symbolic"), &error), -1);
    expect_message("a symbolic link");
    cr_expect_eq(file_open_own(in_folder("dangling"), &error), -1);
    cr_expect_not(file_exists(in_folder("none")));
    cr_expect_eq(file_open_own(in_folder("hard"), &error), -1);
    expect_message("several hard links");
    cr_expect_eq(file_open_own(in_folder("pipe"), &error), -1);
    expect_message("not a regular file");
    cr_assert_eq(link(in_folder("other"), in_folder("a.tmp")), 0);
    struct file_writer writer;
    cr_expect_eq(file_writer_open(&writer, in_folder("a"), &error), -1);
    expect_text(in_folder("other"), "kept");
}

Test(files, a_named_pipe_does_not_block) {
    char *bytes;
    size_t size;
    cr_assert_eq(mkfifo(in_folder("pipe"), 0600), 0);
    alarm(20);
    cr_expect_eq(file_read_all(&bytes, &size, in_folder("pipe"), 100, &error), -1);
    expect_message("not a regular file");
}

Test(files, target_that_became_a_directory) {
    struct file_writer writer;
    cr_assert_eq(file_writer_open(&writer, in_folder("a"), &error), 0);
    cr_assert_eq(file_writer_put(&writer, "x", 1, &error), 0);
    cr_assert_eq(directory_create(in_folder("a"), &error), 0);
    cr_expect_eq(file_writer_commit(&writer, &error), -1);
    expect_message("directory");
    cr_expect_not(file_exists(in_folder("a.tmp")));
}

Test(files, reads_up_to_the_limit) {
    char *bytes;
    size_t size;
    write_text(in_folder("a"), "12345");
    cr_expect_eq(file_read_all(&bytes, &size, in_folder("a"), 5, &error), 0, "%s", error.text);
    cr_expect_eq(size, 5);
    cr_expect_eq(bytes[5], '\0');
    free(bytes);
    cr_expect_eq(file_read_all(&bytes, &size, in_folder("a"), 4, &error), -1);
    cr_expect_null(bytes);
    expect_message("4 bytes");
    write_text(in_folder("empty"), "");
    cr_expect_eq(file_read_all(&bytes, &size, in_folder("empty"), 0, &error), 0, "%s", error.text);
    cr_expect_eq(size, 0);
    cr_expect_eq(bytes[0], '\0');
    free(bytes);
}

Test(files, reads_files_that_report_no_size) {
    char *bytes;
    size_t size;
    cr_expect_eq(file_read_all(&bytes, &size, "/proc/self/status", 1 << 20, &error), 0, "%s",
                 error.text);
    cr_expect_gt(size, 100);
    cr_expect_not_null(strstr(bytes, "VmRSS"));
    free(bytes);
    cr_expect_eq(file_read_all(&bytes, &size, "/proc/self/status", 100, &error), -1);
    expect_message("longer than 100 bytes");
    cr_expect_null(bytes);
}

Test(files, unreadable_sources) {
    char *bytes;
    size_t size;
    cr_expect_eq(file_read_all(&bytes, &size, in_folder("none"), 10, &error), -1);
    expect_message("No such file");
    expect_message("none");
    cr_expect_null(bytes);
    cr_expect_eq(file_read_all(&bytes, &size, folder, 10, &error), -1);
    expect_message("it is a directory");
}

Test(files, directories_with_parents) {
    cr_expect_eq(directory_create(in_folder("a//b/c/"), &error), 0, "%s", error.text);
    cr_expect_eq(directory_create(in_folder("a/b/c"), &error), 0, "%s", error.text);
    cr_expect(file_exists(in_folder("a/b/c")));
    cr_expect_eq(directory_sync(in_folder("a/b"), &error), 0, "%s", error.text);
    cr_expect_eq(directory_sync(in_folder("none"), &error), -1);
    cr_expect_eq(directory_create("", &error), -1);
    write_text(in_folder("file"), "x");
    cr_expect_eq(directory_create(in_folder("file/b"), &error), -1);
    expect_message("a file stands there");
    cr_expect_eq(directory_create(in_folder("file"), &error), -1);
    cr_assert_eq(chdir(folder), 0);
    cr_expect_eq(directory_create("relative/deep", &error), 0, "%s", error.text);
    cr_expect(file_exists(in_folder("relative/deep")));
    write_text("bare", "name without a directory");
    expect_text(in_folder("bare"), "name without a directory");
}

Test(files, removal_deletes_everything_inside_but_no_link_target) {
    write_text(in_folder("outside"), "kept");
    cr_assert_eq(directory_create(in_folder("kept"), &error), 0);
    write_text(in_folder("kept/file"), "kept");
    cr_assert_eq(directory_create(in_folder("a/b/c"), &error), 0);
    for (int i = 0; i < 300; i++) {
        char name[32];
        snprintf(name, sizeof(name), "a/b/%d", i);
        const int fd = open(in_folder("%s", name), O_CREAT | O_WRONLY, 0644);
        cr_assert_geq(fd, 0);
        close(fd);
    }
    cr_assert_eq(symlink("../outside", in_folder("a/link")), 0);
    cr_assert_eq(symlink("../../kept", in_folder("a/b/directory_link")), 0);
    cr_assert_eq(symlink("kept", in_folder("link")), 0);
    cr_expect_eq(directory_remove(in_folder("a/"), &error), 0, "%s", error.text);
    cr_expect_not(file_exists(in_folder("a")));
    expect_text(in_folder("outside"), "kept");
    expect_text(in_folder("kept/file"), "kept");

    cr_expect_eq(directory_remove(in_folder("link"), &error), -1);
    cr_expect_eq(directory_remove(in_folder("link/"), &error), -1);
    cr_expect_eq(directory_remove(in_folder("outside"), &error), -1);
    expect_text(in_folder("kept/file"), "kept");
    expect_text(in_folder("outside"), "kept");
    cr_expect_eq(directory_remove(in_folder("none"), &error), 0, "%s", error.text);
}
