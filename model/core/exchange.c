#include "model/core/exchange.h"

#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/progress.h"

/* True if nothing is sent: there is only one rank, or operations are only planned. */
static bool idle(const struct exchange *exchange) {
    return !exchange || exchange->collectives->ranks->size == 1 || backend_plans(exchange->be);
}

static void wait_for(struct exchange *exchange, uint64_t ticket) {
    if (ticket == 0) return;
    double began = progress_clock();
    collectives_wait(exchange->collectives, ticket);
    exchange->waited += progress_clock() - began;
}

static bool casts_gradients(const struct exchange *exchange) {
    return exchange->wire_dtype != exchange->gradients->dtype;
}

/* Number of elements of each rank, padded so that the parts of a collective have equal lengths. */
static int64_t embedded_values(const struct exchange *exchange) {
    return round_up(exchange->embedded_rows * exchange->embedded_columns, RANKS_ALIGNMENT);
}

static int64_t embedded_tokens(const struct exchange *exchange) {
    return round_up(exchange->embedded_rows, RANKS_ALIGNMENT);
}

static void assign_memory(struct exchange *exchange, struct arena *arena) {
    int64_t count = casts_gradients(exchange) ? tensor_count(exchange->gradients) : 0;
    int64_t ranks = exchange->collectives->ranks->size;
    exchange->wire = arena_tensor(arena, exchange->wire_dtype, count, 0);
    exchange->squares =
        arena_take(arena, (size_t)(ranks * exchange->squares_count) * sizeof *exchange->squares);
    exchange->losses = arena_take(arena, (size_t)exchange->losses_count * sizeof(float));
    if (exchange->embedded_rows == 0) return;
    exchange->embedded = arena_tensor(arena, exchange->residual, ranks, embedded_values(exchange));
    exchange->tokens = arena_tensor(arena, DTYPE_F32, ranks, embedded_tokens(exchange));
}

/* Sends the embedding gradient as rows if they are less than half the bytes of the table, which is
 * also sent, earlier. */
static void choose_embedded(struct exchange *exchange, const struct config *config,
                            const struct parameter *wte) {
    int64_t rows = config->train.micro_batch_size * config->data.seq_len;
    double row = (double)(exchange->embedded_columns * (int64_t)dtype_bytes(exchange->residual)) +
                 sizeof(int32_t);
    double table = (double)wte->elements * (double)dtype_bytes(exchange->wire_dtype);
    int ranks = exchange->collectives->ranks->size;
    if (ranks > 1 && 2 * ranks * (double)rows * row < table) exchange->embedded_rows = rows;
}

/* Largest number of sums on any rank, so that all rows have the same length. With several ranks it
 * is padded to the alignment of collectives. */
static int64_t squares_count(const struct exchange *exchange) {
    const struct ranks *ranks = exchange->collectives->ranks;
    int64_t most = 0;
    for (int rank = 0; rank < ranks->size; rank++) {
        int64_t count = 0;
        struct rank_part run;
        for (ptrdiff_t i = 0; shards_run(&run, &i, &exchange->shards, ranks, rank);) {
            const struct tensor part = {NULL, exchange->gradients->dtype, 1, {run.count}};
            count += backend_squares(exchange->be, &part);
        }
        if (count > most) most = count;
    }
    return ranks->size > 1 ? round_up(most, RANKS_ALIGNMENT) : most;
}

int exchange_open(struct exchange *exchange, struct backend *be, const struct config *config,
                  const struct precision *precision, const struct parameter *list,
                  const struct masters *masters, const struct tensor *gradients,
                  struct error *error) {
    const struct ranks *ranks = be->collectives->ranks;
    bool lower = config->ranks.gradients == CONFIG_DTYPE_LOWER && ranks->size > 1;
    struct arena measure = {0};
    *exchange = (struct exchange){
        .be = be,
        .collectives = be->collectives,
        .masters = masters,
        .gradients = gradients,
        .wire_dtype = lower ? precision->compute_dtype : gradients->dtype,
        .losses_count = ranks->size > 1 ? (int64_t)ranks->size * RANKS_ALIGNMENT : 0,
        .residual = precision->residual,
        .embedded_columns = parameter_wte(list)->extent.columns,
    };
    bool frozen = parameter_wte(list)->group == GROUP_FROZEN;
    if (!frozen) choose_embedded(exchange, config, parameter_wte(list));
    /* Adapters are small: dividing their moments would save little. */
    shards_open(&exchange->shards, config, list, masters, ranks,
                config->ranks.shard == CONFIG_SHARD_OPTIMIZER && !frozen);
    exchange->squares_count = squares_count(exchange);
    size_t buckets = (size_t)arrlen(exchange->shards.buckets);
    exchange->gradient_tickets = calloc(buckets, sizeof(uint64_t));
    exchange->weight_tickets = calloc(buckets, sizeof(uint64_t));
    if (!exchange->gradient_tickets || !exchange->weight_tickets)
        return fail_memory(error, "the tickets of %zu buckets", buckets);
    if (ranks->size > 1) assign_memory(exchange, &measure);
    exchange->bytes = measure.used;
    return 0;
}

