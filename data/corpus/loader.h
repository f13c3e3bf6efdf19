/* Batches as a function of a sample number, so that the loader has no state to save or restore.
 *
 * A text is cut into sequences. In each shard, sequence i begins at token i * seq_len and has
 * seq_len + 1 tokens; the last one is only a target. The last sequence of a shard may have fewer
 * tokens. A shard of n > 0 tokens therefore holds (n - 1) / seq_len sequences, rounded up. Rows and
 * pairs of answers are packed whole instead (data/corpus/packing.h).
 *
 * The rest of a sequence is filled up with its first token; these targets do not count, and each
 * such row is a document by itself: a copy of the first row, which leaves the scales of quantized
 * tensors as they are. Sequences never span shards, and they are numbered through all
 * shards in order.
 *
 * Sample k, counted over the whole training run, belongs to epoch k / n, where n is the number of
 * sequences. It is sequence random_permute(seed, epoch, k % n, n), so each epoch shows each
 * sequence once, in its own order. Without shuffling it is sequence k % n. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "data/corpus/packing.h"
#include "data/corpus/teacher_logits.h"
#include "data/corpus/tokens.h"
#include "data/util/error.h"

struct loader;
struct loader_arrays;
struct preference_pair;
struct rollouts;
struct span;

/* The contents of sequences: text, unless it is pairs_loader (data/corpus/pairs.h). */
struct loader_kind {
    uint32_t sides; /* of a unit that is packed: see struct packing */
    /* Adds the units of a shard to the packing. */
    int (*add)(const struct loader *loader, struct packing *packing, uint32_t shard,
               struct error *error);
    /* Completes a span whose tokens and targets are in the arrays from element `at` on: masks
     * targets and adds to `counted`. */
    void (*put)(const struct loader *loader, const struct span *span, struct loader_arrays *arrays,
                size_t at);
    uint64_t (*count)(const struct span *span); /* returns what it adds */
};

struct loader_options {
    int seq_len; /* >= 1 */
    uint64_t seed;
    bool shuffle;
    bool shorter;                   /* a text that fills no sequence is accepted */
    int vocab_size;                 /* every token must be smaller */
    bool whole;                     /* if masks mark documents, these are packed whole */
    const struct loader_kind *kind; /* NULL: text */
    int longest;                    /* with pairs: rows of a document at most, >= 1 */
    bool prompts; /* with pairs: the targets of the chosen document's prompt are not ignored */
};

struct loader {
    const struct tokens *tokens; /* must outlive the loader */
    struct loader_options options;
    uint64_t sequence_count;  /* n above, >= 1 */
    uint64_t *first_sequence; /* stb_ds array: number of each shard's first sequence */
    struct packing packing;   /* without sequences if the text is cut */

    const struct teacher_logits *teacher; /* optional, of these tokens; set after loader_open */
    const struct rollouts *rollouts;      /* optional, of prompts (model/task/rollouts.h) */
};

/* Fails if a text has no shard that is long enough for one whole sequence (two tokens if
 * options.shorter), if no target counts in the loss, or if pairs are damaged or of two kinds. */
int loader_open(struct loader *loader, const struct tokens *tokens,
                const struct loader_options *options, struct error *error);
void loader_close(struct loader *loader);

/* True if sequences are packed with whole documents. */
static inline bool loader_is_packed(const struct loader *loader) {
    return loader->packing.first;
}

/* Tokens of a shard that follow one another in a sequence. */
struct span {
    const struct token_shard *shard;
    uint64_t start; /* index of the first token */
    size_t length;  /* rows; in a text, fewer than seq_len at the end of a shard */
    size_t piece;   /* of a packed sequence: its index in packing.pieces */
};

/* Return the first span of a sample, and the one after it, of length 0 if there is none. Spans
 * follow one another in the rows of a sequence. */
struct span loader_first_span(const struct loader *loader, uint64_t sample);
struct span loader_next_span(const struct loader *loader, struct span span);

struct span loader_span_of(const struct loader *loader, size_t piece);

/* Masks those targets of a span, from number `first` on, that do not count. */
void span_mask_targets(const struct span *span, int32_t *targets, size_t first);

/* Arrays that a batch is read into, each [count, seq_len]. */
struct loader_arrays {
    int32_t *tokens;
    int32_t *targets; /* the token after each, or -1 if that does not count in the loss */
    /* Optional: in its sequence, the index of the first token that token t may depend on. It is the
     * first one of the document, or of the sequence if the document began before it. */
    int32_t *first_keys;
    int32_t *positions; /* optional: t minus the first token of the document */
    uint64_t counted;   /* set by loader_batch: targets that count in the loss, or pairs */
    struct preference_pair *pairs; /* with pairs: [counted], at most half as many as rows */

    /* Optional [count, seq_len, k], of loader->teacher; undefined where a sequence is filled up. */
    int32_t *teacher_tokens;
    uint16_t *teacher_logits;
};

/* Reads samples first_sample .. first_sample + count - 1. Fails if a token is not smaller than
 * vocab_size. Threads may share a loader. */
int loader_batch(const struct loader *loader, struct loader_arrays *arrays, uint64_t first_sample,
                 int count, struct error *error);

/* Returns the number of targets of these samples that count in the loss, or of pairs. */
uint64_t loader_target_count(const struct loader *loader, uint64_t first_sample, uint64_t count);

/* True if a mask of a shard marks the first tokens of documents. */
bool loader_has_starts(const struct loader *loader);

/* Return the part of packed sequences that is filled up, and of a text the number of tokens at the
 * ends of shards that are in sequences filled up; 0 for the other one. */
double loader_padding(const struct loader *loader);
uint64_t loader_tail_tokens(const struct loader *loader);
