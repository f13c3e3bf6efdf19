#include "model/task/loglikelihood.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/collectives.h"
#include "model/pass/forward.h"

/* A batch that is being filled: shared beginnings of groups in its first rows, each inside one
 * sequence, and the rest of each text after all of them. In models with Gated DeltaNets, whose
 * states cannot be read from elsewhere, each text is a group whose beginning is all of it. */
struct packing {
    int64_t length, rows;         /* T, B T */
    int64_t first, count;         /* texts first .. first + count - 1 */
    int64_t shared_end, own_rows; /* rows of beginnings, with gaps; rows of the rest */
    bool whole;                   /* texts share nothing */
};

static struct batch_format format_of(const struct model *model) {
    return (struct batch_format){
        .batch = model->capacity.batch,
        .length = model->capacity.sequence_length,
        .arrays = BATCH_TARGETS | BATCH_FIRST_KEYS | BATCH_POSITIONS | BATCH_KEYS,
        .counted_unit = batch_counted_unit(model->be, model->capacity.rows)};
}

size_t scorer_bytes(const struct model *model) {
    const struct batch_format format = format_of(model);
    const size_t losses = (size_t)model->capacity.rows * sizeof(float);
    return batch_bytes(model->be, &format) + (model->be->device.host_memory ? losses : 0);
}

/* Runs the forward pass and computes the losses of rows whose targets count. Row first and later
 * rows attend to at most so many keys of other rows. */
static void forward(struct model *model, const struct batch_view *batch, int64_t first,
                    int64_t rows, int64_t keys_max) {
    const struct pass pass = {.model = model,
                              .kind = PASS_EVALUATE,
                              .batch = *batch,
                              .rows = model->capacity.rows,
                              .decode = {first, rows, .stride = 1, .longest = keys_max}};
    model_forward(&pass);
    model_head(&pass, &(struct head_args){.losses = model->activations.losses.data});
}

void scorer_plan(struct model *model) {
    const struct model_shape *s = &model->capacity;
    const struct batch_view batch = {.batch = s->batch,
                                     .length = s->sequence_length,
                                     .counted_unit = batch_counted_unit(model->be, s->rows)};
    forward(model, &batch, 0, s->rows, s->sequence_length);
}

int scorer_open(struct scorer *scorer, struct model *model, struct error *error) {
    const struct batch_format format = format_of(model);
    *scorer = (struct scorer){.model = model};
    scorer->losses =
        backend_host_allocate(model->be, (size_t)model->capacity.rows * sizeof *scorer->losses);
    int status = scorer->losses ? 0 : fail_memory(error, "losses");
    if (status == 0) status = batch_open(&scorer->batch, model->be, &format, error);
    if (status) scorer_close(scorer);
    return status;
}

void scorer_close(struct scorer *scorer) {
    if (!scorer->model) return;
    batch_close(&scorer->batch);
    if (scorer->losses) backend_host_release(scorer->model->be, scorer->losses);
    *scorer = (struct scorer){0};
}

/* Sets the length of each group's common beginning, less its last token, whose logits every text
 * needs. */
static void find_shared(struct scored_text *texts, int64_t count, bool whole) {
    for (int64_t i = 0; whole && i < count; i++) texts[i].shared = texts[i].count - 1;
    if (whole) return;
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

/* True if a group begins with a text. */
static bool begins_group(const struct packing *packing, const struct scored_text *texts,
                         int64_t index) {
    return packing->whole || index == packing->first ||
           texts[index - 1].group != texts[index].group;
}

/* Adds a text to the batch if it fits. */
static bool add(struct packing *packing, const struct scored_text *texts, int64_t index) {
    const struct scored_text *text = &texts[index];
    bool begins = packing->count == 0 || begins_group(packing, texts, index);
    int64_t end = packing->shared_end, own = text->count - 1 - text->shared;
    if (begins) end = begin_row(packing, end, text->shared) + text->shared;
    if (end + packing->own_rows + own > packing->rows) return false;
    packing->shared_end = end;
    packing->own_rows += own;
    packing->count++;
    return true;
}

/* Writes a beginning of a group as a text of its own. */
static void write_shared(const struct batch_view *to, const struct packing *packing,
                         const int32_t *tokens, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        to->tokens[first + i] = tokens[i];
        to->positions[first + i] = (int32_t)i;
        to->first_keys[first + i] = (int32_t)(first % packing->length);
    }
}

