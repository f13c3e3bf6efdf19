#include "model/cli/tensorboard.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "data/util/file_stream.h"
#include "data/util/files.h"

uint32_t crc32c(const void *bytes, size_t size) {
    const uint8_t *p = bytes;
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < size; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0x82f63b78u & (0 - (crc & 1)));
    }
    return ~crc;
}

/* Returns the CRC rotated and offset, as TFRecord stores it: a plain CRC of data that contains CRCs
 * would be weak. */
static uint32_t masked_crc(const void *bytes, size_t size) {
    uint32_t crc = crc32c(bytes, size);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* ---- Protocol Buffers encoding */

enum { MESSAGE_MAX = 1024, SCALARS_MAX = 16, TAG_MAX = 40 };
enum wire { VARINT = 0, FIXED_64 = 1, BYTES = 2, FIXED_32 = 5 };

struct message {
    uint8_t bytes[MESSAGE_MAX];
    size_t size;
};

static void put(struct message *m, const void *bytes, size_t size) {
    assert(m->size + size <= sizeof m->bytes);
    memcpy(m->bytes + m->size, bytes, size);
    m->size += size;
}

static void put_varint(struct message *m, uint64_t value) {
    for (; value >= 128; value >>= 7) put(m, &(uint8_t){(uint8_t)(value | 128)}, 1);
    put(m, &(uint8_t){(uint8_t)value}, 1);
}

static void put_key(struct message *m, int field, enum wire wire) {
    put_varint(m, (uint64_t)field << 3 | wire);
}

static void put_bytes(struct message *m, int field, const void *bytes, size_t size) {
    put_key(m, field, BYTES);
    put_varint(m, size);
    put(m, bytes, size);
}

/* ---- events */

enum { EVENT_TIME = 1, EVENT_STEP, EVENT_VERSION, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_NUMBER = 2, SESSION_STATUS = 1, SESSION_START = 1 };

static struct message event(int64_t step) {
    struct message m = {.size = 0};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    put_key(&m, EVENT_TIME, FIXED_64);
    put(&m, &seconds, sizeof seconds); /* supported machines are little-endian */
    put_key(&m, EVENT_STEP, VARINT);
    put_varint(&m, (uint64_t)step);
    return m;
}

static int write_event(struct tensorboard *board, const struct message *m, struct error *error) {
    uint64_t size = m->size;
    uint32_t of_size = masked_crc(&size, sizeof size), of_bytes = masked_crc(m->bytes, m->size);
    fwrite(&size, sizeof size, 1, board->file);
    fwrite(&of_size, sizeof of_size, 1, board->file);
    fwrite(m->bytes, m->size, 1, board->file);
    fwrite(&of_bytes, sizeof of_bytes, 1, board->file);
    if (fflush(board->file) == 0 && !ferror(board->file)) return 0;
    return fail(error,
                "events.out.tfevents: %s\nfree space, or choose another run_dir, or switch it off "
                "with --set log.tensorboard=false",
                strerror(errno));
}

/* Creates a file that no part of this process has written, even in the same second. */
static FILE *create_file(char path[FILE_PATH_MAX], const char *run_directory, struct error *error) {
    enum { PARTS_MAX = 100 };
    char name[200], host[64] = "host";
    int descriptor = -1;
    long long now = (long long)time(NULL);
    gethostname(host, sizeof host - 1);
    for (int part = 0; descriptor < 0 && part < PARTS_MAX; part++) {
        snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%d.%d", now, host,
                 (int)getpid(), part);
        if (file_path_join(path, run_directory, name, error)) return NULL;
        descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (descriptor < 0 && errno != EEXIST) break;
    }
    FILE *file = descriptor < 0 ? NULL : file_stream_open(descriptor);
    if (file) return file;
    fail(error, "%s: %s", path, strerror(errno));
    if (descriptor >= 0) close(descriptor);
    return NULL;
}

int tensorboard_open(struct tensorboard *board, const char *run_directory, int64_t step,
                     struct error *error) {
    static const char version[] = "brain.Event:2";
    static const uint8_t session[] = {SESSION_STATUS << 3 | VARINT, SESSION_START};
    char path[FILE_PATH_MAX];
    board->file = create_file(path, run_directory, error);
    if (!board->file) return -1;
    struct message first = event(0), start = event(step + 1);
    put_bytes(&first, EVENT_VERSION, version, sizeof version - 1);
    put_bytes(&start, EVENT_SESSION, session, sizeof session);
    if (write_event(board, &first, error)) return -1;
    return write_event(board, &start, error);
}

int tensorboard_write(struct tensorboard *board, int64_t step, const struct scalar *scalars,
                      int count, struct error *error) {
    struct message m = event(step), summary = {.size = 0};
    if (!board->file) return 0;
    assert(count <= SCALARS_MAX);
    for (int i = 0; i < count; i++) {
        struct message value = {.size = 0};
        float number = (float)scalars[i].value;
        assert(strlen(scalars[i].tag) < TAG_MAX);
        put_bytes(&value, VALUE_TAG, scalars[i].tag, strlen(scalars[i].tag));
        put_key(&value, VALUE_NUMBER, FIXED_32);
        put(&value, &number, sizeof number);
        put_bytes(&summary, SUMMARY_VALUE, value.bytes, value.size);
    }
    put_bytes(&m, EVENT_SUMMARY, summary.bytes, summary.size);
    return write_event(board, &m, error);
}

void tensorboard_close(struct tensorboard *board) {
    if (board->file) fclose(board->file); /* every event was flushed */
    board->file = NULL;
}
