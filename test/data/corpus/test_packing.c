/* Sequences of whole rows: what the loader makes of random sets of shards. */
#include "data/corpus/packing.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/corpus/loader.h"
#include "data/util/random.h"

static struct error error;

enum { SHARDS_MAX = 3, TOKENS_MAX = 4000, LENGTH_MAX = 200, VOCABULARY = SHARDS_MAX * TOKENS_MAX };

/* Rows of a set, as they were put into it. */
struct row {
    int first, count; /* tokens; token t of the set is t */
    bool is_last;     /* of its shard */
};

struct set {
    struct tokens tokens;
    struct row *rows; /* stb_ds array */
    uint8_t marks[VOCABULARY];
};

static uint64_t draw(uint64_t trial, uint64_t *counter, uint64_t below) {
    return random_bits(trial, 77, (*counter)++) % below;
}

/* Adds a shard of rows. shared: the token after a row counts, and begins the next one. */
static void add_shard(struct set *set, int begin, int count, uint64_t trial, uint64_t *counter,
                      int longest, bool shared) {
    struct tokens one;
    char name[32];
    int32_t *owned = malloc((size_t)count * sizeof *owned);
    uint8_t *marks = calloc((size_t)count, 1);
    for (int t = 0; t < count; t++) owned[t] = begin + t;
    for (int at = 0; at < count;) {
        int length = 1 + (int)draw(trial, counter, (uint64_t)longest);
        if (at + length > count) length = count - at;
        const int prompt = (int)draw(trial, counter, (uint64_t)length);
        marks[at] |= TOKEN_BEGINS;
        for (int t = 1; t < length; t++)
            if (t >= prompt && draw(trial, counter, 8)) marks[at + t] |= TOKEN_COUNTS;
        if (shared && at + length < count) marks[at + length] |= TOKEN_COUNTS;
        arrput(set->rows, ((struct row){begin + at, length, at + length == count}));
        at += length;
    }
    marks[count - 1] |= TOKEN_COUNTS;
    memcpy(set->marks + begin, marks, (size_t)count);
    snprintf(name, sizeof name, "shard %d", begin);
    cr_assert_eq(tokens_from_memory_marked(&one, owned, marks, (uint64_t)count, name, &error), 0);
    arrput(set->tokens.shards, one.shards[0]);
    set->tokens.count += (uint64_t)count;
    arrfree(one.shards);
    free(marks);
}

static struct set *made(uint64_t trial) {
    struct set *set = calloc(1, sizeof *set);
    uint64_t counter = 0;
    const int shards = 1 + (int)draw(trial, &counter, SHARDS_MAX);
    const int longest = 2 + (int)draw(trial, &counter, trial % 4 == 0 ? 200 : 60);
    const bool shared = draw(trial, &counter, 2);
    for (int i = 0, begin = 0, count; i < shards; i++, begin += count) {
        count = 2 + (int)draw(trial, &counter, TOKENS_MAX - 2);
        add_shard(set, begin, count, trial, &counter, longest, shared);
    }
    return set;
}

static void free_set(struct set *set) {
    tokens_close(&set->tokens);
    arrfree(set->rows);
    free(set);
}

static struct loader opened(const struct set *set, int seq_len, bool shuffle) {
    struct loader loader;
    const struct loader_options options = {
        .seq_len = seq_len, .seed = 3, .shuffle = shuffle, .vocab_size = VOCABULARY, .whole = true};
    cr_assert_eq(loader_open(&loader, &set->tokens, &options, &error), 0, "%s", error.text);
    return loader;
}

/* Lengths of 77 tokens, and of odd, even, tiny and large ones. */
static int length_of(uint64_t trial) {
    static const int lengths[] = {77, 1, 2, 3, 16, 31, 64, 127, LENGTH_MAX};
    return lengths[trial % (sizeof lengths / sizeof *lengths)];
}

static bool counts(const struct set *set, int token) {
    return set->marks[token] & TOKEN_COUNTS;
}

