/* Locks that keep two processes from writing the same file or directory at once. */
#pragma once

/* Takes the lock (flock) of an open file or directory, which closing its descriptor releases.
 * Returns 0, or an errno value: EWOULDBLOCK if another process holds the lock, ESTALE if path no
 * longer names the open file, because another process renamed or removed it after it was opened,
 * and ENOLCK if the file system has no locks. */
int file_lock(int fd, const char *path);
