#include "data/util/file_lock.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/file.h>
#include <sys/stat.h>

int file_lock(int fd, const char *path) {
    struct stat open_file, named;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EINTR) continue;
        /* NFS locks no directories, and says EBADF. */
        bool has_none = errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL || errno == EBADF;
        return has_none ? ENOLCK : errno;
    }
    if (fstat(fd, &open_file) != 0) return errno;
    if (stat(path, &named) != 0) return errno == ENOENT ? ESTALE : errno;
    return named.st_ino == open_file.st_ino && named.st_dev == open_file.st_dev ? 0 : ESTALE;
}
