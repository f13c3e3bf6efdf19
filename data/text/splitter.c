#include "data/text/splitter.h"

#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/text/cuts.h"

int splitter_open(struct splitter *splitter, const struct tokenizer *tokenizer, double val_fraction,
                  const char *train, const char *val, uint64_t shard_tokens,
                  struct progress *progress, struct error *error) {
    *splitter = (struct splitter){.tokenizer = tokenizer,
                                  .val_fraction = val_fraction,
                                  .progress = progress,
                                  .block_bytes = SPLITTER_BLOCK_BYTES};
    splitter->block = malloc(splitter->block_bytes);
    if (!splitter->block) return fail(error, "out of memory: no room for one block of text");
    if (block_encoder_open(&splitter->encoder, tokenizer, progress, error) ||
        shard_writer_open(&splitter->train.writer, train, tokenizer->vocab_size, shard_tokens,
                          error) ||
        shard_writer_open(&splitter->val.writer, val, tokenizer->vocab_size, shard_tokens, error))
        return -1;
    return 0;
}

void splitter_close(struct splitter *splitter) {
    shard_writer_abandon(&splitter->train.writer);
    shard_writer_abandon(&splitter->val.writer);
    block_encoder_close(&splitter->encoder);
    arrfree(splitter->starts);
    free(splitter->block);
    *splitter = (struct splitter){0};
}

/* How much of a full block is used now; the rest waits for what follows it. */
static size_t block_end(const struct splitter *splitter) {
    const size_t filled = splitter->filled;
    if (splitter->begins) return filled;
    if (arrlenu(splitter->starts) > 0 && arrlast(splitter->starts).at >= filled / 2)
        return arrlast(splitter->starts).at;
    if (splitter->tokenizer->kind == TOKENIZER_BYTES) return filled;
    const size_t cut =
        cut_last(splitter->block, filled, 1, filled - 1, splitter->tokenizer->cuts_before);
    return cut != CUT_NONE ? cut : cut_between_characters(splitter->block, filled, filled - 1);
}

/* Where validation begins in block[0 .. end). */
static size_t val_begin(const struct splitter *splitter, size_t end) {
    size_t val = (size_t)((double)end * splitter->val_fraction + 0.5);
    /* Rounding up may not leave training with nothing. */
    if (val > 0 && val >= end) val = end - 1;
    if (val == 0) return end;
    const size_t wanted = end - val, high = wanted + val / 2;
    const size_t low = wanted > val ? wanted - val : 1;
    size_t best = 0, best_distance = SIZE_MAX;
    for (size_t i = 0; i < arrlenu(splitter->starts); i++) {
        const size_t at = splitter->starts[i].at;
        const size_t distance = at > wanted ? at - wanted : wanted - at;
        if (at < low || at > high || distance >= best_distance) continue;
        best = at;
        best_distance = distance;
    }
    if (best > 0) return best;
    if (splitter->tokenizer->kind == TOKENIZER_BYTES) return wanted;
    size_t cut = cut_last(splitter->block, end, low, wanted, splitter->tokenizer->cuts_before);
    if (cut == CUT_NONE)
        cut = cut_first(splitter->block, end, wanted, high, splitter->tokenizer->cuts_before);
    return cut != CUT_NONE ? cut : cut_between_characters(splitter->block, end, wanted);
}

static enum document_head head_of(const struct splitter *splitter, const struct splitter_side *side,
                                  bool is_row) {
    if (splitter->tokenizer->kind != TOKENIZER_BYTES) return HEAD_END_OF_TEXT;
    return side->has_text && (is_row || side->ends_with_row) ? HEAD_EMPTY_LINE : HEAD_NONE;
}

/* Puts block[begin .. end), with those of `starts` that are in it. Returns their number, or -1. */
static ptrdiff_t put_side(struct splitter *splitter, struct splitter_side *side, size_t begin,
                          size_t end, size_t first_start, struct error *error) {
    struct document_start *starts = splitter->starts + first_start;
    size_t count = 0;
    if (begin == end) return 0;
    if (first_start == arrlenu(splitter->starts) || starts->at > begin) {
        side->has_text = true;
        side->ends_with_row = splitter->open_is_row;
    }
    for (; first_start + count < arrlenu(splitter->starts) && starts[count].at < end; count++) {
        struct document_start *start = &starts[count];
        start->head = (uint8_t)head_of(splitter, side, start->is_row);
        side->has_text = true;
        side->ends_with_row = splitter->open_is_row = start->is_row;
    }
    if (block_encoder_put(&splitter->encoder, &side->writer, splitter->block, begin, end,
                          splitter->filled, starts, count, error))
        return -1;
    return (ptrdiff_t)count;
}

static int put_block(struct splitter *splitter, size_t end, struct error *error) {
    const size_t val = val_begin(splitter, end);
    const ptrdiff_t train_starts = put_side(splitter, &splitter->train, 0, val, 0, error);
    if (train_starts < 0) return -1;
    const ptrdiff_t val_starts =
        put_side(splitter, &splitter->val, val, end, (size_t)train_starts, error);
    if (val_starts < 0) return -1;
    splitter->filled -= end;
    memmove(splitter->block, splitter->block + end, splitter->filled);
    if (train_starts + val_starts > 0) arrdeln(splitter->starts, 0, train_starts + val_starts);
    for (size_t i = 0; i < arrlenu(splitter->starts); i++) splitter->starts[i].at -= (uint32_t)end;
    splitter->progress->finished = splitter->progress->read;
    return 0;
}

int splitter_put(struct splitter *splitter, const struct document_piece *piece,
                 struct error *error) {
    const char *text = piece->text;
    size_t left = piece->size;
    if (piece->begins) {
        splitter->begins = true;
        splitter->is_row = piece->is_row;
    }
    while (left > 0) {
        const bool is_full = splitter->filled == splitter->block_bytes ||
                             (splitter->begins && arrlenu(splitter->starts) == SPLITTER_STARTS_MAX);
        if (is_full && put_block(splitter, block_end(splitter), error)) return -1;
        if (splitter->begins) {
            struct document_start start = {.at = (uint32_t)splitter->filled,
                                           .is_row = splitter->is_row};
            arrput(splitter->starts, start);
            splitter->begins = false;
            splitter->documents++;
        }
        const size_t room = splitter->block_bytes - splitter->filled;
        const size_t part = left < room ? left : room;
        memcpy(splitter->block + splitter->filled, text, part);
        splitter->filled += part;
        text += part;
        left -= part;
    }
    return 0;
}

int splitter_finish(struct splitter *splitter, struct error *error) {
    if (splitter->filled > 0 && put_block(splitter, splitter->filled, error)) return -1;
    return shard_writer_finish(&splitter->train.writer, error) ||
                   shard_writer_finish(&splitter->val.writer, error)
               ? -1
               : 0;
}

int splitter_publish(struct splitter *splitter, struct error *error) {
    return shard_writer_publish(&splitter->train.writer, error) ||
                   shard_writer_publish(&splitter->val.writer, error)
               ? -1
               : 0;
}
