#include "data/util/files.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/util/file_reader.h"
#include "data/util/utf8.h"

/* Messages show at most this many bytes of a path, so that the remedy after it always fits. */
enum { PATH_SHOWN = 600 };

/* Attempts to lock a file or directory that other processes keep renaming. */
enum { LOCK_TRIES = 100 };

static const char *remedy_for(int number) {
    switch (number) {
    case ENOSPC:
    case EDQUOT: return "free space or choose another place";
    case EFBIG: return "raise the file size limit (ulimit -f), free space or choose another place";
    case EACCES:
    case EPERM: return "check who owns it and its permissions, or choose another path";
    case EROFS: return "the file system is mounted read-only: choose another path";
    case ENOENT: return "check the path: a part of it does not exist";
    case ENOTDIR: return "check the path: a part of it is not a directory";
    case EISDIR: return "the path is a directory: move it away or choose another path";
    case ELOOP: return "the path is a symbolic link: use the path that it points to";
    case ENAMETOOLONG: return "choose a shorter path";
    case EMFILE:
    case ENFILE: return "too many files are open: raise the limit (ulimit -n)";
    case EIO: return "the disk reports errors: look into the kernel log, then choose another disk";
    case EBUSY:
    case ENOTEMPTY: return "another program is using it: stop that one and try again";
    default: return "check the path and its file system";
    }
}

static int fail_system(struct error *error, int number, const char *doing, const char *path) {
    bool full = number == ENOSPC || number == EDQUOT || number == EFBIG;
    return fail(error, "%scannot %s %.*s: %s\n%s", full ? "disk full: " : "", doing, PATH_SHOWN,
                path, strerror(number), remedy_for(number));
}

static int sync_fully(int fd) {
    while (fsync(fd) != 0) {
        if (errno != EINTR) return errno;
    }
    return 0;
}

static void writer_close(struct file_writer *writer) {
    if (writer->open) write_behind_close(&writer->behind);
    if (writer->fd >= 0) close(writer->fd);
    writer->fd = -1;
    writer->open = false;
}

static int writer_fail(struct file_writer *writer, int number, const char *doing,
                       struct error *error) {
    file_writer_abandon(writer);
    return fail_system(error, number, doing, writer->path);
}

static int fail_link(struct error *error, const char *path, const char *kind) {
    return fail(error,
                "cannot write %.*s: it is %s, so files elsewhere could be changed\nremove it, or "
                "put a copy in its place",
                PATH_SHOWN, path, kind);
}

int file_open_own(const char *path, struct error *error) {
    struct stat status;
    int fd = file_open_status(&status, path, O_RDWR | O_CREAT | O_NOFOLLOW);
    if (fd < 0 && errno == ELOOP) return fail_link(error, path, "a symbolic link");
    if (fd < 0) return fail_system(error, errno, "create", path);
    if (S_ISREG(status.st_mode) && status.st_nlink <= 1) return fd;
    close(fd);
    return fail_link(error, path,
                     S_ISREG(status.st_mode) ? "a file with several hard links"
                                             : "not a regular file");
}

int directory_refuse_link(const char *path, struct error *error) {
    struct stat status;
    if (lstat(path, &status) != 0 || !S_ISLNK(status.st_mode)) return 0;
    return fail_link(error, path, "a symbolic link");
}

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

/* A file that another process renames or removes in between is opened again. */
int file_open_locked(int *fd, const char *path, struct error *error) {
    int number = ESTALE;
    *fd = -1;
    for (int tries = 0; number == ESTALE && tries < LOCK_TRIES; tries++) {
        if (*fd >= 0) close(*fd);
        *fd = file_open_own(path, error);
        if (*fd < 0) return -1;
        number = file_lock(*fd, path);
    }
    if (number == 0 || number == ENOLCK) return 0;
    close(*fd);
    *fd = -1;
    return number == EWOULDBLOCK ? RESULT_NONE : fail_system(error, number, "lock", path);
}

static int open_temporary(struct file_writer *writer, struct error *error) {
    const int status = file_open_locked(&writer->fd, writer->temporary, error);
    if (status == RESULT_NONE)
        return fail(error,
                    "cannot write %.*s: another process is writing it\nwait for that one, or "
                    "choose another path",
                    PATH_SHOWN, writer->path);
    if (status || ftruncate(writer->fd, 0) == 0) return status;
    const int number = errno;
    writer_close(writer);
    return fail_system(error, number, "write", writer->temporary);
}

