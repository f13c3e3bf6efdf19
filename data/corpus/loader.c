#include "data/corpus/loader.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/min_max.h"
#include "data/util/random.h"

/* True if any sequence has a target that counts; usually the first one does. */
static bool any_counts(const struct loader *loader) {
    for (uint64_t i = 0; i < loader->sequence_count; i++)
        if (loader_target_count(loader, i, 1) > 0) return true;
    return false;
}

int loader_open(struct loader *loader, const struct tokens *tokens,
                const struct loader_options *options, struct error *error) {
    assert(options->seq_len >= 1 && options->vocab_size >= 1);
    memset(loader, 0, sizeof *loader);
    loader->tokens = tokens;
    loader->options = *options;
    if (options->pairs) {
        const struct pairs_options pairs = {(uint32_t)options->seq_len, (uint32_t)options->longest};
        if (pairs_open(&loader->pairs, tokens, &pairs, error)) return -1;
        loader->sequence_count = arrlenu(loader->pairs.first) - 1;
        return 0;
    }
    uint64_t longest = 0;
    for (size_t i = 0; i < arrlenu(tokens->shards); i++) {
        uint64_t count = tokens->shards[i].count;
        if (count > longest) longest = count;
        arrput(loader->first_sequence, loader->sequence_count);
        if (count > 1) loader->sequence_count += (count - 2) / (uint64_t)options->seq_len + 1;
    }
    bool enough = longest > (uint64_t)options->seq_len;
    if (enough && any_counts(loader)) return 0;
    loader_close(loader);
    if (enough)
        return fail(error, "%.600s%s: no token counts in the loss\nuse other rows",
                    tokens->shards[0].name, arrlenu(tokens->shards) > 1 ? " and the others" : "");
    return fail(error,
                "too few tokens for one sequence in %.600s%s: %" PRIu64 " there, %" PRIu64
                " needed (data.seq_len + 1)\nuse more text or a smaller data.seq_len",
                arrlenu(tokens->shards) ? tokens->shards[0].name : "an empty set",
                arrlenu(tokens->shards) > 1 ? " and the other shards (the longest counts)" : "",
                longest, (uint64_t)options->seq_len + 1);
}