int exchange_allocate(struct exchange *exchange, struct error *error) {
    if (idle(exchange)) return 0;
    exchange->memory = backend_allocate(exchange->be, exchange->bytes);
    if (!exchange->memory)
        return fail(error,
                    "out of memory: communication buffers need %zu MiB\n"
                    "lower train.micro_batch_size or choose a smaller model",
                    exchange->bytes >> 20);
    assign_memory(exchange, &(struct arena){exchange->memory, 0, exchange->bytes});
    return 0;
}

void exchange_close(struct exchange *exchange) {
    if (!exchange->be) return;
    if (exchange->memory) {
        exchange_wait_for_weights(exchange);
        backend_release(exchange->be, exchange->memory);
    }
    shards_close(&exchange->shards);
    free(exchange->gradient_tickets);
    free(exchange->weight_tickets);
    memset(exchange, 0, sizeof *exchange);
}

/* Copies each rank's part of a bucket's elements to all ranks; data has all elements. */
static uint64_t gather_bucket(const struct exchange *exchange, const struct bucket *bucket,
                              void *data, size_t element_bytes) {
    const struct collectives *c = exchange->collectives;
    uint64_t ticket = 0;
    for (int64_t done = 0, count; done < bucket->count; done += count) {
        count = shards_sent(bucket, done, c->ranks->size);
        ticket = collectives_all_gather(c, (char *)data + (size_t)done * element_bytes,
                                        element_bytes, count);
    }
    return ticket;
}

/* Sums each rank's part of a bucket's elements over all ranks. */
static uint64_t reduce_bucket(const struct exchange *exchange, const struct bucket *bucket,
                              const struct tensor *data) {
    const struct collectives *c = exchange->collectives;
    uint64_t ticket = 0;
    for (int64_t done = 0, count; done < bucket->count; done += count) {
        count = shards_sent(bucket, done, c->ranks->size);
        struct tensor piece = tensor_range(data, done, count);
        ticket = collectives_reduce_scatter(c, piece.data, piece.dtype, count);
    }
    return ticket;
}

/* Reduces the gradients of a bucket: each rank gets the sum of its own part, or of all if the
 * optimizer is not sharded. */
static void send_gradients(struct exchange *exchange, ptrdiff_t i) {
    const struct bucket *bucket = &exchange->shards.buckets[i];
    struct tensor data = tensor_range(exchange->gradients, bucket->first, bucket->count);
    if (casts_gradients(exchange)) {
        struct tensor lower = tensor_range(&exchange->wire, bucket->first, bucket->count);
        OP(exchange->be, cast, .out = &lower, .in = &data);
        data = lower;
    }
    uint64_t ticket = reduce_bucket(exchange, bucket, &data);
    if (!exchange->shards.divided)
        ticket = gather_bucket(exchange, bucket, data.data, dtype_bytes(data.dtype));
    exchange->gradient_tickets[i] = ticket;
}

/* Returns the layer whose backward pass is followed by sending the bucket's gradients. The gradient
 * of wte is sent early if the embedding's share of it is sent later, as rows. */
static int sent_after(const struct exchange *exchange, const struct bucket *bucket) {
    bool early = bucket->embedding && exchange->embedded_rows > 0;
    return early ? exchange->shards.head : bucket->layer;
}