/* Returns the number of rows of a sequence that a row takes: up to its last target that counts. */
static int rows_needed(const struct set *set, const struct row *row) {
    int last = row->first + row->count - (row->is_last ? 1 : 0);
    while (last > row->first && !counts(set, last)) last--;
    return last - row->first;
}

struct read {
    int32_t tokens[LENGTH_MAX], targets[LENGTH_MAX], keys[LENGTH_MAX], positions[LENGTH_MAX];
};

static uint64_t read_sample(const struct loader *loader, uint64_t sample, struct read *read) {
    struct loader_arrays arrays = {.tokens = read->tokens,
                                   .targets = read->targets,
                                   .first_keys = read->keys,
                                   .positions = read->positions};
    cr_assert_eq(loader_batch(loader, &arrays, sample, 1, &error), 0, "%s", error.text);
    cr_assert_eq(arrays.counted, loader_target_count(loader, sample, 1));
    return arrays.counted;
}

/* Each target that counts is read once an epoch, with the token before it as input and with all of
 * its row before it as context, or what fits of the row's part. Nothing else is a target. */
Test(packing, an_epoch_has_each_row_once_and_whole) {
    for (uint64_t trial = 0; trial < 120; trial++) {
        struct set *set = made(trial);
        const int seq_len = length_of(trial);
        struct loader loader = opened(set, seq_len, trial % 2);
        static int row_of[VOCABULARY], seen[VOCABULARY];
        static struct read read;
        memset(seen, 0, sizeof seen);
        for (ptrdiff_t i = 0; i < arrlen(set->rows); i++)
            for (int t = 0; t < set->rows[i].count; t++) row_of[set->rows[i].first + t] = (int)i;
        for (uint64_t s = 0; s < loader.sequence_count; s++) {
            const uint64_t epoch = 5 * loader.sequence_count;
            read_sample(&loader, epoch + s, &read);
            for (int t = 0; t < seq_len; t++) {
                const int input = read.tokens[t], key = read.keys[t];
                const struct row *row = &set->rows[row_of[input]];
                cr_assert(key >= 0 && key <= t && read.positions[t] == t - key);
                if (read.targets[t] < 0) continue;
                cr_assert_eq(read.targets[t], input + 1);
                cr_assert(counts(set, input + 1));
                seen[input + 1]++;
                const int depth = input - row->first;
                const bool fits = rows_needed(set, row) <= seq_len;
                cr_assert_eq(t - key, fits ? depth : depth % seq_len, "trial %d", (int)trial);
                for (int k = key; k <= t; k++) cr_assert_eq(read.tokens[k], input - (t - k));
            }
        }
        uint64_t documents = 0, cut = 0;
        for (ptrdiff_t i = 0; i < arrlen(set->rows); i++) {
            const struct row *row = &set->rows[i];
            const int rows = rows_needed(set, row);
            documents += rows > 0;
            cut += rows > seq_len;
            for (int t = row->first + 1; t <= row->first + rows; t++)
                cr_assert_eq(seen[t], counts(set, t), "trial %d, token %d", (int)trial, t);
        }
        cr_assert(loader.packing.cut == cut && loader.packing.documents == documents);
        loader_close(&loader);
        free_set(set);
    }
}

/* Rows behind the last document repeat a token, have no target, and attend to themselves alone. No
 * earlier row attends to them, since attention is causal. */
Test(packing, what_is_left_of_a_sequence_is_padding) {
    for (uint64_t trial = 0; trial < 40; trial++) {
        struct set *set = made(trial);
        const int seq_len = length_of(trial);
        struct loader loader = opened(set, seq_len, false);
        uint64_t padding = 0;
        struct read read;
        for (uint64_t s = 0; s < loader.sequence_count; s++) {
            int used = 0;
            read_sample(&loader, s, &read);
            for (struct span span = loader_first_span(&loader, s); span.length > 0;
                 span = loader_next_span(&loader, span)) {
                cr_assert_eq(read.keys[used], used);
                used += (int)span.length;
            }
            cr_assert_leq(used, seq_len);
            padding += (uint64_t)(seq_len - used);
            for (int t = used; t < seq_len; t++)
                cr_assert(read.tokens[t] == read.tokens[used] && read.targets[t] == -1 &&
                          read.keys[t] == t && read.positions[t] == 0);
        }
        const double all = (double)loader.sequence_count * seq_len;
        cr_assert_float_eq(loader_padding(&loader), (double)padding / all, 1e-12);
        loader_close(&loader);
        free_set(set);
    }
}

