#include "data/corpus/block_encoder.h"

#include <stdlib.h>
#include <string.h>
#include <omp.h>

#include <stb/stb_ds.h>

#include "data/tokenize/cuts.h"

/* Parts are small compared with a block, so that all threads finish at about the same time. */
enum { PART_BYTES = 128 << 10, LONG_PART_BYTES = 512 << 10, KEPT_BYTES_MAX = 2 << 20 };

struct block_part {
    size_t begin, end;
    bool begins_in_loss;            /* true if the beginning counts in the loss */
    const struct block_mark *marks; /* [mark_count] */
    size_t mark_count;
    uint8_t *packed;      /* stb_ds array: the tokens in the shard's format */
    uint8_t *token_marks; /* stb_ds array: for the mask; empty if all are TOKEN_COUNTS */
    size_t count;
    int status; /* -1 if encoding failed, for the reason in error */
    struct error error;
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
    for (size_t i = 0; i < arrlenu(encoder->parts); i++) {
        arrfree(encoder->parts[i].packed);
        arrfree(encoder->parts[i].token_marks);
    }
    arrfree(encoder->parts);
    *encoder = (struct block_encoder){0};
}

/* Returns the next position after `least` where a text may be divided: a mark, or a cut between two
 * marks. */
static size_t part_end(const struct block_encoder *encoder, const struct block_text *text,
                       size_t least, const struct block_mark *next, const struct block_mark *last) {
    if (least >= text->end) return text->end;
    if (encoder->tokenizer->kind == TOKENIZER_BYTES) return least;
    while (next < last && next->at < least) next++;
    const size_t border = next < last ? next->at : text->end;
    const size_t cut = border > least ? cut_first(text->block, text->end, least, border - 1,
                                                  encoder->tokenizer->cuts_before)
                                      : CUT_NONE;
    return cut == CUT_NONE ? border : cut;
}

/* Divides a text into parts without tokens yet. Returns their number. */
static size_t divide(struct block_encoder *encoder, const struct block_text *text) {
    const struct block_mark *marks = text->marks, *last = marks + text->mark_count;
    size_t begin = text->begin, count = 0;
    bool in_loss = text->begins_in_loss;
    while (begin < text->end || marks < last) {
        if (count == arrlenu(encoder->parts)) arrput(encoder->parts, (struct block_part){0});
        struct block_part *part = &encoder->parts[count++];
        part->begin = begin;
        part->end = begin = part_end(encoder, text, begin + PART_BYTES, marks, last);
        part->begins_in_loss = in_loss;
        part->marks = marks;
        for (; marks < last && (marks->at < part->end || part->end == text->end); marks++)
            in_loss = marks->in_loss;
        part->mark_count = (size_t)(marks - part->marks);
    }
    return count;
}

/* A text without any cut makes long parts. Encoding one takes far more memory, which the encoder
 * keeps, so the first encoder handles all of them. */
static bool is_long(const struct block_part *part) {
    return part->end - part->begin > LONG_PART_BYTES;
}

/* Records if the tokens appended last count in the loss, and if a document begins with the first of
 * them. The part has `count` tokens now. Returns true if there was such a first token. */
static bool record(struct block_part *part, size_t count, bool in_loss, bool begins) {
    const size_t before = part->count, known = arrlenu(part->token_marks);
    part->count = count;
    if (count == before || (in_loss && !begins && known == 0)) return count > before;
    arrsetlen(part->token_marks, count);
    memset(part->token_marks + known, TOKEN_COUNTS, before - known);
    memset(part->token_marks + before, in_loss ? TOKEN_COUNTS : 0, count - before);
    if (begins) part->token_marks[before] |= TOKEN_BEGINS;
    return true;
}

/* Tokens are first written to an array that stays in the CPU cache. At 32 bits each, the tokens of
 * a whole block would not fit, and one thread would later read them all from memory. */
static void encode_part(struct block_encoder *all, int thread, const struct shard_writer *writer,
                        struct block_part *part, const struct block_text *text) {
    struct tokenizer_encoder *encoder = all->encoders[thread];
    int32_t **tokens = &all->tokens[thread];
    const enum separator stop = all->tokenizer->stop >= 0 ? SEPARATOR_STOP : SEPARATOR_EMPTY_LINE;
    const bool stop_begins = all->tokenizer->stop == all->tokenizer->end_of_text;
    size_t at = part->begin;
    bool in_loss = part->begins_in_loss, begins = false;
    arrsetlen(*tokens, 0);
    arrsetlen(part->token_marks, 0);
    part->count = 0;
    part->status = 0;
    for (size_t i = 0; i <= part->mark_count && !part->status; i++) {
        const struct block_mark *mark = i < part->mark_count ? &part->marks[i] : NULL;
        const size_t next = mark ? mark->at : part->end;
        part->status =
            tokenizer_encode(encoder, tokens, text->block + at, next - at, false, &part->error);
        begins &= !record(part, arrlenu(*tokens), in_loss, begins);
        if (!mark) break;
        at = next;
        in_loss = mark->in_loss;
        const enum separator separator =
            mark->separator == SEPARATOR_STOP ? stop : (enum separator)mark->separator;
        if (separator == SEPARATOR_END_OF_TEXT) arrput(*tokens, all->tokenizer->end_of_text);
        else if (separator == SEPARATOR_STOP) arrput(*tokens, all->tokenizer->stop);
        else if (separator == SEPARATOR_EMPTY_LINE)
            part->status = tokenizer_encode(encoder, tokens, "\n\n", 2, false, &part->error);
        const bool is_first =
            separator == SEPARATOR_STOP ? stop_begins : separator == SEPARATOR_END_OF_TEXT;
        record(part, arrlenu(*tokens), in_loss, is_first && text->marks_documents);
        begins |=
            mark->begins && !is_first && separator != SEPARATOR_SHARED && text->marks_documents;
    }
    arrsetlen(part->packed, part->count * shard_writer_token_bytes(writer));
    shard_writer_pack(writer, part->packed, *tokens, part->count);
    if (arrcap(*tokens) * sizeof **tokens > KEPT_BYTES_MAX) arrfree(*tokens);
}

static int put_part(struct shard_writer *writer, struct block_part *part, struct error *error) {
    const uint8_t *marks = arrlenu(part->token_marks) > 0 ? part->token_marks : NULL;
    if (part->status) return fail(error, "%s", part->error.text);
    const int status = shard_writer_put_packed(writer, part->packed, marks, part->count, error);
    if (arrcap(part->packed) > KEPT_BYTES_MAX) arrfree(part->packed);
    if (arrcap(part->token_marks) > KEPT_BYTES_MAX) arrfree(part->token_marks);
    return status;
}

int block_encoder_put(struct block_encoder *encoder, struct shard_writer *writer,
                      const struct block_text *text, size_t filled, struct error *error) {
    const size_t count = divide(encoder, text), begin = text->begin, end = text->end;
    size_t done = 0;
#pragma omp parallel for schedule(dynamic, 1) num_threads(encoder->thread_count)
    for (size_t i = 0; i < count; i++) {
        const int thread = omp_get_thread_num();
        struct block_part *part = &encoder->parts[i];
        if (!is_long(part)) encode_part(encoder, thread, writer, part, text);
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
        if (is_long(part) && status == 0) encode_part(encoder, 0, writer, part, text);
        if (status == 0) status = put_part(writer, part, error);
    }
    return status;
}