void exchange_gradients(struct exchange *exchange, int64_t layer) {
    if (idle(exchange)) return;
    for (ptrdiff_t i = 0; i < arrlen(exchange->shards.buckets); i++)
        if (sent_after(exchange, &exchange->shards.buckets[i]) == layer)
            send_gradients(exchange, i);
}

/* After this call, operations see the sums of a bucket in the gradients. */
static void receive_gradients(struct exchange *exchange, ptrdiff_t i) {
    const struct rank_part *own = &exchange->shards.buckets[i].own;
    uint64_t ticket = exchange->gradient_tickets[i];
    if (ticket == 0) return;
    wait_for(exchange, ticket);
    exchange->gradient_tickets[i] = 0;
    if (!casts_gradients(exchange) || own->count == 0) return;
    struct tensor sums = tensor_range(exchange->gradients, own->first, own->count);
    struct tensor lower = tensor_range(&exchange->wire, own->first, own->count);
    OP(exchange->be, cast, .out = &sums, .in = &lower);
}

void exchange_gradients_arrived(struct exchange *exchange) {
    if (idle(exchange)) return;
    for (ptrdiff_t i = 0; i < arrlen(exchange->shards.buckets); i++) receive_gradients(exchange, i);
}

struct embedding_rows exchange_embedding_rows_of(const struct exchange *exchange, int rank) {
    struct tensor row = tensor_slice(&exchange->embedded, rank, 1);
    return (struct embedding_rows){
        .dout = tensor_view(&row, exchange->embedded_rows, exchange->embedded_columns),
        .tokens = (const int32_t *)tensor_slice(&exchange->tokens, rank, 1).data,
    };
}

static uint64_t gather_rows(const struct exchange *exchange, const struct tensor *rows) {
    return collectives_all_gather(exchange->collectives, rows->data, dtype_bytes(rows->dtype),
                                  tensor_count(rows));
}

/* Tokens are copied as bits, by an operation for fp32 tensors that does no arithmetic. */
bool exchange_embedding_rows(struct exchange *exchange, const struct embedding_rows *own) {
    if (idle(exchange) || exchange->embedded_rows == 0) return false;
    struct embedding_rows slot =
        exchange_embedding_rows_of(exchange, exchange->collectives->ranks->rank);
    int64_t count = exchange->embedded_rows;
    struct tensor to = {(void *)slot.tokens, DTYPE_F32, 2, {1, count}};
    struct tensor from = {(void *)own->tokens, DTYPE_F32, 2, {1, count}};
    OP(exchange->be, copy_last_columns, .out = &slot.dout, .in = &own->dout);
    OP(exchange->be, copy_last_columns, .out = &to, .in = &from);
    gather_rows(exchange, &exchange->embedded);
    wait_for(exchange, gather_rows(exchange, &exchange->tokens));
    for (ptrdiff_t i = 0; i < arrlen(exchange->shards.buckets); i++)
        if (exchange->shards.buckets[i].embedding) receive_gradients(exchange, i);
    return true;
}

/* Sums the first `count` values of the objective over all ranks. */
static void add_ranks(struct exchange *exchange, struct step_sums *sums, int count) {
    _Static_assert(sizeof *sums / sizeof(float) <= (size_t)RANKS_ALIGNMENT,
                   "a rank's part holds all values");
    const struct collectives *c = exchange->collectives;
    const struct tensor total = {sums, DTYPE_F32, 2, {1, count}};
    struct tensor part = {exchange->losses, DTYPE_F32, 2, {1, count}};
    part.data = exchange->losses + (int64_t)c->ranks->rank * RANKS_ALIGNMENT;
    OP(exchange->be, weighted_sum, .out = &part, .a = &total, .columns = count, .alpha = 1);
    wait_for(exchange, collectives_all_gather(c, exchange->losses, sizeof *exchange->losses,
                                              exchange->losses_count));
    OP(exchange->be, clear, .data = sums, .bytes = (size_t)count * sizeof(float));
    for (int rank = 0; rank < c->ranks->size; rank++) {
        part.data = exchange->losses + (int64_t)rank * RANKS_ALIGNMENT;
        OP(exchange->be, weighted_sum, .out = &total, .a = &total, .b = &part, .columns = count,
           .alpha = 1, .beta = 1);
    }
}

