/* Any text, in a file or as --set, is either rejected with a message or gives a config whose
 * printed form reads back as the same config. */
#include "model/config/config.h"
#include "model/config/config_check.h"
#include "model/config/config_print.h"
#include "model/io/config_file.h"
#include "test/fuzz/fuzz.h"

static void print_and_read_back(const struct config *config) {
    char path[64];
    struct error error = {0};
    struct config again;
    size_t size, size_again;
    char *text = config_json_text(config, &size);
    require(text != NULL);
    const int fd = fuzz_file(path, text, size);
    if (config_load(&again, path, NULL, 0, &error) != 0) {
        fprintf(stderr, "%s\nin: %s\n", error.text, text);
        abort();
    }
    char *text_again = config_json_text(&again, &size_again);
    require(text_again && size == size_again && memcmp(text, text_again, size) == 0);
    free(text);
    free(text_again);
    close(fd);
}

/* A first byte below 8 makes the first line, less that byte, a --set text. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    char path[64], *flag = NULL;
    struct error error = {0};
    struct config config;
    const uint8_t *file = bytes, *end = bytes + size;
    if (size > 0 && bytes[0] < 8) {
        const uint8_t *line = memchr(bytes, '\n', size);
        flag = strndup((const char *)bytes + 1, (size_t)((line ? line : end) - bytes) - 1);
        file = line ? line + 1 : end;
    }
    const int fd = flag && file == end ? fuzz_file(path, "{}", 2)
                                       : fuzz_file(path, file, (size_t)(end - file));
    if (config_load(&config, path, &flag, flag != NULL, &error) == 0) {
        config_warnings(&config, NULL);
        config_dimension_notes(&config, NULL);
        require(config_parameter_count(&config) > 0);
        print_and_read_back(&config);
    } else {
        require(strstr(error.text, path) != NULL || (flag && strstr(error.text, "--set") != NULL));
    }
    close(fd);
    free(flag);
    return 0;
}
