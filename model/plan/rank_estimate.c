#include "model/plan/rank_estimate.h"

#include <string.h>

#include <stb/stb_ds.h>

#include "kernels/collectives.h"
#include "model/core/batches.h"
#include "model/config/config_check.h"
#include "model/config/config_keys.h"
#include "model/plan/memory_options.h"
#include "model/plan/memory_plan.h"
#include "model/core/optimizer.h"

/* ---- traffic of model/core/exchange.c */

/* Returns the mean number of bytes that a rank sends to scatter or gather `count` elements. */
static double sent(int ranks, int64_t count, size_t element_bytes) {
    return (double)count * (double)element_bytes * (double)(ranks - 1) / (double)ranks;
}

/* Returns the bytes per element of a group that operations read, and so that are gathered. Matmuls
 * read the copy or the (upper half of the) master; all: also the rest of the master, which the
 * embedding and vectors need. */
static size_t read_bytes(const struct master_group *group, bool all, int *messages) {
    size_t copy = group->form == MASTERS_KEPT ? dtype_bytes(group->copy.dtype) : 0;
    bool master = group->form != MASTERS_KEPT || all;
    bool remainder = group->form == MASTERS_SPLIT && all;
    *messages = (copy > 0) + master + remainder;
    return copy + (master ? dtype_bytes(group->master.dtype) : 0) +
           (remainder ? sizeof *group->remainder : 0);
}

/* Returns the bytes per element that an update reads and writes. Gradients are read twice, for norm
 * and update; master weights and moments are read and written; a copy is written. */
static size_t touched_bytes(const struct optimizer *optimizer, const struct bucket *bucket,
                            const struct master_group *group) {
    size_t state = sizeof(float) +
                   (size_t)bucket->rule->moments * dtype_bytes(optimizer->gpt->precision.moments);
    size_t copy = group->form == MASTERS_KEPT ? dtype_bytes(group->copy.dtype) : 0;
    return 2 * dtype_bytes(optimizer->gpt->gradients.dtype) + 2 * state + copy;
}

/* Fills step with the traffic of the optimizer's buckets and sums. */
static void list_loads(struct rank_step *step, const struct optimizer *optimizer, int ranks) {
    const struct exchange *exchange = &optimizer->exchange;
    const struct shards *shards = &exchange->shards;
    for (ptrdiff_t i = 0; i < arrlen(shards->order); i++) {
        const struct bucket *bucket = &shards->buckets[shards->order[i]];
        const struct master_group *group = &exchange->masters->groups[bucket->group];
        struct rank_load load = {.layer = bucket->layer,
                                 .sent_after = exchange_sent_after(exchange, bucket),
                                 .gradient_messages = 1};
        load.gradient_bytes = sent(ranks, bucket->count, dtype_bytes(exchange->wire_dtype));
        load.update_bytes =
            (double)bucket->own.count * (double)touched_bytes(optimizer, bucket, group);
        if (shards->divided && !bucket->rule->update) {
            const struct tensor *directions = &optimizer->muon.directions;
            load.weight_bytes = sent(ranks, bucket->count, dtype_bytes(directions->dtype));
            load.weight_messages = 1;
        }
        if (shards->divided) {
            int messages;
            bool all = bucket->embedding || group->group != GROUP_DECAYED;
            size_t bytes = read_bytes(group, all, &messages);
            load.weight_messages += messages;
            load.weight_bytes += sent(ranks, bucket->count, bytes);
        } else { /* an all-reduce of gradients replaces the gather of weights */
            load.gradient_bytes *= 2;
            load.gradient_messages = 2;
        }
        arrput(step->loads, load);
    }
    if (exchange->embedded_rows > 0) {
        step->embedded_messages = 2;
        step->embedded_bytes =
            sent(ranks, tensor_count(&exchange->embedded), dtype_bytes(exchange->residual)) +
            sent(ranks, tensor_count(&exchange->tokens), sizeof(int32_t));
    }
    step->sum_messages = optimizer->gpt->quantization.be ? 3 : 2;
    step->sum_bytes = sent(ranks, ranks * exchange->squares_count, sizeof *exchange->squares) +
                      sent(ranks, exchange->losses_count, sizeof *exchange->losses) +
                      sent(ranks, quantization_records(&optimizer->gpt->quantization),
                           sizeof(struct quantize_record));
}

static void count_work(struct rank_step *step, const struct config *config,
                       const struct backend *be) {
    enum { MULTIPLY_ADD = 2 };
    struct step_work work = step_work_of(config, be);
    double operations =
        MULTIPLY_ADD * (double)config->train.micro_batch_size * (double)config->data.seq_len;
    step->layers = config->model.n_layer;
    step->micros = config->train.grad_accum_steps;
    step->forward = operations * work.forward;
    step->backward = operations * work.backward;
    step->head = operations * work.head;
    step->recompute = operations * work.recompute;
}

/* ---- memory of a rank */

/* Opens the model and optimizer as trainer_open does on that rank, without memory, and lists their
 * traffic. */
static int open_rank(struct rank_estimate *estimate, struct backend *be, struct error *error) {
    struct precision precision;
    struct gpt gpt;
    struct optimizer optimizer = {0};
    if (memory_plan_of(&estimate->each, &estimate->config, be, error) ||
        precision_resolve(&precision, NULL, &estimate->config, be, error))
        return -1;
    int status = gpt_open(&gpt, &estimate->config, &precision, be, GPT_TRAINING, error);
    if (status == 0) status = optimizer_open(&optimizer, &gpt, &estimate->config, error);
    if (status == 0) list_loads(&estimate->step, &optimizer, estimate->machine.ranks);
    optimizer_close(&optimizer);
    gpt_close(&gpt);
    return status;
}

int rank_estimate_open(struct rank_estimate *estimate, const struct rank_request *request,
                       struct error *error) {
    struct backend *be = request->be;
    const struct collectives *own = be->collectives;
    struct ranks ranks = {.rank = request->ranks - 1,
                          .size = request->ranks,
                          .local_size = request->ranks,
                          .functions = ranks_alone.functions};
    struct collectives planned = collectives_alone;
    planned.ranks = &ranks;
    bool lower = request->config->precision != CONFIG_PRECISION_FP32;
    double flops = 1e12 * (lower ? RANK_TFLOPS_LOWER : RANK_TFLOPS_FLOAT32);
    *estimate = (struct rank_estimate){
        .config = *request->config,
        .machine = {.ranks = request->ranks,
                    .flops = request->flops > 0 ? request->flops : flops,
                    .memory = RANK_MEMORY,
                    .link = request->link > 0 ? request->link : RANK_LINK,
                    .latency = RANK_LATENCY},
    };
    if (config_split_batch(&estimate->config, request->ranks, error) ||
        memory_plan_of(&estimate->alone, &estimate->config, be, error))
        return -1;
    be->collectives = &planned;
    int status = open_rank(estimate, be, error);
    be->collectives = own;
    if (status) return -1;
    count_work(&estimate->step, &estimate->config, be);
    estimate->step_tokens = (double)batches_step_tokens(&estimate->config);
    rank_timeline(&estimate->times, &estimate->step, &estimate->machine);
    return 0;
}

void rank_estimate_close(struct rank_estimate *estimate) {
    arrfree(estimate->step.loads);
}