static int by_length(const void *a, const void *b) {
    return *(const int *)b - *(const int *)a;
}

/* Returns the number of sequences that best fit decreasing, as written in textbooks, gives. */
static uint64_t best_fit_decreasing(int *rows, int count, int seq_len) {
    int *left = NULL; /* stb_ds array */
    qsort(rows, (size_t)count, sizeof *rows, by_length);
    for (int i = 0; i < count; i++) {
        ptrdiff_t best = -1;
        for (ptrdiff_t s = 0; s < arrlen(left); s++)
            if (left[s] >= rows[i] && (best < 0 || left[s] < left[best])) best = s;
        if (best < 0) {
            arrput(left, seq_len);
            best = arrlen(left) - 1;
        }
        left[best] -= rows[i];
    }
    const uint64_t sequences = arrlenu(left);
    arrfree(left);
    return sequences;
}

Test(packing, takes_as_many_sequences_as_best_fit_decreasing) {
    for (uint64_t trial = 0; trial < 60; trial++) {
        struct set *set = made(trial);
        const int seq_len = length_of(trial);
        struct loader loader = opened(set, seq_len, false);
        uint64_t expected = 0;
        int *rows = NULL; /* stb_ds array */
        for (ptrdiff_t i = 0; i < arrlen(set->rows); i++) {
            const struct row *row = &set->rows[i];
            for (int begin = row->first, left = rows_needed(set, row), part; left > 0;
                 left -= part, begin += part) {
                bool any = false;
                part = left < seq_len ? left : seq_len;
                for (int t = begin + 1; t <= begin + part; t++) any = any || counts(set, t);
                if (any) arrput(rows, part);
            }
            if (!row->is_last) continue;
            expected += best_fit_decreasing(rows, (int)arrlen(rows), seq_len);
            arrsetlen(rows, 0);
        }
        cr_assert_eq(loader.sequence_count, expected, "trial %d: %d, not %d", (int)trial,
                     (int)loader.sequence_count, (int)expected);
        arrfree(rows);
        loader_close(&loader);
        free_set(set);
    }
}

/* Samples depend on nothing but their number, so neither ranks nor a resumed run change them. */
Test(packing, samples_are_the_same_in_any_batch_and_after_opening_again) {
    for (uint64_t trial = 0; trial < 20; trial++) {
        struct set *set = made(trial), *twin = made(trial);
        const int seq_len = length_of(trial);
        struct loader loader = opened(set, seq_len, true), other = opened(twin, seq_len, true);
        enum { SAMPLES = 24 };
        static int32_t tokens[SAMPLES * LENGTH_MAX], targets[SAMPLES * LENGTH_MAX];
        struct loader_arrays arrays = {.tokens = tokens, .targets = targets};
        const size_t bytes = (size_t)seq_len * sizeof *tokens;
        cr_assert_eq(loader_batch(&loader, &arrays, 1000, SAMPLES, &error), 0);
        for (int i = SAMPLES - 1; i >= 0; i--) {
            static struct read read;
            read_sample(&other, 1000 + (uint64_t)i, &read);
            cr_assert_eq(memcmp(read.tokens, tokens + i * seq_len, bytes), 0);
            cr_assert_eq(memcmp(read.targets, targets + i * seq_len, bytes), 0);
        }
        loader_close(&loader);
        loader_close(&other);
        free_set(set);
        free_set(twin);
    }
}

