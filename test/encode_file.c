/* Prints the tokens of a text, for test/external/check_tokenizers.py:
 *
 *   encode_file TOKENIZER TEXT TOKENS BACK
 *
 * TOKENIZER is a folder with files of a tokenizer. Writes the tokens to TOKENS (int32 in this
 * machine's byte order, special tokens included) and the decoded text to BACK. Prints the
 * encoding speed in MB of text per second of processor time, the best of five with a new encoder
 * each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/files.h"
#include "data/tokenize/subwords.h"
#include "data/tokenize/tokenizer.h"
#include "test/cpu_time.h"

enum { TRIES = 5, FILE_MAX_BYTES = 1 << 30 };

static int32_t *encode(const struct subwords *subwords, const char *text, size_t size) {
    int32_t *tokens = NULL;
    double best = 1e9;
    struct error error;
    for (int try = 0; try < TRIES; try++) {
        struct subwords_encoder *encoder = subwords_encoder_open(subwords);
        if (!encoder) abort();
        arrsetlen(tokens, 0);
        arrsetcap(tokens, size);
        const double begin = cpu_seconds();
        if (subwords_encode(encoder, &tokens, text, size, true, &error)) {
            fprintf(stderr, "%s\n", error.text);
            exit(1);
        }
        const double seconds = cpu_seconds() - begin;
        if (seconds < best) best = seconds;
        subwords_encoder_close(encoder);
    }
    printf("%.1f\n", 1e-6 * (double)size / best);
    return tokens;
}

/* Text that a decoder writes. With characters, the first space does not belong to the text. */
static uint8_t *decode(const struct subwords *subwords, const int32_t *tokens) {
    uint8_t *text = NULL;
    size_t size;
    for (size_t i = 0; i < arrlenu(tokens); i++) {
        const uint8_t *bytes = subwords_bytes(subwords, tokens[i], &size);
        if (size > 0) memcpy(arraddnptr(text, size), bytes, size);
    }
    if (subwords->strips_space && arrlenu(text) > 0 && text[0] == ' ') arrdel(text, 0);
    return text;
}

int main(int argc, char **argv) {
    struct tokenizer tokenizer;
    struct error error;
    char *text;
    size_t size;
    if (argc != 5) {
        fputs("usage: encode_file TOKENIZER TEXT TOKENS BACK\n", stderr);
        return 2;
    }
    if (file_read_all(&text, &size, argv[2], FILE_MAX_BYTES, &error) ||
        tokenizer_open(&tokenizer, TOKENIZER_FILES, argv[1], &error)) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    int32_t *tokens = encode(tokenizer.subwords, text, size);
    uint8_t *back = decode(tokenizer.subwords, tokens);
    const int status =
        file_write_whole(argv[3], tokens, arrlenu(tokens) * sizeof *tokens, NULL, &error) ||
        file_write_whole(argv[4], back, arrlenu(back), NULL, &error);
    if (status) fprintf(stderr, "%s\n", error.text);
    arrfree(tokens);
    arrfree(back);
    tokenizer_close(&tokenizer);
    free(text);
    return status;
}
