/* Files and directories: whole-file reads, and writes that appear complete or not at all.
 *
 * A writer fills PATH.tmp and renames it to PATH only when every byte is on the disk: write, fsync,
 * rename, fsync of the parent directory. So PATH is always the old file or the new one, even after
 * a crash, and never a part. Messages name the path, the system's reason and a remedy.
 *
 * A program must ignore SIGXFSZ to get a file size limit (ulimit -f) as an error instead of a fatal
 * signal. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/util/sha256.h"
#include "data/util/write_behind.h"

enum { FILE_PATH_MAX = 4096 };

struct file_writer {
    int fd;
    bool patched;
    char path[FILE_PATH_MAX];
    char temporary[FILE_PATH_MAX];
    bool open;
    struct write_behind behind; /* bytes not passed to the system yet */
    uint64_t size;              /* bytes written so far; stays valid after the commit */
    struct sha256 hash;
    char hex[SHA256_HEX_MAX]; /* SHA-256 of the file, valid after the commit */
};

/* Opens a file of this program for reading and writing, or creates it with mode 0644 (minus the
 * umask). Returns its descriptor. Symbolic links, files with several hard links and other kinds of
 * files are refused, since in an untrusted folder they could lead to other files of the user. */
int file_open_own(const char *path, struct error *error);

/* Takes the lock (flock) of an open file or directory, which closing its descriptor releases.
 * Returns 0, or an errno value: EWOULDBLOCK if another process holds the lock, ESTALE if path no
 * longer names the open file, because another process renamed or removed it after it was opened,
 * and ENOLCK if the file system has no locks. */
int file_lock(int fd, const char *path);

/* Opens a file like file_open_own and locks it, where the file system has locks; the
 * caller closes *fd. Returns RESULT_NONE, without a message and with *fd -1, if another process
 * holds the lock. */
int file_open_locked(int *fd, const char *path, struct error *error);

/* Opens a regular file for reading. Returns its descriptor. Other kinds are refused: a named pipe
 * in an untrusted folder would block. */
int file_open_regular(const char *path, struct error *error);

/* Fails if path is a symbolic link where a directory of this program belongs. */
int directory_refuse_link(const char *path, struct error *error);

/* Opens PATH.tmp with file_open_own and empties it. The directory must exist, and PATH must not be
 * a directory. Fails if another process is writing the same file. On failure there is nothing to
 * abandon, though abandoning is harmless. */
int file_writer_open(struct file_writer *writer, const char *path, struct error *error);

/* Appends bytes. If this, patch or commit fails, the writer is already abandoned. */
int file_writer_put(struct file_writer *writer, const void *bytes, size_t size,
                    struct error *error);

/* Extends the file to `size` bytes, those added being 0, for patches; nothing may be put after. */
int file_writer_extend(struct file_writer *writer, uint64_t size, struct error *error);

/* Overwrites bytes written before; offset + size must not exceed writer->size. The running hash
 * then becomes invalid, so the commit of a patched file reads the file again. */
int file_writer_patch(struct file_writer *writer, uint64_t offset, const void *bytes, size_t size,
                      struct error *error);

/* Makes the file durable under its name, closes the writer, fills writer->hex. */
int file_writer_commit(struct file_writer *writer, struct error *error);

/* Removes PATH.tmp and closes the writer; PATH is unchanged. Does nothing if the writer is not
 * open: after a commit, after a failure, or on a zero-initialized struct. */
void file_writer_abandon(struct file_writer *writer);

/* Writes a whole file: open, put, commit. hex (optional) receives the SHA-256 of the bytes. */
int file_write_whole(const char *path, const void *bytes, size_t size, char hex[SHA256_HEX_MAX],
                     struct error *error);

/* Reads a whole regular file of at most `limit` bytes. *bytes is allocated by malloc and belongs to
 * the caller. A NUL follows its last byte and is not included in *size. On failure *bytes is NULL.
 * Fails for other kinds of files, for more than `limit` bytes, and if out of memory. */
int file_read_all(char **bytes, size_t *size, const char *path, size_t limit, struct error *error);

/* Writes DIRECTORY/NAME to path. Fails if it does not fit. */
int file_path_join(char path[FILE_PATH_MAX], const char *directory, const char *name,
                   struct error *error);

/* True if a name from an untrusted file is that of a file in a directory: not empty, "." or "..",
 * and without '/'. */
bool file_name_is_plain(const char *name);

/* Shortens a long path from the front, for messages. Returns shown. */
enum { FILE_SHOWN_MAX = 320 };
const char *file_path_shown(char shown[FILE_SHOWN_MAX], const char *path);

/* True if path, or DIRECTORY/NAME, exists, as a file of any kind. Symbolic links are followed. */
bool file_exists(const char *path);
bool file_exists_in(const char *directory, const char *name);

/* Fails if the path of a model's or tokenizer's folder is that of a file. */
int directory_refuse_file(const char *path, struct error *error);

/* Creates the directory and all missing parents (mode 0755 minus the umask), durably. Succeeds if
 * it already exists. */
int directory_create(const char *path, struct error *error);

/* Writes this program's directory in the user's cache to path: $XDG_CACHE_HOME/mantissa, or
 * ~/.cache/mantissa. Returns false if there is no cache. The directory may not exist yet. */
bool directory_of_cache(char path[FILE_PATH_MAX]);

/* Makes creations, renames and removals in the directory, or in the one that holds path, survive a
 * power loss. */
int directory_sync(const char *path, struct error *error);
int directory_sync_above(const char *path, struct error *error);

/* Creates the directory, with its parents, and locks it: *lock becomes a descriptor that the caller
 * closes, or -1. Returns RESULT_NONE, without a message, if another process holds the lock. On a
 * file system without locks *has_lock becomes false. */
int directory_lock(int *lock, bool *has_lock, const char *path, struct error *error);

/* Removes everything in a directory, but not the directory. */
int directory_clear(const char *path, struct error *error);

/* Removes a directory with everything in it. Symbolic links inside are removed, never followed. A
 * path that is itself a link or a file is refused. Succeeds if the path does not exist. Removal
 * takes many steps, so rename the directory first if a partial state must not be visible. */
int directory_remove(const char *path, struct error *error);