void exchange_sums(struct exchange *exchange, struct step_state *state, int count) {
    float *loss = &state->loss;
    struct backend *be = exchange->be;
    const struct collectives *c = exchange->collectives;
    if (idle(exchange)) return;
    float *own = exchange->losses + (int64_t)c->ranks->rank * RANKS_ALIGNMENT;
    OP(be, clear, .data = exchange->losses,
       .bytes = (size_t)exchange->losses_count * sizeof *exchange->losses);
    OP(be, loss_sum, .total = own, .losses = loss, .count = 1);
    collectives_all_gather(c, exchange->squares, sizeof *exchange->squares,
                           c->ranks->size * exchange->squares_count);
    uint64_t ticket =
        collectives_all_gather(c, exchange->losses, sizeof *own, exchange->losses_count);
    wait_for(exchange, ticket);
    OP(be, clear, .data = loss, .bytes = sizeof *loss);
    OP(be, loss_sum, .total = loss, .losses = exchange->losses, .count = exchange->losses_count);
    if (count > 0) add_ranks(exchange, &state->sums, count);
}

static uint64_t gather(const struct exchange *exchange, const struct bucket *bucket, void *array,
                       size_t element_bytes) {
    const struct master_group *group = &exchange->masters->groups[bucket->group];
    char *first = (char *)array + (size_t)(bucket->first - group->first) * element_bytes;
    return gather_bucket(exchange, bucket, first, element_bytes);
}

/* True if operations read the fp32 master weights of a group although it has 16-bit copies: wte and
 * vectors. */
static bool reads_all(const struct exchange *exchange, const struct bucket *bucket) {
    return bucket->embedding ||
           exchange->masters->groups[bucket->group].parameter->group != GROUP_DECAYED;
}

void exchange_weights(struct exchange *exchange, const struct bucket *bucket) {
    if (!exchange->shards.divided || idle(exchange)) return;
    const struct master_group *group = &exchange->masters->groups[bucket->group];
    uint64_t *ticket = &exchange->weight_tickets[bucket - exchange->shards.buckets];
    if (group->form == MASTERS_KEPT)
        *ticket = gather(exchange, bucket, group->copy.data, dtype_bytes(group->copy.dtype));
    if (group->form != MASTERS_KEPT || reads_all(exchange, bucket))
        *ticket = gather(exchange, bucket, group->master.data, dtype_bytes(group->master.dtype));
    if (group->form == MASTERS_SPLIT && reads_all(exchange, bucket))
        *ticket = gather(exchange, bucket, group->remainder, sizeof *group->remainder);
}

void exchange_directions(struct exchange *exchange, const struct bucket *bucket,
                         const struct tensor *directions) {
    if (!exchange->shards.divided || idle(exchange)) return;
    wait_for(exchange,
             gather_bucket(exchange, bucket, directions->data, dtype_bytes(directions->dtype)));
}

void exchange_weights_arrived(struct exchange *exchange, int64_t layer) {
    if (idle(exchange)) return;
    for (ptrdiff_t i = 0; i < arrlen(exchange->shards.buckets); i++) {
        if (exchange->shards.buckets[i].layer != layer) continue;
        wait_for(exchange, exchange->weight_tickets[i]);
        exchange->weight_tickets[i] = 0;
    }
}

void exchange_wait_for_weights(struct exchange *exchange) {
    uint64_t last = 0;
    for (ptrdiff_t i = 0; i < arrlen(exchange->shards.buckets); i++) {
        if (exchange->weight_tickets[i] > last) last = exchange->weight_tickets[i];
        exchange->weight_tickets[i] = 0;
    }
    wait_for(exchange, last);
}

void exchange_masters(struct exchange *exchange) {
    uint64_t last = 0;
    exchange_wait_for_weights(exchange);
    if (!exchange->shards.divided) return;
    for (ptrdiff_t i = 0; i < arrlen(exchange->shards.buckets); i++) {
        const struct bucket *bucket = &exchange->shards.buckets[i];
        const struct master_group *group = &exchange->masters->groups[bucket->group];
        if (reads_all(exchange, bucket)) continue;
        if (group->form == MASTERS_SPLIT)
            last = gather(exchange, bucket, group->remainder, sizeof *group->remainder);
        if (group->form == MASTERS_KEPT)
            last = gather(exchange, bucket, group->master.data, sizeof(float));
    }
    wait_for(exchange, last);
}
