/* Encodes a file with one core.
 *
 *   build/fast/tests --bench tokenizer --tokenizer DIRECTORY --text FILE
 *
 * MB of text a second of processor time, the best of five; cold: by an encoder that has seen no
 * text yet, warm: by one that has seen this text. */
#include <stdio.h>
#include <stdlib.h>

#include <stb/stb_ds.h>

#include "data/util/error.h"
#include "data/util/files.h"
#include "data/tokenize/tokenizer.h"
#include "test/cpu_time.h"
#include "test/kernels/bench.h"

enum { TRIES = 5, FILE_MAX_BYTES = 1 << 30 };

static double seconds_of(struct tokenizer_encoder *encoder, int32_t **tokens, const char *text,
                         size_t size, struct error *error) {
    arrsetlen(*tokens, 0);
    const double begin = cpu_seconds();
    if (tokenizer_encode(encoder, tokens, text, size, false, error)) return -1;
    return cpu_seconds() - begin;
}

static int encode(const struct tokenizer *tokenizer, const char *path, struct error *error) {
    char *text;
    size_t size;
    int32_t *tokens = NULL;
    double cold = 1e9, warm = 1e9;
    if (file_read_all(&text, &size, path, FILE_MAX_BYTES, error)) return -1;
    arrsetcap(tokens, size);
    for (int try = 0; try < TRIES; try++) {
        struct tokenizer_encoder *encoder = tokenizer_encoder_open(tokenizer);
        if (!encoder) return fail(error, "out of memory");
        const double first = seconds_of(encoder, &tokens, text, size, error);
        const double second = seconds_of(encoder, &tokens, text, size, error);
        if (first < 0 || second < 0) return -1;
        if (first < cold) cold = first;
        if (second < warm) warm = second;
        tokenizer_encoder_close(encoder);
    }
    printf("%-40s %8.2f MB %9zu tokens   cold %6.1f MB/s   warm %6.1f MB/s\n", path,
           1e-6 * (double)size, arrlenu(tokens), 1e-6 * (double)size / cold,
           1e-6 * (double)size / warm);
    arrfree(tokens);
    free(text);
    return 0;
}

static void table(void) {
    struct tokenizer tokenizer;
    struct error error;
    const char *directory = bench_text("tokenizer", NULL), *text = bench_text("text", NULL);
    if (!directory || !text) {
        puts("skipped: tokenizer/encode, which needs --tokenizer DIRECTORY --text FILE");
        return;
    }
    if (tokenizer_open(&tokenizer, TOKENIZER_GPT2, directory, &error) ||
        encode(&tokenizer, text, &error))
        bench_die(error.text);
    tokenizer_close(&tokenizer);
}
BENCH_TABLE(tokenizer, encode, table)
