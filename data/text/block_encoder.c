#include "data/text/block_encoder.h"

#include <stdlib.h>
#include <omp.h>

#include <stb/stb_ds.h>

#include "data/text/cuts.h"

/* Parts are small against a block, so that all threads end at about the same time. */
enum { PART_BYTES = 128 << 10, LONG_PART_BYTES = 512 << 10, KEPT_BYTES_MAX = 2 << 20 };

struct block_part {
    size_t begin, end;
    const struct document_start *starts; /* [start_count] */
    size_t start_count;
    uint8_t *packed; /* stb_ds array: the tokens as the shard will hold them */
    size_t count;
};

int block_encoder_open(struct block_encoder *encoder, const struct tokenizer *tokenizer,
                       struct progress *progress, struct error *error) {
    *encoder = (struct block_encoder){.tokenizer = tokenizer, .progress = progress};
    const int threads = omp_get_max_threads();
    encoder->encoders = calloc((size_t)threads, sizeof *encoder->encoders);
    encoder->tokens = calloc((size_t)threads, sizeof *encoder->tokens);
    for (; encoder->encoders && encoder->tokens && encoder->thread_count < threads;
         encoder->thread_count++) {
        struct tokenizer_encoder *one = tokenizer_encoder_open(tokenizer);
        if (!one) break;
        encoder->encoders[encoder->thread_count] = one;
    }
    if (encoder->thread_count == threads) return 0;
    block_encoder_close(encoder);
    return fail(error,
                "out of memory: no room for the tokenizer's %d threads\n"
                "set OMP_NUM_THREADS to a smaller number",
                threads);
}

void block_encoder_close(struct block_encoder *encoder) {
    for (int i = 0; i < encoder->thread_count; i++) {
        tokenizer_encoder_close(encoder->encoders[i]);
        arrfree(encoder->tokens[i]);
    }
    free(encoder->encoders);
    free(encoder->tokens);
    for (size_t i = 0; i < arrlenu(encoder->parts); i++) arrfree(encoder->parts[i].packed);
    arrfree(encoder->parts);
    *encoder = (struct block_encoder){0};
}

/* The next place after `least` where text[.. end) may be divided: a document's beginning or a cut
 * within one. */
static size_t part_end(const struct block_encoder *encoder, const char *block, size_t least,
                       size_t end, const struct document_start *next,
                       const struct document_start *last) {
    if (least >= end) return end;
    if (encoder->tokenizer->kind == TOKENIZER_BYTES) return least;
    while (next < last && next->at < least) next++;
    const size_t border = next < last ? next->at : end;
    const size_t cut =
        border > least ? cut_first(block, end, least, border - 1, encoder->tokenizer->cuts_before)
                       : CUT_NONE;
    return cut == CUT_NONE ? border : cut;
}

/* Divides block[begin .. end) into parts, whose tokens are to come. Returns their number. */
static size_t divide(struct block_encoder *encoder, const char *block, size_t begin, size_t end,
                     const struct document_start *starts, size_t start_count) {
    const struct document_start *last = starts + start_count;
    size_t count = 0;
    while (begin < end) {
        if (count == arrlenu(encoder->parts)) arrput(encoder->parts, (struct block_part){0});
        struct block_part *part = &encoder->parts[count++];
        part->begin = begin;
        part->end = begin = part_end(encoder, block, begin + PART_BYTES, end, starts, last);
        part->starts = starts;
        while (starts < last && starts->at < part->end) starts++;
        part->start_count = (size_t)(starts - part->starts);
    }
    return count;
}

/* A text without any place to cut makes long parts, for which an encoder needs far more memory than
 * for others, and keeps it: the first encoder does them all. */
static bool is_long(const struct block_part *part) {
    return part->end - part->begin > LONG_PART_BYTES;
}

/* The tokens go through an array that stays in the cache: of 32 bits, those of a whole block would
 * not, and one thread would have to fetch them all. */
static void encode_part(struct block_encoder *all, int thread, const struct shard_writer *writer,
                        struct block_part *part, const char *block) {
    struct tokenizer_encoder *encoder = all->encoders[thread];
    int32_t **tokens = &all->tokens[thread];
    size_t at = part->begin;
    arrsetlen(*tokens, 0);
    for (size_t i = 0; i <= part->start_count; i++) {
        const bool is_last = i == part->start_count;
        const size_t next = is_last ? part->end : part->starts[i].at;
        if (next > at) tokenizer_encode(encoder, tokens, block + at, next - at, false);
        at = next;
        if (is_last || part->starts[i].head == HEAD_NONE) continue;
        if (part->starts[i].head == HEAD_END_OF_TEXT) arrput(*tokens, all->tokenizer->end_of_text);
        else tokenizer_encode(encoder, tokens, "\n\n", 2, false);
    }
    part->count = arrlenu(*tokens);
    arrsetlen(part->packed, part->count * shard_writer_token_bytes(writer));
    shard_writer_pack(writer, part->packed, *tokens, part->count);
    if (arrcap(*tokens) * sizeof **tokens > KEPT_BYTES_MAX) arrfree(*tokens);
}

int block_encoder_put(struct block_encoder *encoder, struct shard_writer *writer, const char *block,
                      size_t begin, size_t end, size_t filled, const struct document_start *starts,
                      size_t start_count, struct error *error) {
    const size_t count = divide(encoder, block, begin, end, starts, start_count);
    size_t done = 0;
#pragma omp parallel for schedule(dynamic, 1) num_threads(encoder->thread_count)
    for (size_t i = 0; i < count; i++) {
        const int thread = omp_get_thread_num();
        struct block_part *part = &encoder->parts[i];
        if (!is_long(part)) encode_part(encoder, thread, writer, part, block);
        size_t now;
#pragma omp atomic capture
        now = ++done;
        if (thread == 0)
            progress_show(encoder->progress,
                          ((double)begin + (double)(end - begin) * (double)now / (double)count) /
                              (double)filled);
    }
    int status = 0;
    for (size_t i = 0; i < count; i++) {
        struct block_part *part = &encoder->parts[i];
        if (is_long(part)) encode_part(encoder, 0, writer, part, block);
        if (status == 0) status = shard_writer_put_packed(writer, part->packed, part->count, error);
        if (arrcap(part->packed) > KEPT_BYTES_MAX) arrfree(part->packed);
    }
    return status;
}
