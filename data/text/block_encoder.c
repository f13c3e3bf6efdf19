#include "data/text/block_encoder.h"

#include <stdlib.h>
#include <omp.h>

#include <stb/stb_ds.h>

#include "data/text/cuts.h"

/* Parts are small against a block, so that all threads end at about the same time. */
enum { PART_BYTES = 128 << 10, LONG_PART_BYTES = 512 << 10, KEPT_TOKENS_MAX = 1 << 20 };

struct block_part {
    size_t begin, end;
    const struct document_start *starts; /* [start_count] */
    size_t start_count;
    uint16_t *tokens; /* stb_ds array */
};

int block_encoder_open(struct block_encoder *encoder, const struct tokenizer *tokenizer,
                       struct progress *progress, struct error *error) {
    *encoder = (struct block_encoder){.tokenizer = tokenizer, .progress = progress};
    const int threads = omp_get_max_threads();
    encoder->encoders = calloc((size_t)threads, sizeof *encoder->encoders);
    for (; encoder->encoders && encoder->thread_count < threads; encoder->thread_count++) {
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
    for (int i = 0; i < encoder->thread_count; i++) tokenizer_encoder_close(encoder->encoders[i]);
    free(encoder->encoders);
    for (size_t i = 0; i < arrlenu(encoder->parts); i++) arrfree(encoder->parts[i].tokens);
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

/* Divides block[begin .. end) into parts, whose tokens are empty. Returns their number. */
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
        arrsetlen(part->tokens, 0);
    }
    return count;
}

/* A text without any place to cut makes long parts, for which an encoder needs far more memory than
 * for others, and keeps it: the first encoder does them all. */
static bool is_long(const struct block_part *part) {
    return part->end - part->begin > LONG_PART_BYTES;
}

static void encode_part(const struct tokenizer *tokenizer, struct tokenizer_encoder *encoder,
                        struct block_part *part, const char *block) {
    size_t at = part->begin;
    for (size_t i = 0; i <= part->start_count; i++) {
        const bool is_last = i == part->start_count;
        const size_t next = is_last ? part->end : part->starts[i].at;
        if (next > at) tokenizer_encode(encoder, &part->tokens, block + at, next - at, false);
        at = next;
        if (is_last || part->starts[i].head == HEAD_NONE) continue;
        if (part->starts[i].head == HEAD_END_OF_TEXT)
            arrput(part->tokens, (uint16_t)tokenizer->end_of_text);
        else tokenizer_encode(encoder, &part->tokens, "\n\n", 2, false);
    }
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
        if (!is_long(part)) encode_part(encoder->tokenizer, encoder->encoders[thread], part, block);
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
        if (is_long(part)) encode_part(encoder->tokenizer, encoder->encoders[0], part, block);
        if (status == 0)
            status = shard_writer_put(writer, part->tokens, arrlenu(part->tokens), error);
        if (arrcap(part->tokens) > KEPT_TOKENS_MAX) arrfree(part->tokens);
    }
    return status;
}