/* Shuffled, the first tenth of the sequences has about as many rows as any other, though the first
 * ones that are packed have the longest. */
Test(packing, the_first_sequences_are_like_all) {
    struct tokens tokens;
    enum { ROWS = 4000, LENGTH = 128 };
    static int32_t *owned;
    static uint8_t marks[ROWS * 64];
    int size = 0;
    owned = calloc(ROWS * 64, sizeof *owned);
    for (uint64_t i = 0; i < ROWS; i++) {
        const int count = 4 + (int)(random_bits(1, 2, i) % 60);
        for (int t = 0; t < count; t++) marks[size + t] = t ? TOKEN_COUNTS : TOKEN_BEGINS;
        size += count;
    }
    cr_assert_eq(tokens_from_memory_marked(&tokens, owned, marks, (uint64_t)size, "rows", &error),
                 0);
    struct set set = {.tokens = tokens};
    struct loader loader = opened(&set, LENGTH, true);
    double documents[2] = {0};
    for (uint64_t s = 0; s < loader.sequence_count; s++) {
        for (struct span span = loader_first_span(&loader, s); span.length > 0;
             span = loader_next_span(&loader, span)) {
            documents[0]++;
            documents[1] += s < loader.sequence_count / 10;
        }
    }
    const double all = documents[0] / (double)loader.sequence_count;
    const double first = documents[1] / (double)(loader.sequence_count / 10);
    cr_expect_float_eq(first / all, 1, 0.1, "%g rows, %g of all", first, all);
    cr_expect_lt(loader_padding(&loader), 0.01);
    loader_close(&loader);
    tokens_close(&tokens);
}

/* Shards without marks are cut beside shards of rows, and few rows need not fill a sequence. */
Test(packing, sets_may_be_mixed_and_small) {
    int32_t *owned = calloc(50, sizeof *owned);
    struct set set = {0};
    struct tokens text;
    uint64_t counter = 0;
    struct read read;
    add_shard(&set, 0, 8, 1, &counter, 7, false);
    struct loader loader = opened(&set, LENGTH_MAX, false);
    cr_expect_eq(loader.sequence_count, 1);
    loader_close(&loader);
    cr_assert_eq(tokens_from_memory(&text, owned, 50, "text", &error), 0);
    arrput(set.tokens.shards, text.shards[0]);
    arrfree(text.shards);
    loader = opened(&set, 20, false);
    cr_assert_eq(loader.sequence_count, 1 + 3);
    for (uint64_t s = 1; s < 4; s++) {
        const uint64_t counted = read_sample(&loader, s, &read);
        cr_expect(counted == 20 || counted == 9, "%d", (int)counted);
    }
    loader_close(&loader);
    arrfree(set.rows);
    tokens_close(&set.tokens);
}

/* Rows of which nothing counts are no error beside others, and one by themselves. */
Test(packing, rows_without_targets_are_left_out) {
    enum { COUNT = 30 };
    uint8_t marks[COUNT] = {0};
    struct loader loader;
    struct tokens tokens;
    const struct loader_options options = {.seq_len = 16, .vocab_size = 2, .whole = true};
    for (int i = 0; i < COUNT; i += 10) marks[i] = TOKEN_BEGINS;
    marks[15] |= TOKEN_COUNTS;
    cr_assert_eq(tokens_from_memory_marked(&tokens, calloc(COUNT, 4), marks, COUNT, "rows", &error),
                 0);
    cr_assert_eq(loader_open(&loader, &tokens, &options, &error), 0, "%s", error.text);
    cr_expect(loader.sequence_count == 1 && packing_units(&loader.packing) == 1);
    cr_expect_eq(loader.packing.rows, 5);
    loader_close(&loader);
    ((uint8_t *)tokens.shards[0].mask.bits)[1] = 0;
    cr_expect_eq(loader_open(&loader, &tokens, &options, &error), -1);
    cr_expect_not_null(strstr(error.text, "rows: no token counts in the loss"), "%s", error.text);
    tokens_close(&tokens);
}
