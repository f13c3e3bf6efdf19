/* Files and directories: whole-file reads, and writes that appear complete or not at all.
 *
 * A writer fills PATH.tmp and moves it over PATH only once every byte is on the disk: write, fsync,
 * rename, fsync of the parent directory. Whoever opens PATH, after a crash too, finds the old file
 * or the new one, never a part. Messages name the path, the system's reason and a remedy.
 *
 * A process that wants "file too large" (ulimit -f) as a message, not as a deadly signal, ignores
 * SIGXFSZ. */
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
    struct write_behind behind; /* bytes not handed to the system yet */
    uint64_t size;              /* bytes put so far; stays valid after the commit */
    struct sha256 hash;
    char hex[SHA256_HEX_MAX]; /* SHA-256 of the file, valid after the commit */
};

/* Opens a file of our own for reading and writing, or creates it with mode 0644 (less the umask).
 * Returns its descriptor. A folder that comes from elsewhere may hold links instead, which would
 * lead to files of the user: symbolic links, files with several hard links and what is no regular
 * file are refused. */
int file_open_own(const char *path, struct error *error);

/* Opens a regular file for reading. Returns its descriptor. Other kinds are refused: a named pipe
 * in a folder that comes from elsewhere would wait for a writer. */
int file_open_regular(const char *path, struct error *error);

/* Fails if a symbolic link stands at path, in whose place a directory of our own belongs. */
int directory_refuse_link(const char *path, struct error *error);

/* Opens PATH.tmp with file_open_own and empties it. The directory must exist, and PATH
 * may not be a directory. On failure there is nothing to abandon, though abandoning is harmless. */
int file_writer_open(struct file_writer *writer, const char *path, struct error *error);

/* Appends. When this, patch or commit fails, the writer is abandoned already. */
int file_writer_put(struct file_writer *writer, const void *bytes, size_t size,
                    struct error *error);

/* Overwrites bytes put before: offset + size may not exceed writer->size. The running hash cannot
 * follow, so the commit of a patched file reads it once more. */
int file_writer_patch(struct file_writer *writer, uint64_t offset, const void *bytes, size_t size,
                      struct error *error);

/* Makes the file durable under its name, closes the writer, fills writer->hex. */
int file_writer_commit(struct file_writer *writer, struct error *error);

/* Removes PATH.tmp and closes the writer; PATH stays as it was. Nothing happens when the writer is
 * not open: after a commit, a failure, or on a struct filled with zeros. */
void file_writer_abandon(struct file_writer *writer);

/* Writes all of a file: open, put, commit. hex (optional) becomes the SHA-256 of the bytes. */
int file_write_whole(const char *path, const void *bytes, size_t size, char hex[SHA256_HEX_MAX],
                     struct error *error);

/* Reads a whole regular file of at most `limit` bytes. *bytes is allocated by malloc and belongs to
 * the caller; a NUL follows its last byte, which *size does not count. On failure *bytes is NULL.
 * Fails for other kinds, for more than `limit` bytes, and when memory is short. */
int file_read_all(char **bytes, size_t *size, const char *path, size_t limit, struct error *error);

/* DIRECTORY/NAME. Fails when that is longer than a path can be. */
int file_path_join(char path[FILE_PATH_MAX], const char *directory, const char *name,
                   struct error *error);

/* The path for use in a message: without its beginning if it is long. Returns shown. */
enum { FILE_SHOWN_MAX = 320 };
const char *file_path_shown(char shown[FILE_SHOWN_MAX], const char *path);

/* True if something of any kind exists at path (behind symbolic links), or at DIRECTORY/NAME. */
bool file_exists(const char *path);
bool file_exists_in(const char *directory, const char *name);

/* Creates the directory and all its missing parents (mode 0755 less the umask), durably. One that
 * exists is a success. */
int directory_create(const char *path, struct error *error);

/* Makes creations, renames and removals inside the directory survive a loss of power. */
int directory_sync(const char *path, struct error *error);

/* Removes a directory with everything in it. Symbolic links inside are removed, never followed; a
 * path that is itself a link or a file is refused. One that does not exist is a success. Removal
 * takes many steps: whoever must never see a part of it renames the directory first. */
int directory_remove(const char *path, struct error *error);
