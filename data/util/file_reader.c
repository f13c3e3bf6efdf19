#include "data/util/file_reader.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PATH_SHOWN = 600 };

/* Raises the limit of open files from the default, often 1024, to the maximum. */
static bool allow_more_files(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= limit.rlim_max) return false;
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

int file_open_status(struct stat *status, const char *path, int flags) {
    int fd;
    do fd = open(path, flags | O_CLOEXEC | O_NONBLOCK, 0644);
    while (fd < 0 && (errno == EINTR || (errno == EMFILE && allow_more_files())));
    if (fd < 0 || fstat(fd, status) == 0) return fd;
    const int number = errno;
    close(fd);
    errno = number;
    return -1;
}

int file_reader_open(struct file_reader *reader, const char *path, struct error *error) {
    struct stat status;
    *reader = (struct file_reader){.fd = file_open_status(&status, path, O_RDONLY)};
    if (reader->fd < 0)
        return fail(error, "cannot open %.*s: %s\n%s", PATH_SHOWN, path, strerror(errno),
                    errno == EMFILE || errno == ENFILE
                        ? "too many files are open: raise the limit (ulimit -n)"
                        : "check the path and its permissions");
    int failed = 0;
    if (!S_ISREG(status.st_mode)) {
        fail(error, "cannot read %.*s: it is %s", PATH_SHOWN, path,
             S_ISDIR(status.st_mode) ? "a directory" : "not a regular file");
        failed = RESULT_NONE;
    } else if (!(reader->path = strdup(path))) {
        failed = fail_memory(error, "%.*s", PATH_SHOWN, path);
    }
    reader->bytes = (uint64_t)status.st_size;
    if (failed) close(reader->fd);
    return failed;
}

static int fail_cut_short(const struct file_reader *reader, struct error *error) {
    struct stat status;
    long long bytes = fstat(reader->fd, &status) ? 0 : (long long)status.st_size;
    return fail(error,
                "%.*s: it had %llu bytes when it was opened, and has %lld now\nit was cut short "
                "while in use: write it again, or copy it again",
                PATH_SHOWN, reader->path, (unsigned long long)reader->bytes, bytes);
}

int file_reader_get(const struct file_reader *reader, void *to, uint64_t at, size_t size,
                    struct error *error) {
    assert(at <= reader->bytes && size <= reader->bytes - at);
    for (char *next = to; size > 0;) {
        ssize_t got = pread(reader->fd, next, size, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return fail(error, "cannot read %.*s: %s\ncheck the disk that it is on", PATH_SHOWN,
                        reader->path, strerror(errno));
        if (got == 0) return fail_cut_short(reader, error);
        next += got, at += (uint64_t)got, size -= (size_t)got;
    }
    return 0;
}

void file_reader_close(struct file_reader *reader) {
    if (reader->path) close(reader->fd);
    free(reader->path);
    *reader = (struct file_reader){0};
}
