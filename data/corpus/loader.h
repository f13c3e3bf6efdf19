/* Batches as a function of a sample number, so that the loader has no state to save or restore.
 *
 * Each shard is cut into sequences. Sequence i begins at token i * seq_len and has seq_len + 1
 * tokens; the last one is only a target. The last sequence of a shard may have fewer tokens: it is
 * filled up with its last token, and the targets added do not count. A shard of n > 0 tokens
 * therefore holds (n - 1) / seq_len sequences, rounded up. Sequences never span shards, and they
 * are numbered through all shards in order.
 *
 * Sample k, counted over the whole training run, belongs to epoch k / n, where n is the number of
 * sequences. It is sequence random_permute(seed, epoch, k % n, n), so each epoch shows each
 * sequence once, in its own order. Without shuffling it is sequence k % n.
 *
 * For preference tuning, sequences consist of pairs of documents instead (data/corpus/pairs.h), and
 * what is counted are pairs. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "data/corpus/pairs.h"
#include "data/corpus/teacher_logits.h"
#include "data/corpus/tokens.h"
#include "data/util/error.h"

struct loader_options {
    int seq_len; /* >= 1 */
    uint64_t seed;
    bool shuffle;
    int vocab_size; /* every token must be smaller */
    bool pairs;     /* sequences of pairs */
    int longest;    /* with pairs: rows of a document at most, >= 1 */
    bool prompts;   /* with pairs: the targets of the chosen document's prompt are not ignored */
};

struct loader {
    const struct tokens *tokens; /* must outlive the loader */
    struct loader_options options;
    uint64_t sequence_count;  /* n above, >= 1 */
    uint64_t *first_sequence; /* stb_ds array: number of each shard's first sequence */
    struct pairs pairs;       /* with options.pairs */

    const struct teacher_logits *teacher; /* optional, of these tokens; set after loader_open */
};

/* Fails if no shard is long enough for one whole sequence, or if no target counts in the loss; with
 * pairs, as pairs_open does. */
int loader_open(struct loader *loader, const struct tokens *tokens,
                const struct loader_options *options, struct error *error);
void loader_close(struct loader *loader);

/* A pair in a batch: rows of it, and the index of the pair. */
struct loader_pair {
    int32_t begin[PAIR_SIDES], answer[PAIR_SIDES], end[PAIR_SIDES];
    bool undesirable;
    uint64_t index;
    float reference[PAIR_SIDES]; /* 0 if they are not known */
};

/* Arrays that a batch is read into, each [count, seq_len]. */
struct loader_arrays {
    int32_t *tokens;
    int32_t *targets; /* the token after each, or -1 if that does not count in the loss */
    /* Optional: in its sequence, the index of the first token that token t may depend on. It is the
     * first one of the document, or of the sequence if the document began before it. */
    int32_t *first_keys;
    int32_t *positions;        /* optional: t minus the first token of the document */
    uint64_t counted;          /* set by loader_batch: targets that count in the loss, or pairs */
    struct loader_pair *pairs; /* with pairs: [counted], at most half as many as rows */

    /* Optional [count, seq_len, k], of loader->teacher; undefined behind the end of a shard. */
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

/* Returns how many of the documents that masks mark are divided between sequences; *documents is
 * the number of all. Both are 0 with pairs. */
uint64_t loader_cut_documents(const struct loader *loader, uint64_t *documents);

/* Returns the number of tokens at the ends of shards that are in sequences filled up; 0 with
 * pairs. */
uint64_t loader_tail_tokens(const struct loader *loader);
