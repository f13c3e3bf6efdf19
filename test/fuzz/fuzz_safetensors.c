/* Any bytes are either rejected with a message or give entries that can be read in full. */
#include "model/io/safetensors.h"
#include "test/fuzz/fuzz_read.h"

static void read_everything(const struct safetensors *file) {
    for (int i = 0; i < file->count; i++) {
        const struct safetensors_entry *entry = &file->entries[i];
        require(strcmp(entry->name, "__metadata__") != 0);
        require(entry->rank >= 0 && entry->rank <= SAFETENSORS_RANK_MAX);
        fuzz_read(file, entry);
    }
}

/* Two thirds of the inputs get a length field that matches the remaining bytes, so that fuzzing
 * reaches the header parser behind the first check. */
static size_t build(uint8_t *image, const uint8_t *bytes, size_t size) {
    if (size == 0 || bytes[0] % 3 == 0) {
        if (size > 1) memcpy(image, bytes + 1, size - 1);
        return size > 1 ? size - 1 : 0;
    }
    const size_t data_bytes = bytes[0] % 3 == 1 ? 0 : bytes[0] / 3 % 16;
    const size_t header_bytes = size - 1 > data_bytes ? size - 1 - data_bytes : 0;
    for (int i = 0; i < 8; i++) image[i] = (uint8_t)((uint64_t)header_bytes >> (8 * i));
    memcpy(image + 8, bytes + 1, size - 1);
    return 8 + size - 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    char path[64];
    struct error error = {0};
    uint8_t *image = malloc(size + 8);
    require(image != NULL);
    const int fd = fuzz_file(path, image, build(image, bytes, size));
    struct safetensors file;
    if (safetensors_open(&file, path, &error) == 0) {
        read_everything(&file);
        safetensors_close(&file);
    } else {
        require_message(&error, path);
    }
    close(fd);
    free(image);
    return 0;
}
