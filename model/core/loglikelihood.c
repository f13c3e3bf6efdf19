#include "model/core/loglikelihood.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/collectives.h"
#include "model/core/forward.h"

/* A batch that is being filled: shared beginnings of groups in its first rows, each inside one
 * sequence, and the rest of each text after all of them. */
struct packing {
    int64_t length, rows;         /* T, B T */
    int64_t first, count;         /* texts first .. first + count - 1 */
    int64_t shared_end, own_rows; /* rows of beginnings, with gaps; rows of the rest */
};

/* Arrays of a batch in memory for it. */
struct arrays {
    struct decode_keys *keys;                           /* [B T], from the first own row on */
    int32_t *tokens, *targets, *first_keys, *positions; /* [B T] */
};

static size_t batch_bytes(const struct gpt *gpt) {
    return (size_t)gpt->capacity.rows * (sizeof(struct decode_keys) + 4 * sizeof(int32_t));
}

static struct arrays arrays_in(void *memory, int64_t rows) {
    struct decode_keys *keys = memory;
    int32_t *tokens = (int32_t *)(keys + rows);
    return (struct arrays){keys, tokens, tokens + rows, tokens + 2 * rows, tokens + 3 * rows};
}

size_t scorer_bytes(const struct gpt *gpt) {
    bool host = gpt->be->device.host_memory;
    return batch_bytes(gpt) * (host ? 2 : 1) +
           (host ? (size_t)gpt->capacity.rows * sizeof(float) : 0);
}

/* Runs the forward pass with branches and computes the losses of row branches.first and later rows.
 */
static void forward(struct gpt *gpt, struct branches branches) {
    gpt->activations.branches = branches;
    gpt_forward(gpt);
    gpt_losses(gpt, branches.first);
    gpt->activations.branches.rows = 0;
}

/* Calls forward() with these arrays in place of the model's batch, then restores that batch. */
static void forward_with(struct gpt *gpt, const struct arrays *batch, struct branches branches) {
    struct activations *a = &gpt->activations;
    const struct activations own = *a;
    a->tokens = batch->tokens;
    a->targets = batch->targets;
    a->first_keys = batch->first_keys;
    a->positions = batch->positions;
    forward(gpt, branches);
    a->tokens = own.tokens;
    a->targets = own.targets;
    a->first_keys = own.first_keys;
    a->positions = own.positions;
}

void scorer_plan(struct gpt *gpt) {
    gpt_set_batch(gpt, gpt->capacity.batch, gpt->capacity.sequence_length);
    forward(gpt,
            (struct branches){.rows = gpt->shape.rows, .keys_max = gpt->shape.sequence_length});
}

int scorer_open(struct scorer *scorer, struct gpt *gpt, struct error *error) {
    struct backend *be = gpt->be;
    *scorer = (struct scorer){.gpt = gpt};
    scorer->host = backend_host_allocate(be, batch_bytes(gpt));
    scorer->sent = backend_allocate(be, batch_bytes(gpt));
    scorer->losses = backend_host_allocate(be, (size_t)gpt->capacity.rows * sizeof *scorer->losses);
    if (scorer->host && scorer->sent && scorer->losses) return 0;
    scorer_close(scorer);
    return fail(error, "out of memory for batches of %zu bytes", batch_bytes(gpt));
}

void scorer_close(struct scorer *scorer) {
    if (!scorer->gpt) return;
    struct backend *be = scorer->gpt->be;
    if (scorer->host) backend_host_release(be, scorer->host);
    if (scorer->sent) backend_release(be, scorer->sent);
    if (scorer->losses) backend_host_release(be, scorer->losses);
    *scorer = (struct scorer){0};
}

/* Sets the length of each group's common beginning, less its last token, whose logits every text
 * needs. */
static void find_shared(struct scored_text *texts, int64_t count) {
    for (int64_t begin = 0, end; begin < count; begin = end) {
        int64_t length = texts[begin].first - 1;
        for (end = begin; end < count && texts[end].group == texts[begin].group; end++) {
            const struct scored_text *text = &texts[end];
            int64_t same = 0, most = length < text->first - 1 ? length : text->first - 1;
            while (same < most && text->tokens[same] == texts[begin].tokens[same]) same++;
            length = same;
        }
        for (int64_t i = begin; i < end; i++) texts[i].shared = length;
    }
}

/* Returns the row where `count` rows after `end` begin so that they lie in one sequence. */
static int64_t begin_row(const struct packing *packing, int64_t end, int64_t count) {
    return end % packing->length + count > packing->length ? round_up(end, packing->length) : end;
}

/* Adds a text to the batch if it fits. */
static bool add(struct packing *packing, const struct scored_text *texts, int64_t index) {
    const struct scored_text *text = &texts[index];
    bool begins = packing->count == 0 || texts[index - 1].group != text->group;
    int64_t end = packing->shared_end, own = text->count - 1 - text->shared;
    if (begins) end = begin_row(packing, end, text->shared) + text->shared;
    if (end + packing->own_rows + own > packing->rows) return false;
    packing->shared_end = end;
    packing->own_rows += own;
    packing->count++;
    return true;
}

/* Writes a beginning of a group as a text of its own. */
static void write_shared(const struct arrays *to, const struct packing *packing,
                         const int32_t *tokens, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        to->tokens[first + i] = tokens[i];
        to->positions[first + i] = (int32_t)i;
        to->first_keys[first + i] = (int32_t)(first % packing->length);
    }
}