int file_writer_open(struct file_writer *writer, const char *path, struct error *error) {
    memset(writer, 0, sizeof(*writer));
    writer->fd = -1;
    const size_t length = strlen(path);
    if (length == 0) return fail(error, "cannot write a file without a name\ngive it a path");
    if (length + sizeof(".tmp") > FILE_PATH_MAX)
        return fail_system(error, ENAMETOOLONG, "write", path);
    struct stat status;
    if (path[length - 1] == '/' || (stat(path, &status) == 0 && S_ISDIR(status.st_mode)))
        return fail_system(error, EISDIR, "write", path);
    memcpy(writer->path, path, length + 1);
    snprintf(writer->temporary, FILE_PATH_MAX, "%s.tmp", path);
    if (open_temporary(writer, error)) return -1;
    if (write_behind_open(&writer->behind, writer->fd)) {
        writer_close(writer);
        unlink(writer->temporary);
        return fail_memory(error, "the buffer that writes %.*s", PATH_SHOWN, path);
    }
    writer->open = true;
    sha256_begin(&writer->hash);
    return 0;
}

int file_writer_put(struct file_writer *writer, const void *bytes, size_t size,
                    struct error *error) {
    assert(writer->open && "the writer is not open");
    if (size == 0) return 0;
    sha256_add(&writer->hash, bytes, size);
    writer->size += size;
    const int number = write_behind_put(&writer->behind, bytes, size);
    return number == 0 ? 0 : writer_fail(writer, number, "write", error);
}

int file_writer_extend(struct file_writer *writer, uint64_t size, struct error *error) {
    assert(writer->open && size >= writer->size);
    writer->patched = true;
    writer->size = size;
    int number = write_behind_flush(&writer->behind);
    if (number == 0 && ftruncate(writer->fd, (off_t)size) != 0) number = errno;
    return number == 0 ? 0 : writer_fail(writer, number, "write", error);
}

int file_writer_patch(struct file_writer *writer, uint64_t offset, const void *bytes, size_t size,
                      struct error *error) {
    assert(writer->open && "the writer is not open");
    assert(offset <= writer->size && size <= writer->size - offset);
    writer->patched = true;
    int number = write_behind_flush(&writer->behind);
    if (number == 0) number = write_fully(writer->fd, bytes, size, (int64_t)offset);
    return number == 0 ? 0 : writer_fail(writer, number, "write", error);
}

static int writer_digest(struct file_writer *writer, struct error *error) {
    if (writer->patched) return sha256_file(writer->hex, NULL, writer->temporary, error);
    sha256_end(writer->hex, &writer->hash);
    return 0;
}

int file_writer_commit(struct file_writer *writer, struct error *error) {
    assert(writer->open && "the writer is not open");
    int number = write_behind_flush(&writer->behind);
    if (number == 0) number = sync_fully(writer->fd);
    if (number != 0) return writer_fail(writer, number, "write", error);
    if (writer_digest(writer, error) != 0) {
        file_writer_abandon(writer);
        return -1;
    }
    /* The lock lasts until the last descriptor is closed: until after the rename. */
    const int lock = fcntl(writer->fd, F_DUPFD_CLOEXEC, 0);
    /* Network file systems may report a full disk only here. */
    if (close(writer->fd) != 0 && errno != EINTR) number = errno;
    writer->fd = -1;
    if (number == 0 && rename(writer->temporary, writer->path) != 0) number = errno;
    if (lock >= 0) close(lock);
    if (number != 0) return writer_fail(writer, number, "write", error);
    writer_close(writer);
    return directory_sync_above(writer->path, error);
}

void file_writer_abandon(struct file_writer *writer) {
    if (!writer->open) return;
    writer_close(writer);
    unlink(writer->temporary);
}

int file_write_whole(const char *path, const void *bytes, size_t size, char hex[SHA256_HEX_MAX],
                     struct error *error) {
    struct file_writer writer;
    if (file_writer_open(&writer, path, error) || file_writer_put(&writer, bytes, size, error) ||
        file_writer_commit(&writer, error))
        return -1;
    if (hex) memcpy(hex, writer.hex, SHA256_HEX_MAX);
    return 0;
}

