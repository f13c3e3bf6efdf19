/* Preloaded by scripts/torture.sh: makes the n-th call of a kind fail, FAIL_CALL and FAIL_NTH, with
 * the number FAIL_ERRNO, and then makes the file FAIL_MARK. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static bool fails(const char *name) {
    static atomic_long count;
    const char *call = getenv("FAIL_CALL"), *nth = getenv("FAIL_NTH"),
               *number = getenv("FAIL_ERRNO");
    if (!call || !nth || strcmp(call, name) != 0) return false;
    if (atomic_fetch_add(&count, 1) + 1 != atol(nth)) return false;
    const char *mark = getenv("FAIL_MARK");
    if (mark) open(mark, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    errno = number ? atoi(number) : EIO;
    return true;
}

#define WRAP_TO(failure, result, name, parameters, arguments)   \
    result name parameters {                                    \
        result(*next) parameters;                               \
        *(void **)&next = dlsym(RTLD_NEXT, #name);              \
        return fails(#name) ? (result)failure : next arguments; \
    }
#define WRAP(...) WRAP_TO(-1, __VA_ARGS__)

WRAP(ssize_t, write, (int fd, const void *bytes, size_t size), (fd, bytes, size))
WRAP(ssize_t, pwrite, (int fd, const void *bytes, size_t size, off_t at), (fd, bytes, size, at))
WRAP(ssize_t, read, (int fd, void *bytes, size_t size), (fd, bytes, size))
WRAP(ssize_t, pread, (int fd, void *bytes, size_t size, off_t at), (fd, bytes, size, at))
WRAP(int, fsync, (int fd), (fd))
WRAP(int, rename, (const char *from, const char *to), (from, to))
WRAP(int, unlinkat, (int fd, const char *path, int flags), (fd, path, flags))
WRAP(int, close, (int fd), (fd))
WRAP(int, flock, (int fd, int how), (fd, how))
WRAP(int, ftruncate, (int fd, off_t size), (fd, size))
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode))
WRAP(off_t, lseek, (int fd, off_t to, int from), (fd, to, from))
WRAP_TO(0, struct dirent *, readdir, (DIR * entries), (entries)) /* for getdents, inside libc */
