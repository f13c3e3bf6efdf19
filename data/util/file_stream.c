#include "data/util/file_stream.h"

#include <errno.h>
#include <stdint.h>
#include <unistd.h>

#include "data/util/write_behind.h"

static int descriptor_of(const void *cookie) {
    return (int)(intptr_t)cookie;
}

static ssize_t read_some(void *cookie, char *bytes, size_t size) {
    ssize_t got;
    do got = read(descriptor_of(cookie), bytes, size);
    while (got < 0 && errno == EINTR);
    return got;
}

static ssize_t write_all(void *cookie, const char *bytes, size_t size) {
    const int number = write_fully(descriptor_of(cookie), bytes, size, -1);
    if (number == 0) return (ssize_t)size;
    errno = number;
    return 0; /* a cookie's write returns no -1 */
}

static int seek(void *cookie, off64_t *offset, int whence) {
    const off_t at = lseek(descriptor_of(cookie), *offset, whence);
    if (at < 0) return -1;
    *offset = at;
    return 0;
}

static int close_descriptor(void *cookie) {
    return close(descriptor_of(cookie));
}

FILE *file_stream_open(int fd) {
    return fopencookie((void *)(intptr_t)fd, "r+",
                       (cookie_io_functions_t){read_some, write_all, seek, close_descriptor});
}
