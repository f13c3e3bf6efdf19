/* How fast a core encodes: bench_tokenizer DIRECTORY FILE...
 *
 * MB of text a second of processor time, the best of five; cold: an encoder that has seen no text
 * yet, warm: one that has seen this text. */
#include <stdio.h>
#include <stdlib.h>

#include <stb/stb_ds.h>

#include "data/base/error.h"
#include "data/base/files.h"
#include "data/text/tokenizer.h"
#include "test/cpu_time.h"

enum { TRIES = 5, FILE_MAX_BYTES = 1 << 30 };

static double seconds_of(struct tokenizer_encoder *encoder, int32_t **tokens, const char *text,
                         size_t size, struct error *error) {
    arrsetlen(*tokens, 0);
    const double begin = cpu_seconds();
    if (tokenizer_encode(encoder, tokens, text, size, false, error)) return -1;
    return cpu_seconds() - begin;
}

static int bench(const struct tokenizer *tokenizer, const char *path, struct error *error) {
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

int main(int argc, char **argv) {
    struct tokenizer tokenizer;
    struct error error;
    if (argc < 3) {
        fputs("usage: bench_tokenizer DIRECTORY FILE...\n", stderr);
        return 2;
    }
    int status = tokenizer_open(&tokenizer, TOKENIZER_GPT2, argv[1], &error);
    for (int i = 2; i < argc && !status; i++) status = bench(&tokenizer, argv[i], &error);
    if (status) fprintf(stderr, "%s\n", error.text);
    else tokenizer_close(&tokenizer);
    return status ? 1 : 0;
}
