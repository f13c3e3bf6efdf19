#include "data/corpus/splitter.h"

#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/tokenize/cuts.h"
#include "data/util/fraction.h"
#include "data/util/min_max.h"

int splitter_open(struct splitter *splitter, const struct tokenizer *tokenizer, double val_fraction,
                  const char *train, const char *val, uint64_t shard_tokens,
                  struct progress *progress, struct error *error) {
    *splitter = (struct splitter){.tokenizer = tokenizer,
                                  .val_fraction = val_fraction,
                                  .progress = progress,
                                  .block_bytes = SPLITTER_BLOCK_BYTES,
                                  .before = {.in_loss = true, .is_plain = true}};
    splitter->block = malloc(splitter->block_bytes);
    if (!splitter->block) return fail_memory(error, "a block of text");
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
    arrfree(splitter->marks);
    free(splitter->block);
    *splitter = (struct splitter){0};
}

/* True if the text may be divided at a mark: a document begins with it, the first one of a pair. */
static bool is_border(const struct block_mark *mark) {
    return mark->begins && !(mark->first_marks & TOKEN_REJECTED);
}

/* Returns the last border; 0 if there is none after the beginning of the block. */
static size_t last_border(const struct splitter *splitter) {
    for (size_t i = arrlenu(splitter->marks); i > 0; i--)
        if (is_border(&splitter->marks[i - 1])) return splitter->marks[i - 1].at;
    return 0;
}

/* Returns how much of a full block is written now; the rest is joined with the text that follows.
 * It is 0 if the block holds no whole pair. */
static size_t block_end(const struct splitter *splitter) {
    const size_t filled = splitter->filled, last = last_border(splitter);
    if (splitter->begins && !(splitter->first_marks & TOKEN_REJECTED)) return filled;
    if (splitter->has_pairs) return last;
    if (last > 0 && last >= filled / 2) return last;
    if (splitter->tokenizer->kind == TOKENIZER_BYTES) return filled;
    const size_t cut =
        cut_last(splitter->block, filled, 1, filled - 1, splitter->tokenizer->cuts_before);
    return cut != CUT_NONE ? cut : cut_between_characters(splitter->block, filled, filled - 1);
}

/* Returns the beginning of a document in low .. high that is nearest to `wanted`, or 0. */
static size_t nearest_beginning(const struct splitter *splitter, size_t low, size_t wanted,
                                size_t high) {
    size_t best = 0, best_distance = SIZE_MAX;
    for (size_t i = 0; i < arrlenu(splitter->marks); i++) {
        const size_t at = splitter->marks[i].at;
        const size_t distance = at > wanted ? at - wanted : wanted - at;
        if (!is_border(&splitter->marks[i]) || at < low || at > high || distance >= best_distance)
            continue;
        best = at;
        best_distance = distance;
    }
    return best;
}

/* Returns the beginning of the validation text in block[0 .. end). */
static size_t val_begin(const struct splitter *splitter, size_t end) {
    size_t val = (size_t)fraction_of(splitter->val_fraction, (int64_t)end, FRACTION_NEAREST);
    /* Training text must not become empty by rounding up. */
    if (val > 0 && val >= end) val = end - 1;
    if (val == 0) return end;
    const size_t wanted = end - val, high = wanted + val / 2;
    const size_t low = wanted > val ? wanted - val : 1;
    if (splitter->any_masked) {
        const size_t nearest = nearest_beginning(splitter, 1, wanted, end - 1);
        return nearest > 0 ? nearest : end;
    }
    const size_t best = nearest_beginning(splitter, low, wanted, high);
    if (best > 0) return best;
    if (splitter->tokenizer->kind == TOKENIZER_BYTES) return wanted;
    size_t cut = cut_last(splitter->block, end, low, wanted, splitter->tokenizer->cuts_before);
    if (cut == CUT_NONE)
        cut = cut_first(splitter->block, end, wanted, high, splitter->tokenizer->cuts_before);
    return cut != CUT_NONE ? cut : cut_between_characters(splitter->block, end, wanted);
}

static enum separator separator_of(const struct splitter *splitter,
                                   const struct splitter_side *side,
                                   const struct block_mark *mark) {
    const struct tokenizer *tokenizer = splitter->tokenizer;
    if (mark->is_rendered || mark->separator == SEPARATOR_IN_TEXT) return SEPARATOR_NONE;
    if (tokenizer->kind == TOKENIZER_BYTES)
        return side->has_text && !side->stopped && (mark->is_row || side->ends_with_row)
                   ? SEPARATOR_EMPTY_LINE
                   : SEPARATOR_NONE;
    const bool is_shared = side->stopped && tokenizer->eos == tokenizer->end_of_text;
    return is_shared && !splitter->has_pairs ? SEPARATOR_SHARED : SEPARATOR_END_OF_TEXT;
}

