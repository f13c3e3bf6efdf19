/* Shared by the tests of config.json: files in the folder of the fixture, read and printed. */
#pragma once

#include "model/io/huggingface.h"
#include "test/model/io/checkpoint_fixture.h"

static inline void put_config(const char *text) {
    FILE *out = fopen(in_folder("config.json"), "w");
    cr_assert_not_null(out);
    fputs(text, out);
    cr_assert_eq(fclose(out), 0);
}

/* Reads a config.json of this text. */
static inline int read_config_text(struct config *config, const char *text) {
    put_config(text);
    config_defaults(config);
    return huggingface_read_config(config, folder, &error);
}

/* Returns the config.json of a config, to be freed. */
static inline char *printed_config(const struct config *config, const struct tokenizer *tokenizer,
                                   enum dtype dtype) {
    char *text;
    size_t size;
    struct huggingface_tokens tokens = huggingface_tokens_of(config, tokenizer);
    FILE *out = open_memstream(&text, &size);
    huggingface_print_config(out, config, &tokens, dtype);
    fclose(out);
    return text;
}
