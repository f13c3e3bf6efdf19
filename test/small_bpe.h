/* Byte-pair encodings like GPT-2's, made in memory for tests and fuzzers: 256 bytes, whose token
 * is the byte's value, and merges. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/tokenize/byte_alphabet.h"
#include "data/tokenize/subwords_json.h"

/* Prints the members of a vocabulary: the bytes. */
static inline void print_bytes(FILE *out) {
    struct byte_alphabet alphabet;
    byte_alphabet_fill(&alphabet);
    for (int byte = 0; byte < 256; byte++) {
        char letter[BYTE_ALPHABET_TEXT_MAX];
        byte_alphabet_write(&alphabet, letter, (uint8_t)byte);
        fprintf(out, "%s\"%s%s\": %d", byte ? ", " : "", byte == '"' || byte == '\\' ? "\\" : "",
                letter, byte);
    }
}

/* names: tokens from 256 on, in the alphabet of bytes; merges: "left right" each, by rank.
 * <|endoftext|> is the last token. Ends the program if that is not a valid encoding. */
static inline void small_bpe_of(struct subwords *bpe, char **names, char **merges) {
    struct error reason;
    char *vocab, *lines;
    size_t vocab_size, lines_size;
    FILE *out = open_memstream(&vocab, &vocab_size);
    int token = 256;
    fputs("{", out);
    print_bytes(out);
    for (size_t i = 0; i < arrlenu(names); i++) fprintf(out, ", \"%s\": %d", names[i], token++);
    fprintf(out, ", \"<|endoftext|>\": %d}", token);
    fclose(out);
    out = open_memstream(&lines, &lines_size);
    fputs("#version\n", out);
    for (size_t i = 0; i < arrlenu(merges); i++) fprintf(out, "%s\n", merges[i]);
    fclose(out);
    if (subwords_read_gpt2(bpe, NULL, NULL,
                           &(struct json_reader){"small", vocab, vocab_size, &reason},
                           &(struct json_reader){"small", lines, lines_size, &reason})) {
        fprintf(stderr, "%s\n", reason.text);
        abort();
    }
    free(vocab);
    free(lines);
}

/* Results of merges get the next tokens in their order; a result that exists already keeps its
 * token. */
static inline void small_bpe(struct subwords *bpe, const char *const *merges, size_t count) {
    char **names = NULL, **lines = NULL;
    for (size_t i = 0; i < count; i++) {
        char *name = strdup(merges[i]), *space = strchr(name, ' ');
        size_t known = 0;
        memmove(space, space + 1, strlen(space));
        while (known < arrlenu(names) && strcmp(names[known], name) != 0) known++;
        if (known == arrlenu(names)) arrput(names, name);
        else free(name);
        arrput(lines, (char *)merges[i]);
    }
    small_bpe_of(bpe, names, lines);
    for (size_t i = 0; i < arrlenu(names); i++) free(names[i]);
    arrfree(names);
    arrfree(lines);
}

/* Reference for byte_tokens_merge: one merge after the other, without tables; appends to
 * *tokens. */
static inline void naive_merge(const struct subwords *bpe, int32_t **tokens, const uint8_t *piece,
                               size_t size) {
    struct merge *list = merges_list(&bpe->merges);
    int32_t *all = NULL;
    for (size_t i = 0; i < size; i++) arrput(all, bpe->bytes.tokens[piece[i]]);
    for (size_t rank = 0; rank < arrlenu(list);) {
        const struct merge merge = list[rank];
        size_t at = 0;
        while (at + 1 < arrlenu(all) && (all[at] != merge.left || all[at + 1] != merge.right)) at++;
        if (at + 1 >= arrlenu(all)) {
            rank++;
            continue;
        }
        all[at] = merge.token;
        arrdel(all, at + 1);
        /* The merge may have made a pair of a lower rank. */
        rank = 0;
    }
    for (size_t i = 0; i < arrlenu(all); i++) arrput(*tokens, all[i]);
    arrfree(all);
    arrfree(list);
}