/* Writes the rest of a text, whose row `first` continues the shared rows from row `prefix` on. */
static void write_own(const struct batch_view *to, struct decode_keys *keys,
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
static int64_t write_batch(const struct batch_view *to, const struct packing *packing,
                           const struct scored_text *texts) {
    int64_t prefix = 0, end = 0, row = packing->shared_end, keys_max = 1;
    /* Rows of no text are copies of a text's first row, which attends to itself alone: they leave
     * the scales of quantized tensors as they are. */
    for (int64_t i = 0; i < packing->rows; i++) {
        to->tokens[i] = texts[packing->first].tokens[0];
        to->positions[i] = 0;
        to->targets[i] = -1;
        to->first_keys[i] = (int32_t)(i % packing->length);
    }
    for (int64_t i = packing->first; i < packing->first + packing->count; i++) {
        const struct scored_text *text = &texts[i];
        if (begins_group(packing, texts, i)) {
            prefix = begin_row(packing, end, text->shared);
            end = prefix + text->shared;
            write_shared(to, packing, text->tokens, prefix, text->shared);
            for (int64_t t = text->first - 1; packing->whole && t < text->shared; t++)
                to->targets[prefix + t] = text->tokens[t + 1];
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
    int64_t row = packing->shared_end, end = 0;
    for (int64_t i = packing->first; i < packing->first + packing->count; i++) {
        struct scored_text *text = &texts[i];
        if (packing->whole) row = end = begin_row(packing, end, text->shared) + text->shared;
        text->log_likelihood = 0;
        for (int64_t t = text->first - 1; t < text->count - 1; t++)
            text->log_likelihood -= (double)losses[row + t - text->shared];
        row += text->count - 1 - text->shared;
    }
}

static void run_batch(struct scorer *scorer, const struct packing *packing,
                      struct scored_text *texts) {
    struct model *model = scorer->model;
    const int64_t keys_max = write_batch(&scorer->batch.host, packing, texts);
    batch_count(&scorer->batch);
    batch_upload(&scorer->batch);
    forward(model, &scorer->batch.sent, packing->shared_end, packing->own_rows, keys_max);
    backend_download(model->be, scorer->losses, model->activations.losses.data,
                     (size_t)packing->rows * sizeof *scorer->losses);
    read_losses(packing, scorer->losses, texts);
}

/* Packs batch after batch, and runs every batch of this rank. Other ranks' results are 0. */
static int run_batches(struct scorer *scorer, struct scored_text *texts, int64_t count,
                       struct error *error) {
    const struct model *model = scorer->model;
    const struct ranks *ranks = model->be->collectives->ranks;
    struct packing packing = {.length = model->capacity.sequence_length,
                              .rows = model->capacity.rows,
                              .whole = model->shape.full_attention_interval > 0};
    int64_t batch = 0;
    find_shared(texts, count, packing.whole);
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
    return model->be->failure.text[0] ? fail(error, "%s", model->be->failure.text) : 0;
}

/* Adds up the results of all ranks, of which one is not 0. */
static int share_results(const struct ranks *ranks, struct scored_text *texts, int64_t count,
                         struct error *error) {
    size_t bytes = (size_t)count * sizeof(double);
    if (ranks->size == 1) return 0;
    double *own = malloc(bytes), *all = malloc((size_t)ranks->size * bytes);
    int status =
        ranks_agree(ranks, own && all ? 0 : fail_memory(error, "the results of all ranks"), error);
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
    const struct ranks *ranks = scorer->model->be->collectives->ranks;
    int status = run_batches(scorer, texts, count, error);
    if (ranks_agree(ranks, status == RESULT_STOPPED ? 0 : status, error)) return -1;
    if (ranks_max(ranks, status == RESULT_STOPPED)) return RESULT_STOPPED;
    return share_results(ranks, texts, count, error);
}