static int open_regular(struct stat *status, const char *path, struct error *error) {
    int fd = file_open_status(status, path, O_RDONLY);
    if (fd < 0) return fail_system(error, errno, "open", path);
    if (S_ISREG(status->st_mode)) return fd;
    close(fd);
    if (S_ISDIR(status->st_mode))
        return fail(error, "cannot read %.*s: it is a directory\nname a file in it", PATH_SHOWN,
                    path);
    return fail(error, "cannot read %.*s: it is not a regular file\nput a copy in its place",
                PATH_SHOWN, path);
}

int file_open_regular(const char *path, struct error *error) {
    struct stat status;
    return open_regular(&status, path, error);
}

/* Reads all of fd into *bytes, which grows as needed: kernel files (/proc, /sys) report no size.
 * Returns 0 or an errno value. */
static int read_growing(int fd, char **bytes, size_t *size, size_t capacity, size_t limit) {
    *size = 0;
    for (;;) {
        /* One byte beyond the limit distinguishes a file of exactly `limit` bytes from a longer
         * one. */
        char *grown = realloc(*bytes, capacity + 1);
        if (!grown) return ENOMEM;
        *bytes = grown;
        while (*size < capacity) {
            const ssize_t got = read(fd, *bytes + *size, capacity - *size);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) return errno;
            if (got == 0) return 0;
            *size += (size_t)got;
            if (*size > limit) return EFBIG;
        }
        capacity *= 2;
    }
}

int file_read_all(char **bytes, size_t *size, const char *path, size_t limit, struct error *error) {
    *bytes = NULL;
    *size = 0;
    struct stat status;
    const int fd = open_regular(&status, path, error);
    if (fd < 0) return -1;
    int number = (uint64_t)status.st_size > limit ? EFBIG : 0;
    if (number == 0) {
        const size_t expected = (size_t)status.st_size;
        number = read_growing(fd, bytes, size, expected < 4095 ? 4096 : expected + 1, limit);
    }
    close(fd);
    if (number == 0) {
        (*bytes)[*size] = '\0';
        return 0;
    }
    free(*bytes);
    *bytes = NULL;
    *size = 0;
    if (number == EFBIG)
        return fail(error, "cannot read %.*s: it is longer than %zu bytes\nis it the right file?",
                    PATH_SHOWN, path, limit);
    if (number == ENOMEM) return fail_memory(error, "%.*s", PATH_SHOWN, path);
    return fail_system(error, number, "read", path);
}

int file_path_join(char path[FILE_PATH_MAX], const char *directory, const char *name,
                   struct error *error) {
    int length = snprintf(path, FILE_PATH_MAX, "%s/%s", directory, name);
    if (length >= 0 && length < FILE_PATH_MAX) return 0;
    return fail(error, "the path %.400s... is too long\nchoose a shorter one", directory);
}