/* Resolves the marks of block[.. end) from the first one on, including those at `end` that belong
 * to the text before it. Returns their number. */
static size_t take_marks(struct splitter *splitter, struct splitter_side *side, size_t end,
                         size_t first) {
    size_t i = first;
    for (; i < arrlenu(splitter->marks); i++) {
        struct block_mark *mark = &splitter->marks[i];
        if (mark->at > end || (mark->at == end && mark->begins)) break;
        if (mark->begins) {
            mark->separator = (uint8_t)separator_of(splitter, side, mark);
            side->ends_with_row = mark->is_row;
        }
        side->has_text = true;
        side->stopped = mark->separator == SEPARATOR_EOS;
        splitter->before = *mark;
    }
    return i - first;
}

/* Writes block[begin .. end), with its marks from the first one on. Returns their number, or -1. */
static ptrdiff_t put_side(struct splitter *splitter, struct splitter_side *side, size_t begin,
                          size_t end, size_t first, struct error *error) {
    struct block_text text = {.block = splitter->block,
                              .begin = begin,
                              .end = end,
                              .before = splitter->before,
                              .marks_documents = splitter->any_masked,
                              .has_pairs = splitter->has_pairs};
    if (begin == end) return 0;
    if (first == arrlenu(splitter->marks) || splitter->marks[first].at > begin) {
        side->has_text = true;
        side->ends_with_row = splitter->before.is_row;
        side->stopped = false;
    }
    text.mark_count = take_marks(splitter, side, end, first);
    if (text.mark_count > 0) text.marks = splitter->marks + first;
    if (block_encoder_put(&splitter->encoder, &side->writer, &text, splitter->filled, error))
        return -1;
    return (ptrdiff_t)text.mark_count;
}

static int put_block(struct splitter *splitter, size_t end, struct error *error) {
    const size_t val = val_begin(splitter, end);
    const ptrdiff_t train = put_side(splitter, &splitter->train, 0, val, 0, error);
    if (train < 0) return -1;
    const ptrdiff_t rest = put_side(splitter, &splitter->val, val, end, (size_t)train, error);
    if (rest < 0) return -1;
    splitter->filled -= end;
    memmove(splitter->block, splitter->block + end, splitter->filled);
    if (train + rest > 0) arrdeln(splitter->marks, 0, train + rest);
    for (size_t i = 0; i < arrlenu(splitter->marks); i++) splitter->marks[i].at -= (uint32_t)end;
    splitter->progress->finished = splitter->progress->read;
    return 0;
}

/* Returns the last mark of the text so far. */
static struct block_mark last_mark(const struct splitter *splitter) {
    return arrlenu(splitter->marks) > 0 ? arrlast(splitter->marks) : splitter->before;
}

static void put_mark(struct splitter *splitter, enum separator separator, bool in_loss) {
    struct block_mark mark = {.at = (uint32_t)splitter->filled,
                              .separator = (uint8_t)separator,
                              .in_loss = in_loss,
                              .joins = separator == SEPARATOR_NONE &&
                                       splitter->is_plain == last_mark(splitter).is_plain,
                              .is_plain = splitter->is_plain,
                              .is_row = splitter->is_row && splitter->form != DOCUMENT_RENDERED,
                              .is_rendered = splitter->form == DOCUMENT_RENDERED};
    arrput(splitter->marks, mark);
}

static int grow_block(struct splitter *splitter, struct error *error) {
    char *grown = realloc(splitter->block, 2 * splitter->block_bytes);
    if (!grown) return fail_memory(error, "a block of text");
    splitter->block = grown;
    splitter->block_bytes *= 2;
    return 0;
}

/* Writes out a full block. */
static int make_room(struct splitter *splitter, struct error *error) {
    const bool is_full = splitter->filled == splitter->block_bytes,
               has_marks = splitter->begins && arrlenu(splitter->marks) >= SPLITTER_MARKS_MAX;
    const size_t end = is_full || has_marks ? block_end(splitter) : 0;
    if (end > 0) return put_block(splitter, end, error);
    return is_full ? grow_block(splitter, error) : 0;
}

