#include "data/corpus/prompts.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/files.h"

enum { PROMPTS_BYTES_MAX = 1 << 30 };

int prompts_from_memory(struct tokens *tokens, char *text, size_t size, const char *name,
                        struct error *error) {
    int32_t *owned = text ? malloc((size + 1) * sizeof *owned) : NULL;
    for (size_t i = 0; owned && i < size; i++) owned[i] = (unsigned char)text[i];
    free(text);
    if (!owned) return fail_memory(error, "the prompts");
    return tokens_from_memory(tokens, owned, size, name, error);
}

int prompts_open(struct tokens *tokens, const char *path, struct error *error) {
    char *text;
    size_t size;
    *tokens = (struct tokens){0};
    if (file_read_all(&text, &size, path, PROMPTS_BYTES_MAX, error)) return -1;
    return prompts_from_memory(tokens, text, size, path, error);
}

static bool is_space(int32_t byte) {
    return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
}

/* A piece takes the rows of a whole sequence, whatever its bytes, so that each fills one. */
static int add_rows(const struct loader *loader, struct packing *packing, uint32_t index,
                    struct error *error) {
    const struct token_shard *shard = &loader->tokens->shards[index];
    for (uint64_t at = 0; at < shard->count; at++) {
        const struct packed_piece piece = {
            .begin = at, .shard = index, .rows = (uint32_t)loader->options.seq_len};
        if (is_space(shard->owned[at])) continue;
        arrput(packing->pieces, piece);
        packing->documents++;
        while (at < shard->count && shard->owned[at] != '\n') at++;
    }
    return arrlenu(packing->pieces) > 0
               ? 0
               : fail(error, "%.600s holds no row with a prompt", shard->name);
}

static uint64_t count_one(const struct span *span) {
    (void)span;
    return 1;
}

const struct loader_kind prompts_loader = {1, add_rows, NULL, count_one};

void prompts_row(char **row, const struct loader *loader, uint64_t sample) {
    const struct span span = loader_first_span(loader, sample);
    const int32_t *bytes = span.shard->owned;
    assert(loader->options.kind == &prompts_loader);
    arrsetlen(*row, 0);
    for (uint64_t i = span.start; i < span.shard->count && bytes[i] != '\n'; i++)
        arrput(*row, (char)bytes[i]);
    while (is_space(arrlast(*row))) arrpop(*row);
    arrput(*row, '\0');
}

int prompts_fail(const struct loader *loader, uint64_t sample, const char *reason,
                 struct error *error) {
    const struct span span = loader_first_span(loader, sample);
    uint64_t line = 1;
    for (uint64_t i = 0; i < span.start; i++) line += span.shard->owned[i] == '\n';
    return fail(error, "%.300s, line %" PRIu64 ": %s", span.shard->name, line, reason);
}
