/* Any bytes are either rejected with a message or give a history of finite amaxes. */
#include "model/io/amax_history.h"
#include "test/fuzz/fuzz.h"

#include <math.h>

enum { LENGTH = 4, COUNT = 12 };

/* The second byte is the step; the length field is set to the end of the header, so that more
 * than the first check runs. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    char path[64];
    struct error error = {0};
    float history[LENGTH * COUNT];
    if (size < 9) return 0;
    uint8_t *image = malloc(size);
    require(image != NULL);
    memcpy(image, bytes, size);
    const uint8_t *end = memchr(bytes + 8, '\n', size - 8);
    uint64_t header = end ? (uint64_t)(end - bytes - 8) : size - 8;
    for (int i = 0; i < 8; i++) image[i] = (uint8_t)(header >> (8 * i));
    if (end) memmove(image + 8 + header, end + 1, size - 9 - header);
    const int fd = fuzz_file(path, image, size - (end != NULL));
    if (amax_history_read(history, LENGTH, COUNT, path, bytes[1], &error) == 0) {
        for (int i = 0; i < LENGTH * COUNT; i++) require(history[i] >= 0 && isfinite(history[i]));
    } else {
        require(error.text[0] && strstr(error.text, path));
    }
    close(fd);
    free(image);
    return 0;
}
