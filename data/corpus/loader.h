/* Batches as a function of a sample number: nothing to save, nothing to rewind.
 *
 * Each shard is cut into sequences: sequence i begins at token i * seq_len and is seq_len + 1
 * tokens long, the last of them being only a target, so a shard of n tokens holds (n - 1) / seq_len
 * of them. Sequences never span shards. The list of all of them runs through the shards in order.
 *
 * Sample k of a training run, counted over the whole run, belongs to epoch k / n, where n is the
 * number of sequences; it is sequence random_permute(seed, epoch, k % n, n), so that each epoch
 * shows each sequence once, in an order of its own. Without shuffling it is sequence k % n. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/corpus/tokens.h"

struct loader_options {
    int seq_len; /* >= 1 */
    uint64_t seed;
    bool shuffle;
    int vocab_size; /* tokens must be smaller */
};

struct loader {
    const struct tokens *tokens; /* must outlive the loader */
    struct loader_options options;
    uint64_t sequence_count;  /* n above, >= 1 */
    uint64_t *first_sequence; /* stb_ds array: the number of each shard's first sequence */
};

/* Fails when no shard is long enough for one sequence, and when no target of any counts. */
int loader_open(struct loader *loader, const struct tokens *tokens,
                const struct loader_options *options, struct error *error);
void loader_close(struct loader *loader);

/* Samples first_sample .. first_sample + count - 1 as rows of inputs and targets, both
 * [count, seq_len]; targets[t] is the token after inputs[t], or -1 if that does not count in the
 * loss. Fails when a token of these samples is not smaller than vocab_size. A pure function:
 * threads may share a loader. */
int loader_fetch(const struct loader *loader, int32_t *inputs, int32_t *targets,
                 uint64_t first_sample, int count, struct error *error);

/* How many targets of these samples count. */
uint64_t loader_counted(const struct loader *loader, uint64_t first_sample, uint64_t count);
