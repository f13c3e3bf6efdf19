#include "data/corpus/loader.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/min_max.h"
#include "data/util/random.h"

static int add_documents(const struct loader *loader, struct packing *packing, uint32_t shard,
                         struct error *error) {
    (void)error;
    packing_add_documents(packing, &loader->tokens->shards[shard], shard);
    return 0;
}

static uint64_t count_targets(const struct span *span) {
    return token_mask_counted(&span->shard->mask, span->start + 1, span->length);
}

static void put_text(const struct loader *loader, const struct span *span,
                     struct loader_arrays *arrays, size_t at) {
    (void)loader;
    span_mask_targets(span, arrays->targets + at, 0);
    arrays->counted += count_targets(span);
}

static const struct loader_kind text_loader = {1, add_documents, put_text, count_targets};

/* True if any sequence has a target that counts; usually the first one does. */
static bool any_counts(const struct loader *loader) {
    for (uint64_t i = 0; i < loader->sequence_count; i++)
        if (loader_target_count(loader, i, 1) > 0) return true;
    return false;
}

static int fail_uncounted(const struct tokens *tokens, struct error *error) {
    return fail(error, "%.600s%s: no token counts in the loss\nuse other rows",
                tokens->shards[0].name, arrlenu(tokens->shards) > 1 ? " and the others" : "");
}

/* Packs each shard by itself. */
static int pack(struct loader *loader, struct error *error) {
    const struct loader_kind *kind = loader->options.kind;
    struct packing *packing = &loader->packing;
    packing->seq_len = (uint32_t)loader->options.seq_len;
    packing->sides = kind->sides;
    for (uint32_t i = 0; i < arrlenu(loader->tokens->shards); i++) {
        const size_t begun = arrlenu(packing->pieces);
        arrput(loader->first_sequence, arrlenu(packing->first));
        if (kind->add(loader, packing, i, error)) return -1;
        packing_fill(packing, begun);
    }
    loader->sequence_count = arrlenu(packing->first);
    if (loader->sequence_count > 0) return 0;
    return packing_has_pairs(packing) ? fail(error, "there is no pair of answers")
                                      : fail_uncounted(loader->tokens, error);
}

int loader_open(struct loader *loader, const struct tokens *tokens,
                const struct loader_options *options, struct error *error) {
    assert(options->seq_len >= 1 && options->vocab_size >= 1);
    memset(loader, 0, sizeof *loader);
    loader->tokens = tokens;
    loader->options = *options;
    if (!options->kind) loader->options.kind = &text_loader;
    if (loader->options.kind != &text_loader || (options->whole && loader_has_starts(loader))) {
        if (pack(loader, error) == 0) return 0;
        loader_close(loader);
        return -1;
    }
    uint64_t longest = 0;
    for (size_t i = 0; i < arrlenu(tokens->shards); i++) {
        uint64_t count = tokens->shards[i].count;
        if (count > longest) longest = count;
        arrput(loader->first_sequence, loader->sequence_count);
        if (count > 1) loader->sequence_count += (count - 2) / (uint64_t)options->seq_len + 1;
    }
    const uint64_t least = options->shorter ? 2 : (uint64_t)options->seq_len + 1;
    bool enough = longest >= least;
    if (enough && any_counts(loader)) return 0;
    loader_close(loader);
    if (enough) return fail_uncounted(tokens, error);
    return fail(error,
                "too few tokens for one sequence in %.600s%s: %" PRIu64 " there, %" PRIu64
                " needed%s\nuse more text or a smaller data.seq_len",
                arrlenu(tokens->shards) ? tokens->shards[0].name : "an empty set",
                arrlenu(tokens->shards) > 1 ? " and the other shards (the longest counts)" : "",
                longest, least, options->shorter ? "" : " (data.seq_len + 1)");
}

void loader_close(struct loader *loader) {
    arrfree(loader->first_sequence);
    packing_close(&loader->packing);
    loader->sequence_count = 0;
}