/* The separator before a row with texts that do not count in the loss does not count either. */
static void begin_document(struct splitter *splitter, bool names_begin) {
    const bool is_text = splitter->form == DOCUMENT_TEXT;
    put_mark(splitter, names_begin ? SEPARATOR_IN_TEXT : SEPARATOR_NONE, is_text);
    arrlast(splitter->marks).begins = true; /* take_marks sets the separator */
    arrlast(splitter->marks).joins = false;
    arrlast(splitter->marks).first_marks =
        splitter->has_pairs ? splitter->first_marks : TOKEN_BEGINS;
    splitter->any_masked |= !is_text;
    splitter->is_open = true;
    splitter->begins = false;
    splitter->documents++;
}

/* Removes the name of a token from the end of the last text of a row, since its separator stands
 * for it. Returns false if the text does not end with it, or is nothing else. */
static bool take_end(struct splitter *splitter, int token) {
    size_t size;
    const uint8_t *name = tokenizer_bytes(splitter->tokenizer, token, &size);
    const struct block_mark mark = last_mark(splitter);
    const size_t begin = arrlenu(splitter->marks) > 0 ? mark.at + mark.begins : 0;
    if (!mark.is_row || mark.is_plain || size == 0 || splitter->filled < begin + size ||
        memcmp(splitter->block + splitter->filled - size, name, size) != 0)
        return false;
    splitter->filled -= size;
    return true;
}

/* Ends the last document, before anything is added after it. A completion ends with `eos`, and a
 * text with `stop` if the tokenizer has a separate token for the end of a text, so that a model
 * learns to stop. */
static void end_document(struct splitter *splitter) {
    const struct tokenizer *tokenizer = splitter->tokenizer;
    const bool is_text = splitter->form == DOCUMENT_TEXT,
               stops = is_text && tokenizer->stop != tokenizer->end_of_text;
    if (splitter->is_open && splitter->form != DOCUMENT_RENDERED) {
        const bool has_eos = take_end(splitter, tokenizer->eos);
        if (!has_eos && is_text) take_end(splitter, tokenizer->stop);
        if (has_eos || !is_text) put_mark(splitter, SEPARATOR_EOS, true);
        else if (stops) put_mark(splitter, SEPARATOR_STOP, true);
    }
    splitter->is_open = false;
}

/* Returns the size of the name of `end_of_text` if a row begins with it, or else 0. */
static size_t named_begin(const struct splitter *splitter, const char *text, size_t left) {
    const int token = splitter->tokenizer->end_of_text;
    size_t size;
    const uint8_t *name = tokenizer_bytes(splitter->tokenizer, token, &size);
    return splitter->is_row && splitter->form != DOCUMENT_RENDERED && !splitter->is_plain &&
                   size > 0 && left >= size && memcmp(text, name, size) == 0 &&
                   tokenizer_special(splitter->tokenizer, name, size) == token
               ? size
               : 0;
}

/* Documents are pairs if the first one is. */
static int check_pairs(struct splitter *splitter, struct error *error) {
    const bool is_pair = splitter->first_marks != 0;
    if (splitter->documents > 0 && is_pair != splitter->has_pairs)
        return fail(error, "rows of pairs and other text cannot be in one set of shards\nprepare "
                           "them apart, with another --out");
    splitter->has_pairs = is_pair;
    splitter->train.writer.has_pairs = splitter->val.writer.has_pairs = is_pair;
    return 0;
}

int splitter_put(struct splitter *splitter, const struct document_piece *piece,
                 struct error *error) {
    const char *text = piece->text;
    size_t left = piece->size;
    if (piece->begins) {
        end_document(splitter);
        splitter->begins = true;
        splitter->first_marks = piece->marks;
        splitter->is_row = piece->is_row;
        splitter->form = piece->form;
    }
    splitter->is_plain = piece->is_plain;
    /* A row may name the token before it. If that is also the token that ends a row, it is left to
     * the separator, which may be the end of the row before. */
    const bool is_shared = splitter->tokenizer->eos == splitter->tokenizer->end_of_text;
    size_t named =
        splitter->begins && (piece->begins || !is_shared) ? named_begin(splitter, text, left) : 0;
    if (is_shared) text += named, left -= named, named = 0;
    while (left > 0) {
        if (make_room(splitter, error)) return -1;
        if (splitter->begins && check_pairs(splitter, error)) return -1;
        if (splitter->begins) begin_document(splitter, named > 0);
        if (last_mark(splitter).in_loss != piece->in_loss ||
            last_mark(splitter).is_plain != piece->is_plain)
            put_mark(splitter, SEPARATOR_NONE, piece->in_loss);
        const size_t room = splitter->block_bytes - splitter->filled;
        const size_t part = MIN(left, room);
        memcpy(splitter->block + splitter->filled, text, part);
        splitter->filled += part;
        text += part;
        left -= part;
    }
    return 0;
}

int splitter_finish(struct splitter *splitter, struct error *error) {
    end_document(splitter);
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