bool file_name_is_plain(const char *name) {
    return name[0] && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

const char *file_path_shown(char shown[FILE_SHOWN_MAX], const char *path) {
    size_t length = strlen(path), limit = 200;
    if (length <= limit) snprintf(shown, FILE_SHOWN_MAX, "%s", path);
    else snprintf(shown, FILE_SHOWN_MAX, "...%s", path + length - limit);
    return shown;
}

bool file_exists(const char *path) {
    struct stat status;
    return stat(path, &status) == 0;
}

bool file_exists_in(const char *directory, const char *name) {
    char path[FILE_PATH_MAX];
    struct error ignored;
    return file_path_join(path, directory, name, &ignored) == 0 && file_exists(path);
}

static int create_one(const char *path, struct error *error) {
    struct stat status;
    if (mkdir(path, 0755) == 0) return directory_sync_above(path, error);
    const int number = errno;
    if (number != EEXIST || stat(path, &status) != 0)
        return fail_system(error, number, "create the directory", path);
    if (S_ISDIR(status.st_mode)) return 0;
    return fail(error,
                "cannot create the directory %.*s: a file stands there\nmove it away or "
                "choose another path",
                PATH_SHOWN, path);
}

int directory_refuse_file(const char *path, struct error *error) {
    struct stat status;
    if (stat(path, &status) != 0 || !S_ISREG(status.st_mode)) return 0;
    if (text_ends(path, ".gguf"))
        return fail(error,
                    "%.400s is a GGUF file, which cannot be read\nname the folder of the model, or "
                    "let transformers write one: from_pretrained(FOLDER, gguf_file=NAME) and "
                    "save_pretrained(NEW)",
                    path);
    return fail(error,
                "%.400s is a file, but a model is a folder with config.json, tokenizer.json and "
                "model.safetensors\nname the folder",
                path);
}

int directory_create(const char *path, struct error *error) {
    char part[FILE_PATH_MAX];
    const size_t length = strlen(path);
    if (length == 0) return fail(error, "cannot create a directory without a name\ngive it a path");
    if (length >= sizeof(part))
        return fail_system(error, ENAMETOOLONG, "create the directory", path);
    for (size_t i = 1; i <= length; i++) {
        if ((path[i] && path[i] != '/') || path[i - 1] == '/') continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (create_one(part, error) != 0) return -1;
    }
    return 0;
}

int directory_lock(int *lock, bool *has_lock, const char *path, struct error *error) {
    int number = ESTALE;
    *lock = -1;
    for (int tries = 0; number == ESTALE && tries < LOCK_TRIES; tries++) {
        if (*lock >= 0) close(*lock);
        *lock = -1;
        if (directory_create(path, error)) return -1;
        *lock = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        number = *lock < 0 ? errno : file_lock(*lock, path);
        if (*lock < 0 && number == ENOENT) number = ESTALE;
    }
    *has_lock = number == 0;
    if (number == 0 || number == ENOLCK) return 0;
    if (*lock >= 0) close(*lock);
    *lock = -1;
    return number == EWOULDBLOCK ? RESULT_NONE
                                 : fail_system(error, number, "lock the directory", path);
}

/* The XDG base directory specification ignores relative paths. */
bool directory_of_cache(char path[FILE_PATH_MAX]) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    struct error ignored;
    if (cache && cache[0] == '/') return file_path_join(path, cache, "mantissa", &ignored) == 0;
    return home && home[0] == '/' && file_exists(home) &&
           file_path_join(path, home, ".cache/mantissa", &ignored) == 0;
}

int directory_sync_above(const char *path, struct error *error) {
    char copy[FILE_PATH_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    return directory_sync(dirname(copy), error);
}

int directory_sync(const char *path, struct error *error) {
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return fail_system(error, errno, "open the directory", path);
    const int number = sync_fully(fd);
    close(fd);
    /* Some file systems cannot sync a directory and return EINVAL; that is not an error. */
    if (number == 0 || number == EINVAL) return 0;
    return fail_system(error, number, "write the directory", path);
}

/* Removes everything in the directory fd, and closes fd. Returns 0 or an errno value. */
static int remove_inside(int fd) {
    DIR *directory = fdopendir(fd);
    if (!directory) {
        const int number = errno;
        close(fd);
        return number;
    }
    int number = 0;
    while (number == 0) {
        errno = 0;
        const struct dirent *entry = readdir(directory);
        if (!entry) {
            number = errno;
            break;
        }
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
        if (unlinkat(fd, name, 0) == 0 || errno == ENOENT) continue;
        if (errno != EISDIR) {
            number = errno;
            break;
        }
        const int inner = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        number = inner < 0 ? errno : remove_inside(inner);
        if (number == 0 && unlinkat(fd, name, AT_REMOVEDIR) != 0 && errno != ENOENT) number = errno;
    }
    closedir(directory);
    return number;
}

/* Removes a directory with everything in it, or only what is in it. */
static int remove_directory(const char *path, bool with_itself, struct error *error) {
    char bare[FILE_PATH_MAX];
    size_t length = strlen(path);
    if (length >= sizeof(bare))
        return fail_system(error, ENAMETOOLONG, "remove the directory", path);
    memcpy(bare, path, length + 1);
    /* A trailing slash ("link/") would follow the link. */
    while (length > 1 && bare[length - 1] == '/') bare[--length] = '\0';
    const int fd = open(bare, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return 0;
    int number = fd < 0 ? errno : remove_inside(fd);
    if (number == 0 && with_itself && rmdir(bare) != 0 && errno != ENOENT) number = errno;
    return number == 0 ? 0 : fail_system(error, number, "remove the directory", path);
}

int directory_remove(const char *path, struct error *error) {
    return remove_directory(path, true, error);
}

int directory_clear(const char *path, struct error *error) {
    return remove_directory(path, false, error);
}