/* Writes the rest of a text, whose row `first` continues the shared rows from row `prefix` on. */
static void write_own(const struct arrays *to, struct decode_keys *keys,
                      const struct scored_text *text, int64_t first, int64_t prefix) {
    int64_t shared = text->shared;
    for (int64_t t = shared; t < text->count - 1; t++) {
        int64_t row = first + t - shared;
        to->tokens[row] = text->tokens[t];
        to->targets[row] = t + 1 >= text->first ? text->tokens[t + 1] : -1;
        to->positions[row] = (int32_t)t;
        *keys++ = (struct decode_keys){(int32_t)prefix, (int32_t)shared, (int32_t)first,
                                       (int32_t)(t - shared + 1)};
    }
}

/* Fills the arrays. Returns the largest number of keys of an own row. */
static int64_t write_batch(const struct arrays *to, const struct packing *packing,
                           const struct scored_text *texts) {
    int64_t prefix = 0, end = 0, row = packing->shared_end, keys_max = 1;
    for (int64_t i = 0; i < packing->rows; i++) { /* rows of no text attend to themselves */
        to->tokens[i] = to->positions[i] = 0;
        to->targets[i] = -1;
        to->first_keys[i] = (int32_t)(i % packing->length);
    }
    for (int64_t i = packing->first; i < packing->first + packing->count; i++) {
        const struct scored_text *text = &texts[i];
        if (i == packing->first || texts[i - 1].group != text->group) {
            prefix = begin_row(packing, end, text->shared);
            end = prefix + text->shared;
            write_shared(to, packing, text->tokens, prefix, text->shared);
        }
        write_own(to, to->keys + row - packing->shared_end, text, row, prefix);
        row += text->count - 1 - text->shared;
        if (text->count - 1 > keys_max) keys_max = text->count - 1;
    }
    return keys_max;
}

/* Sums the losses of each text's scored tokens, the last ones of its own rows. */
static void read_losses(const struct packing *packing, const float *losses,
                        struct scored_text *texts) {
    int64_t row = packing->shared_end;
    for (int64_t i = packing->first; i < packing->first + packing->count; i++) {
        struct scored_text *text = &texts[i];
        text->log_likelihood = 0;
        for (int64_t t = text->first - 1; t < text->count - 1; t++)
            text->log_likelihood -= (double)losses[row + t - text->shared];
        row += text->count - 1 - text->shared;
    }
}

static void run_batch(struct scorer *scorer, const struct packing *packing,
                      struct scored_text *texts) {
    struct gpt *gpt = scorer->gpt;
    const struct arrays host = arrays_in(scorer->host, packing->rows);
    const struct arrays sent = arrays_in(scorer->sent, packing->rows);
    gpt_set_batch(gpt, gpt->capacity.batch, gpt->capacity.sequence_length);
    int64_t keys_max = write_batch(&host, packing, texts);
    backend_upload(gpt->be, scorer->sent, scorer->host, batch_bytes(gpt));
    forward_with(gpt, &sent,
                 (struct branches){sent.keys, packing->shared_end, packing->own_rows, keys_max});
    backend_download(gpt->be, scorer->losses, gpt->activations.losses.data,
                     (size_t)packing->rows * sizeof *scorer->losses);
    read_losses(packing, scorer->losses, texts);
}

/* Packs batch after batch, and runs every batch of this rank. Other ranks' results are 0. */
static int run_batches(struct scorer *scorer, struct scored_text *texts, int64_t count,
                       struct error *error) {
    const struct gpt *gpt = scorer->gpt;
    const struct ranks *ranks = gpt->be->collectives->ranks;
    struct packing packing = {gpt->capacity.sequence_length, gpt->capacity.rows, 0, 0, 0, 0};
    int64_t batch = 0;
    find_shared(texts, count);
    for (int64_t i = 0; i < count; i++) texts[i].log_likelihood = 0;
    for (int64_t i = 0; i <= count; i++) {
        if (i < count && add(&packing, texts, i)) continue;
        if (scorer->stop && *scorer->stop) return RESULT_STOPPED;
        assert(packing.count > 0);
        scorer->rows_run += packing.shared_end + packing.own_rows;
        if (batch++ % ranks->size == ranks->rank) run_batch(scorer, &packing, texts);
        packing.first = i, packing.count = packing.shared_end = packing.own_rows = 0;
        if (i < count) add(&packing, texts, i);
    }
    return gpt->be->failure.text[0] ? fail(error, "%s", gpt->be->failure.text) : 0;
}

/* Adds up the results of all ranks, of which one is not 0. */
static int share_results(const struct ranks *ranks, struct scored_text *texts, int64_t count,
                         struct error *error) {
    size_t bytes = (size_t)count * sizeof(double);
    if (ranks->size == 1) return 0;
    double *own = malloc(bytes), *all = malloc((size_t)ranks->size * bytes);
    int status = ranks_agree(ranks, own && all ? 0 : fail(error, "out of memory"), error);
    for (int64_t i = 0; status == 0 && i < count; i++) own[i] = texts[i].log_likelihood;
    if (status == 0) ranks_gather(ranks, all, own, bytes);
    for (int64_t i = 0; status == 0 && i < count; i++)
        for (int rank = 0; rank < ranks->size; rank++)
            if (rank != ranks->rank) texts[i].log_likelihood += all[rank * count + i];
    free(own);
    free(all);
    return status;
}

int scorer_run(struct scorer *scorer, struct scored_text *texts, int64_t count,
               struct error *error) {
    const struct ranks *ranks = scorer->gpt->be->collectives->ranks;
    int status = run_batches(scorer, texts, count, error);
    if (ranks_agree(ranks, status == RESULT_STOPPED ? 0 : status, error)) return -1;
    if (ranks_max(ranks, status == RESULT_STOPPED)) return RESULT_STOPPED;
    return share_results(ranks, texts, count, error);
}