static uint64_t sequence_of_sample(const struct loader *loader, uint64_t sample) {
    uint64_t count = loader->sequence_count, index = sample % count;
    if (!loader->options.shuffle) return index;
    return random_permute(loader->options.seed, sample / count, index, count);
}

/* Returns the last shard whose first sequence is not after this one. A shard of one token or none
 * shares its number with the next, so taking the last one skips it. */
static size_t shard_of_sequence(const struct loader *loader, uint64_t sequence) {
    size_t low = 0, high = arrlenu(loader->first_sequence);
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (loader->first_sequence[middle] <= sequence) low = middle;
        else high = middle;
    }
    return low;
}

/* Sets the highest bit if a token is too large or negative, as in damaged shards. This form
 * vectorizes on all CPUs. */
static uint32_t outside(int32_t token, int vocab_size) {
    return ((uint32_t)vocab_size - 1 - (uint32_t)token) | (uint32_t)token;
}

static bool is_inside(int32_t token, int vocab_size) {
    return outside(token, vocab_size) >> 31 == 0;
}

static int fail_outside(const struct token_shard *shard, uint64_t start, int vocab_size,
                        struct error *error) {
    uint64_t position = start;
    int32_t token;
    if (token_shard_read(shard, &token, position, 1, error)) return -1;
    while (is_inside(token, vocab_size))
        if (token_shard_read(shard, &token, ++position, 1, error)) return -1;
    if (!is_inside(token, VOCABULARY_MAX))
        return fail(error,
                    "%.600s: token %" PRIu32 " at position %" PRIu64 " is beyond any vocabulary, "
                    "which has %d tokens at most\n"
                    "the shard is damaged: write it again with ./prepare, or copy it again",
                    shard->name, (uint32_t)token, position, VOCABULARY_MAX);
    return fail(error,
                "%.600s: token %" PRId32 " at position %" PRIu64 " is outside the vocabulary of "
                "%d\nset model.vocab_size to %" PRId32 " or more, or prepare the text with another "
                "tokenizer",
                shard->name, token, position, vocab_size, token + 1);
}

struct span loader_span_of(const struct loader *loader, size_t piece) {
    const struct packed_piece *found = &loader->packing.pieces[piece];
    return (struct span){&loader->tokens->shards[found->shard], found->begin, found->rows, piece};
}

struct span loader_first_span(const struct loader *loader, uint64_t sample) {
    const uint64_t seq_len = (uint64_t)loader->options.seq_len;
    const struct packing *packing = &loader->packing;
    uint64_t sequence = sequence_of_sample(loader, sample);
    if (packing->first) return loader_span_of(loader, packing->first[sequence]);
    size_t number = shard_of_sequence(loader, sequence);
    const struct token_shard *shard = &loader->tokens->shards[number];
    uint64_t start = (sequence - loader->first_sequence[number]) * seq_len;
    uint64_t left = shard->count - 1 - start;
    return (struct span){shard, start, (size_t)MIN(left, seq_len), 0};
}

struct span loader_next_span(const struct loader *loader, struct span span) {
    const struct packing *packing = &loader->packing;
    if (!packing->first) return (struct span){0};
    const size_t side = span.piece % packing->sides;
    if (side + 1 < packing->sides) return loader_span_of(loader, span.piece + 1);
    const uint32_t next = packing->pieces[span.piece - side].next;
    return next == PIECE_NONE ? (struct span){0} : loader_span_of(loader, next);
}

/* Reads the tokens of a span, and the token after each. */
static int read_tokens(const struct loader *loader, const struct span *span, int32_t *tokens,
                       int32_t *targets, struct error *error) {
    const struct token_shard *shard = span->shard;
    const int vocab_size = loader->options.vocab_size;
    const size_t length = span->length;
    if (token_shard_read(shard, tokens, span->start, length, error) ||
        token_shard_read(shard, targets + length - 1, span->start + length, 1, error))
        return -1;
    memcpy(targets, tokens + 1, (length - 1) * sizeof *targets);
    uint32_t any_outside = outside(targets[length - 1], vocab_size);
    for (size_t t = 0; t < length; t++) any_outside |= outside(tokens[t], vocab_size);
    if (any_outside >> 31) return fail_outside(shard, span->start, vocab_size, error);
    return 0;
}

