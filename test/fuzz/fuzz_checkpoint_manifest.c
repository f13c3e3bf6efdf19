/* Any bytes are either rejected with a message or give a manifest whose config, if valid, can be
 * read. */
#include "model/config/config_keys.h"
#include "model/io/checkpoint_manifest.h"
#include "model/config/config_read.h"
#include "test/fuzz/fuzz.h"

#include <math.h>
#include <stb/stb_ds.h>

/* Appends a hash of the input, unless it ends in '!'. Without a valid hash, only the first check
 * would ever run. */
static size_t seal(uint8_t *image, const uint8_t *bytes, size_t size) {
    char hex[SHA256_HEX_MAX], text[128];
    memcpy(image, bytes, size);
    if (size == 0 || bytes[size - 1] == '!') return size;
    sha256_of(hex, bytes, size);
    int length = snprintf(text, sizeof text, ",\n  \"sha256\": \"%s\"\n}\n", hex);
    memcpy(image + size, text, (size_t)length);
    return size + (size_t)length;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    char path[64];
    struct error error = {0};
    uint8_t *image = malloc(size + 128);
    require(image != NULL);
    const int fd = fuzz_file(path, image, seal(image, bytes, size));
    struct checkpoint_manifest manifest;
    if (checkpoint_manifest_open(&manifest, path, &error) == 0) {
        struct config config;
        struct config_origins origins = {.path = path};
        const struct training_state *state = &manifest.state;
        require(state->step >= 0 && state->tokens >= 0 && state->next_sample >= 0);
        require(isfinite(state->scaler.loss_scale));
        require(state->scaler.loss_scale > 0 && state->scaler.updates >= 0);
        require(arrlen(manifest.files) >= 3 && arrlen(manifest.files) <= CHECKPOINT_FILES_MAX);
        for (ptrdiff_t i = 0; i < arrlen(manifest.files); i++) {
            const struct stored_file *file = &manifest.files[i];
            require(strlen(file->sha256) == SHA256_HEX_MAX - 1);
            require(file->name[0] && !strchr(file->name, '/') && strcmp(file->name, "..") != 0);
        }
        config_defaults(&config);
        config_read_text(&config, &origins, manifest.config, strlen(manifest.config), &error);
        checkpoint_manifest_close(&manifest);
    } else {
        require_message(&error, path);
    }
    close(fd);
    free(image);
    return 0;
}
