/* Shared by the tests of model/config: a folder with one config file, and captured output. */
#pragma once

#include "data/util/error.h"
#include "model/config/config_print.h"
#include "model/config/config_read.h"
#include "model/io/config_file.h"
#include "test/notes.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_MAX = 1 << 16 };

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* A folder with one config file, run.json, in it. */
struct fixture {
    char folder[64];
    char path[96];
};

static inline void fixture_open(struct fixture *fixture) {
    strcpy(fixture->folder, "/tmp/mantissa-test-config-XXXXXX");
    cr_assert_not_null(mkdtemp(fixture->folder));
    snprintf(fixture->path, sizeof fixture->path, "%s/run.json", fixture->folder);
}

static inline void fixture_close(const struct fixture *fixture) {
    unlink(fixture->path);
    cr_assert_eq(rmdir(fixture->folder), 0);
}

static inline void write_bytes(const char *path, const void *bytes, size_t length) {
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, length, file), length);
    cr_assert_eq(fclose(file), 0);
}

static inline int load(const struct fixture *fixture, struct config *config, const char *text,
                       const char *flag, struct error *error) {
    char copy[1024] = "";
    if (flag) snprintf(copy, sizeof copy, "%s", flag);
    char *const flags[] = {copy};
    write_bytes(fixture->path, text, strlen(text));
    return config_load(config, fixture->path, flags, flag ? 1 : 0, error);
}

/* Like the function above, where failure is not expected. */
static inline void load_well(const struct fixture *fixture, struct config *config, const char *text,
                             const char *flag) {
    struct error error = {0};
    cr_assert_eq(load(fixture, config, text, flag, &error), 0, "%s %s: %s", text, flag ? flag : "",
                 error.text);
}

static inline char *dump(const struct config *config) {
    return config_json_text(config, NULL);
}

static inline char *printed(void (*print)(FILE *)) {
    char *text = NULL;
    size_t length;
    FILE *stream = open_memstream(&text, &length);
    print(stream);
    fclose(stream);
    char *copy = strdup(text);
    free(text);
    return copy;
}

static inline char *read_whole(const char *path) {
    FILE *file = fopen(path, "rb");
    cr_assert_not_null(file, "cannot open %s (tests run in the repository's root)", path);
    char *text = calloc(1, TEXT_MAX);
    size_t length = fread(text, 1, TEXT_MAX - 1, file);
    cr_assert_lt(length, (size_t)TEXT_MAX - 1);
    fclose(file);
    return text;
}