void loader_close(struct loader *loader) {
    arrfree(loader->first_sequence);
    pairs_close(&loader->pairs);
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

/* A sample in its shard. */
struct sample {
    const struct token_shard *shard;
    uint64_t start; /* index of its first token */
    size_t length;  /* targets; fewer than seq_len at the end of a shard */
};

static struct sample find_sample(const struct loader *loader, uint64_t sample) {
    const uint64_t seq_len = (uint64_t)loader->options.seq_len;
    uint64_t sequence = sequence_of_sample(loader, sample);
    size_t number = shard_of_sequence(loader, sequence);
    const struct token_shard *shard = &loader->tokens->shards[number];
    uint64_t start = (sequence - loader->first_sequence[number]) * seq_len;
    uint64_t left = shard->count - 1 - start;
    return (struct sample){shard, start, (size_t)MIN(left, seq_len)};
}

static uint64_t count_targets(const struct sample *sample) {
    return token_mask_counted(&sample->shard->mask, sample->start + 1, sample->length);
}

/* Reads the tokens of a sample, and the token after each. */
static int read_tokens(const struct loader *loader, const struct sample *sample, int32_t *tokens,
                       int32_t *targets, struct error *error) {
    const struct token_shard *shard = sample->shard;
    const int vocab_size = loader->options.vocab_size;
    const size_t length = sample->length;
    if (token_shard_read(shard, tokens, sample->start, length, error) ||
        token_shard_read(shard, targets + length - 1, sample->start + length, 1, error))
        return -1;
    memcpy(targets, tokens + 1, (length - 1) * sizeof *targets);
    uint32_t any_outside = outside(targets[length - 1], vocab_size);
    for (size_t t = 0; t < length; t++) any_outside |= outside(tokens[t], vocab_size);
    if (any_outside >> 31) return fail_outside(shard, sample->start, vocab_size, error);
    return 0;
}

/* Fills the sequence up with its last token, and masks targets. */
static void mask_targets(const struct loader *loader, const struct sample *sample, int32_t *tokens,
                         int32_t *targets) {
    const struct token_mask *mask = &sample->shard->mask;
    const int32_t last = targets[sample->length - 1];
    for (size_t t = 0; mask->bits && t < sample->length; t++)
        if (!token_mask_in_loss(mask, sample->start + 1 + t)) targets[t] = -1;
    for (size_t t = sample->length; t < (size_t)loader->options.seq_len; t++) {
        tokens[t] = last;
        targets[t] = -1;
    }
}

/* Writes the first keys and positions of a sample, from array element `at` on. */
static void isolate(const struct loader *loader, const struct sample *sample,
                    const struct loader_arrays *arrays, size_t at) {
    const struct token_mask *mask = &sample->shard->mask;
    const int32_t seq_len = (int32_t)loader->options.seq_len;
    for (int32_t t = 0, begin = 0; t < seq_len; t++) {
        if ((size_t)t <= sample->length && token_mask_begins(mask, sample->start + (uint64_t)t))
            begin = t;
        if (arrays->positions) arrays->positions[at + (size_t)t] = t - begin;
        arrays->first_keys[at + (size_t)t] = begin;
    }
}

/* Writes rows [begin, end) of the batch as rows 0 and following of a document, from row
 * sequence_begin of their sequence on. */
static void isolate_document(const struct loader_arrays *arrays, int32_t begin, int32_t end,
                             int32_t sequence_begin) {
    for (int32_t row = begin; row < end; row++) {
        if (arrays->positions) arrays->positions[row] = row - begin;
        arrays->first_keys[row] = begin - sequence_begin;
    }
}

/* Reads a document of a pair into the rows from `begin` on. */
static int read_document(const struct loader *loader, const struct loader_arrays *arrays,
                         const struct pair *pair, int side, int32_t begin, struct error *error) {
    const struct sample sample = {&loader->tokens->shards[pair->shard], pair->begin[side],
                                  pair->rows[side]};
    int32_t *targets = arrays->targets + begin;
    const bool prompt = loader->options.prompts && side == 0;
    if (read_tokens(loader, &sample, arrays->tokens + begin, targets, error)) return -1;
    for (uint32_t t = 0; t < pair->rows[side]; t++)
        if (!(prompt && t < pair->answer[side]) &&
            !token_mask_in_loss(&sample.shard->mask, sample.start + 1 + t))
            targets[t] = -1;
    return 0;
}

/* Reads the pairs of a sequence into the rows from sequence_begin on. Further rows repeat the last
 * token, each as a document. */
static int read_pairs(const struct loader *loader, struct loader_arrays *arrays, uint64_t sample,
                      int32_t sequence_begin, struct error *error) {
    const uint64_t sequence = sequence_of_sample(loader, sample);
    const int32_t sequence_end = sequence_begin + loader->options.seq_len;
    int32_t end = sequence_begin;
    for (uint64_t i = loader->pairs.first[sequence]; i < loader->pairs.first[sequence + 1]; i++) {
        const struct pair *pair = &loader->pairs.list[i];
        struct loader_pair *to = &arrays->pairs[arrays->counted++];
        *to = (struct loader_pair){.undesirable = pair->undesirable, .index = i};
        if (loader->pairs.reference)
            memcpy(to->reference, loader->pairs.reference + PAIR_SIDES * i, sizeof to->reference);
        for (int side = 0; side < PAIR_SIDES; side++) {
            to->begin[side] = end;
            to->answer[side] = end + (int32_t)pair->answer[side];
            to->end[side] = end + (int32_t)pair->rows[side];
            if (read_document(loader, arrays, pair, side, end, error)) return -1;
            isolate_document(arrays, end, to->end[side], sequence_begin);
            end = to->end[side];
        }
    }
    for (int32_t row = end; row < sequence_end; row++) {
        arrays->tokens[row] = arrays->tokens[end - 1];
        arrays->targets[row] = -1;
        isolate_document(arrays, row, row + 1, sequence_begin); /* their positions exist */
    }
    return 0;
}

static int read_teacher(const struct loader *loader, const struct sample *sample,
                        const struct loader_arrays *arrays, size_t at, struct error *error) {
    const size_t first = at * loader->teacher->header.top;
    return teacher_read(loader->teacher, (size_t)(sample->shard - loader->tokens->shards),
                        sample->start, sample->length, arrays->teacher_tokens + first,
                        arrays->teacher_logits + first, error);
}

int loader_batch(const struct loader *loader, struct loader_arrays *arrays, uint64_t first_sample,
                 int count, struct error *error) {
    assert(arrays->first_keys || !(arrays->positions || loader->options.pairs));
    arrays->counted = 0;
    for (int row = 0; row < count; row++) {
        if (loader->options.pairs) {
            if (read_pairs(loader, arrays, first_sample + (uint64_t)row,
                           row * loader->options.seq_len, error))
                return -1;
            continue;
        }
        const struct sample sample = find_sample(loader, first_sample + (uint64_t)row);
        size_t at = (size_t)row * (size_t)loader->options.seq_len;
        int32_t *tokens = arrays->tokens + at, *targets = arrays->targets + at;
        if (read_tokens(loader, &sample, tokens, targets, error)) return -1;
        mask_targets(loader, &sample, tokens, targets);
        if (arrays->first_keys) isolate(loader, &sample, arrays, at);
        if (arrays->teacher_tokens && read_teacher(loader, &sample, arrays, at, error)) return -1;
        arrays->counted += count_targets(&sample);
    }
    return 0;
}

uint64_t loader_target_count(const struct loader *loader, uint64_t first_sample, uint64_t count) {
    uint64_t counted = 0;
    for (uint64_t i = first_sample; i < first_sample + count; i++) {
        if (loader->options.pairs) {
            const uint64_t sequence = sequence_of_sample(loader, i);
            counted += loader->pairs.first[sequence + 1] - loader->pairs.first[sequence];
            continue;
        }
        const struct sample sample = find_sample(loader, i);
        counted += count_targets(&sample);
    }
    return counted;
}

bool loader_has_starts(const struct loader *loader) {
    for (size_t i = 0; i < arrlenu(loader->tokens->shards); i++)
        if (token_mask_has_starts(&loader->tokens->shards[i].mask)) return true;
    return false;
}

/* A sequence may end with the last token of a document as its last target, and the next one begins
 * with the same token. */
static uint64_t cut_documents(const struct token_shard *shard, uint64_t seq_len) {
    const struct token_mask *mask = &shard->mask;
    uint64_t cut = 0, begun = token_mask_begun(mask, 0, 1), last = 0;
    for (uint64_t border = seq_len; border + 1 < shard->count; border += seq_len) {
        begun += token_mask_begun(mask, border - seq_len + 1, seq_len);
        if (token_mask_begins(mask, border) || token_mask_begins(mask, border + 1)) continue;
        cut += begun != last; /* a document may be cut several times */
        last = begun;
    }
    return cut;
}

uint64_t loader_cut_documents(const struct loader *loader, uint64_t *documents) {
    uint64_t cut = 0;
    *documents = 0;
    if (loader->options.pairs) return 0;
    for (size_t i = 0; i < arrlenu(loader->tokens->shards); i++) {
        const struct token_shard *shard = &loader->tokens->shards[i];
        if (!token_mask_has_starts(&shard->mask) || shard->count < 2) continue;
        *documents += token_mask_begun(&shard->mask, 0, shard->count - 1);
        cut += cut_documents(shard, (uint64_t)loader->options.seq_len);
    }
    return cut;
}

uint64_t loader_tail_tokens(const struct loader *loader) {
    uint64_t tokens = 0;
    if (loader->options.pairs) return 0;
    for (size_t i = 0; i < arrlenu(loader->tokens->shards); i++) {
        const uint64_t count = loader->tokens->shards[i].count;
        if (count > 0) tokens += (count - 1) % (uint64_t)loader->options.seq_len;
    }
    return tokens;
}