void span_mask_targets(const struct span *span, int32_t *targets, size_t first) {
    const struct token_mask *mask = &span->shard->mask;
    for (size_t t = first; mask->bits && t < span->length; t++)
        if (!token_mask_in_loss(mask, span->start + 1 + t)) targets[t] = -1;
}

/* Writes the first keys and positions of `count` rows from array element `at` on, of the sequence
 * that begins at another one. Without a span each row is a document by itself. */
static void isolate(const struct span *span, const struct loader_arrays *arrays, size_t sequence,
                    size_t at, size_t count) {
    for (size_t t = at, begin = at; arrays->first_keys && t < at + count; t++) {
        if (!span || token_mask_begins(&span->shard->mask, span->start + t - at)) begin = t;
        if (arrays->positions) arrays->positions[t] = (int32_t)(t - begin);
        arrays->first_keys[t] = (int32_t)(begin - sequence);
    }
}

static int read_teacher(const struct loader *loader, const struct span *span,
                        const struct loader_arrays *arrays, size_t at, struct error *error) {
    const size_t first = at * loader->teacher->header.top;
    return teacher_read(loader->teacher, (size_t)(span->shard - loader->tokens->shards),
                        span->start, span->length, arrays->teacher_tokens + first,
                        arrays->teacher_logits + first, error);
}

/* Reads a sample into the rows from `at` on. */
static int read_sample(const struct loader *loader, struct loader_arrays *arrays, uint64_t sample,
                       size_t at, struct error *error) {
    const size_t end = at + (size_t)loader->options.seq_len, sequence = at;
    for (struct span span = loader_first_span(loader, sample); span.length > 0;
         span = loader_next_span(loader, span)) {
        if (read_tokens(loader, &span, arrays->tokens + at, arrays->targets + at, error)) return -1;
        loader->options.kind->put(loader, &span, arrays, at);
        isolate(&span, arrays, sequence, at, span.length);
        if (arrays->teacher_tokens && read_teacher(loader, &span, arrays, at, error)) return -1;
        at += span.length;
    }
    for (size_t t = at; t < end; t++)
        arrays->tokens[t] = arrays->tokens[sequence], arrays->targets[t] = -1;
    isolate(NULL, arrays, sequence, at, end - at);
    return 0;
}

int loader_batch(const struct loader *loader, struct loader_arrays *arrays, uint64_t first_sample,
                 int count, struct error *error) {
    assert(arrays->first_keys || !arrays->positions);
    arrays->counted = 0;
    for (int i = 0; i < count; i++)
        if (read_sample(loader, arrays, first_sample + (uint64_t)i,
                        (size_t)i * (size_t)loader->options.seq_len, error))
            return -1;
    return 0;
}

uint64_t loader_target_count(const struct loader *loader, uint64_t first_sample, uint64_t count) {
    uint64_t counted = 0;
    for (uint64_t i = first_sample; i < first_sample + count; i++)
        for (struct span span = loader_first_span(loader, i); span.length > 0;
             span = loader_next_span(loader, span))
            counted += loader->options.kind->count(&span);
    return counted;
}

bool loader_has_starts(const struct loader *loader) {
    for (size_t i = 0; i < arrlenu(loader->tokens->shards); i++)
        if (token_mask_has_starts(&loader->tokens->shards[i].mask)) return true;
    return false;
}

double loader_padding(const struct loader *loader) {
    const double rows = (double)loader->sequence_count * loader->options.seq_len;
    return loader_is_packed(loader) ? 1 - (double)loader->packing.rows / rows : 0;
}

uint64_t loader_tail_tokens(const struct loader *loader) {
    uint64_t tokens = 0;
    for (size_t i = 0; !loader_is_packed(loader) && i < arrlenu(loader->tokens->shards); i++) {
        const uint64_t count = loader->tokens->shards[i].count;
        if (count > 0) tokens += (count - 1) % (uint64_t)loader->options.seq_len;
    }
    return tokens;
}
