/* Event files, read back here by the format's own words; that TensorBoard reads them was tried with
 * TensorBoard. */
#include "model/cli/tensorboard.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/util/files.h"
#include "test/scratch.h"

static struct error error;

TestSuite(tensorboard, .init = make_folder, .fini = remove_folder);

/* RFC 3720, B.4. */
Test(tensorboard, crc_of_known_bytes) {
    uint8_t bytes[32] = {0};
    cr_expect_eq(crc32c("123456789", 9), 0xe3069283u);
    cr_expect_eq(crc32c(bytes, 32), 0x8a9136aau);
    memset(bytes, 0xff, 32);
    cr_expect_eq(crc32c(bytes, 32), 0x62a8ab43u);
    for (int i = 0; i < 32; i++) bytes[i] = (uint8_t)i;
    cr_expect_eq(crc32c(bytes, 32), 0x46dd794eu);
    cr_expect_eq(crc32c("", 0), 0);
}

/* Returns the contents of the only event file in the directory. */
static char *event_file(size_t *size) {
    static char path[FILE_PATH_MAX];
    char *bytes = NULL;
    int count = 0;
    DIR *directory = opendir(folder);
    for (struct dirent *entry; (entry = readdir(directory));)
        if (strncmp(entry->d_name, "events.out.tfevents.", 20) == 0) {
            snprintf(path, sizeof path, "%s", in_folder(entry->d_name));
            count++;
        }
    closedir(directory);
    cr_assert_eq(count, 1);
    cr_assert_eq(file_read_all(&bytes, size, path, 1 << 20, &error), 0, "%s", error.text);
    return bytes;
}

static uint32_t masked(const void *bytes, size_t size) {
    uint32_t crc = crc32c(bytes, size);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/* Returns the bytes of the next record after checking its CRCs. */
static const uint8_t *record(const char *file, size_t size, size_t *at, uint64_t *length) {
    uint32_t of_length, of_bytes;
    cr_assert_leq(*at + 12, size);
    memcpy(length, file + *at, 8);
    memcpy(&of_length, file + *at + 8, 4);
    cr_expect_eq(of_length, masked(file + *at, 8));
    const char *bytes = file + *at + 12;
    cr_assert_leq(*at + 16 + *length, size);
    memcpy(&of_bytes, bytes + *length, 4);
    cr_expect_eq(of_bytes, masked(bytes, *length));
    *at += 16 + *length;
    return (const uint8_t *)bytes;
}

Test(tensorboard, records_hold_events) {
    struct tensorboard board;
    size_t size, at = 0;
    uint64_t length;
    cr_assert_eq(tensorboard_open(&board, folder, 299, &error), 0, "%s", error.text);
    const struct scalar scalars[] = {{"train/loss", 2.5}, {"train/lr", (double)NAN}};
    cr_assert_eq(tensorboard_write(&board, 300, scalars, 2, &error), 0, "%s", error.text);
    cr_assert_eq(tensorboard_write(&board, INT64_C(1) << 40, scalars, 1, &error), 0);
    char *file = event_file(&size); /* before it is closed: each event is flushed */
    const uint8_t *bytes = record(file, size, &at, &length);
    cr_expect_eq(length, 9 + 2 + 15);
    cr_expect_eq(bytes[0], 1 << 3 | 1); /* wall_time, a double */
    const uint8_t version[] = "\x10\x00\x1a\x0d"
                              "brain.Event:2";
    cr_expect_arr_eq(bytes + 9, version, sizeof version - 1);
    bytes = record(file, size, &at, &length);
    const uint8_t start[] = {2 << 3, 0xac,   0x02, 7 << 3 | 2,
                             2,      1 << 3, 1}; /* a start at step 300 */
    cr_expect_eq(length, 9 + sizeof start);
    cr_expect_arr_eq(bytes + 9, start, sizeof start);
    bytes = record(file, size, &at, &length);
    const uint8_t event[] = "\x10\xac\x02\x2a\x24"
                            "\x0a\x11\x0a\x0atrain/loss\x15\x00\x00\x20\x40"
                            "\x0a\x0f\x0a\x08train/lr\x15";
    cr_expect_eq(length, 9 + sizeof event - 1 + 4);
    cr_expect_arr_eq(bytes + 9, event, sizeof event - 1);
    bytes = record(file, size, &at, &length);
    const uint8_t step[] = {2 << 3, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20};
    cr_expect_arr_eq(bytes + 9, step, sizeof step);
    cr_expect_eq(at, size);
    free(file);
    tensorboard_close(&board);
    cr_expect_eq(tensorboard_write(&board, 301, scalars, 2, &error), 0); /* disabled */
}

Test(tensorboard, others_cannot_write_the_file) {
    struct tensorboard board = {0};
    struct stat status;
    const mode_t before = umask(0);
    cr_assert_eq(tensorboard_open(&board, folder, 0, &error), 0, "%s", error.text);
    umask(before);
    tensorboard_close(&board);
    DIR *directory = opendir(folder);
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (entry->d_name[0] == '.') continue;
        cr_assert_eq(stat(in_folder("%s", entry->d_name), &status), 0);
        cr_expect_eq(status.st_mode & 0777, 0644);
    }
    closedir(directory);
}

Test(tensorboard, write_errors_are_reported) {
    struct tensorboard board;
    cr_expect_eq(tensorboard_open(&board, in_folder("missing"), 0, &error), -1);
    cr_expect_not_null(strstr(error.text, "missing/events.out.tfevents"), "%s", error.text);
    board.file = fopen("/dev/full", "w");
    cr_assert_not_null(board.file);
    cr_expect_eq(tensorboard_write(&board, 1, &(struct scalar){"train/loss", 1}, 1, &error), -1);
    cr_expect_not_null(strstr(error.text, "log.tensorboard=false"), "%s", error.text);
    tensorboard_close(&board);
}
