#include "model/optimize/optimizer.h"

#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/min_max.h"
#include "data/util/random.h"
#include "kernels/moment_blocks.h"
#include "model/optimize/schedule.h"
#include "model/task/objective.h"

/* The partial sums of the norm stay in the workspace between two operations, so neither may use it
 * as scratch. */
#define X(name) SCRATCH_OF_##name = 0,
#define S(name) SCRATCH_OF_##name = 1,
enum { OPERATIONS_BY_SCRATCH(X, S) };
#undef X
#undef S
_Static_assert(!SCRATCH_OF_gradient_squares && !SCRATCH_OF_gradient_norm, "they would be lost");

/* The key of stochastic rounding depends on the step, so a resumed run gives the same bits. */
struct step_inputs optimizer_inputs(const struct config *config, int64_t step) {
    enum { STREAM = 0x6d6f6d }; /* distinguishes these bits from other uses of the seed */
    uint64_t bits = random_bits((uint64_t)config->seed, STREAM, (uint64_t)step);
    return (struct step_inputs){.lr = schedule_lr(config, step),
                                .step = step,
                                .key = {(uint32_t)bits, (uint32_t)(bits >> 32)}};
}

static void assign_memory(struct optimizer *optimizer, struct arena *arena) {
    const int64_t *counts = optimizer->exchange.shards.moment_count;
    for (int moment = 0; moment < MOMENTS_MAX; moment++)
        optimizer->moments[moment] =
            arena_tensor(arena, optimizer->model->precision.moments, counts[moment], 0);
    const int64_t *coded = optimizer->exchange.shards.coded_count;
    for (int moment = 0; moment < MOMENTS_MAX; moment++) {
        optimizer->codes[moment] = arena_tensor(arena, DTYPE_DYNAMIC8, coded[moment], 0);
        optimizer->scales[moment] = arena_tensor(arena, DTYPE_F32, coded[moment] / MOMENT_BLOCK, 0);
    }
}

static bool is_in(const struct bucket *bucket, const struct parameter *p) {
    return p->offset >= bucket->first && p->offset < bucket->first + bucket->count;
}

/* Sets the sizes of the scratch for matrices: of the largest one, and if momentum is gathered of
 * the largest bucket. */
static void size_scratch(struct optimizer *optimizer) {
    const struct shards *shards = &optimizer->exchange.shards;
    const struct parameter *list = optimizer->model->list;
    struct muon *muon = &optimizer->muon;
    for (ptrdiff_t i = 0; i < arrlen(shards->buckets); i++) {
        const struct bucket *bucket = &shards->buckets[i];
        if (bucket->rule->name != CONFIG_OPTIMIZER_MUON) continue;
        if (shards->divided && bucket->count > muon->direction_count)
            muon->direction_count = bucket->count;
        for (ptrdiff_t k = 0; k < parameter_trained_count(list); k++) {
            int64_t rows = list[k].extent.rows, columns = list[k].extent.columns;
            int64_t side = MIN(rows, columns);
            if (!is_in(bucket, &list[k])) continue;
            if (rows * columns > muon->elements) muon->elements = rows * columns;
            if (side > muon->side) muon->side = side;
        }
    }
    if (muon->elements > muon->direction_count) muon->direction_count = muon->elements;
}

int optimizer_open(struct optimizer *optimizer, struct model *model, const struct config *config,
                   struct error *error) {
    struct arena measure = {0};
    const bool several = model->be->collectives->ranks->size > 1;
    if (model->offload_optimizer && several)
        return fail(error, "offload.optimizer: not with several ranks, which divide the moments "
                           "anyway (ranks.shard)\nleave it out");
    if (model->masters.stream.layers > 0 && !shape_has_adapters(&model->shape) && several)
        return fail(error, "offload.weights: not with several ranks, which send each other trained "
                           "weights\nleave it out, or train adapters (adapter.type)");
    if (model->gradient_stream.count > 0 && several)
        return fail(error, "offload.gradients: not with several ranks, which send the gradients to "
                           "each other\nleave it out");
    *optimizer = (struct optimizer){.model = model, .config = config};
    if (exchange_open(&optimizer->exchange, model->be, config, &model->precision, model->list,
                      &model->masters, &model->gradients, error))
        return -1;
    if (model->be->collectives->ranks->size > 1) model->exchange = &optimizer->exchange;
    assign_memory(optimizer, &measure);
    optimizer->bytes = measure.used;
    if (model->offload_optimizer) model->memory.host += measure.used;
    else model->memory.moments = measure.used;
    size_scratch(optimizer);
    muon_open(&optimizer->muon, model->be, config);
    model->memory.moments += optimizer->muon.bytes;
    model->memory.exchange = optimizer->exchange.bytes;
    optimizer->state = backend_allocate(model->be, sizeof *optimizer->state);
    return optimizer->state ? 0 : fail_memory(error, "the optimizer's counters");
}

int optimizer_allocate(struct optimizer *optimizer, struct error *error) {
    struct backend *be = optimizer->model->be;
    bool offload = optimizer->model->offload_optimizer;
    if (exchange_allocate(&optimizer->exchange, error)) return -1;
    optimizer->memory = (offload ? backend_host_allocate : backend_allocate)(be, optimizer->bytes);
    if (!optimizer->memory && offload)
        return fail(error,
                    "out of memory of the host: the optimizer's moments need %zu MiB there; at "
                    "least 2 GiB and 10 %% of the memory stay free\n"
                    "leave out offload.optimizer, or choose a smaller model",
                    optimizer->bytes >> 20);
    if (!optimizer->memory)
        return fail(error,
                    "out of memory: the optimizer's moments need %zu MiB\n"
                    "choose a smaller model",
                    optimizer->bytes >> 20);
    if (muon_allocate(&optimizer->muon, error)) return -1;
    assign_memory(optimizer, &(struct arena){optimizer->memory, 0, optimizer->bytes});
    if (offload) memset(optimizer->memory, 0, optimizer->bytes);
    else OP(be, clear, .data = optimizer->memory, .bytes = optimizer->bytes);
    return 0;
}

void optimizer_close(struct optimizer *optimizer) {
    if (!optimizer->model) return;
    struct backend *be = optimizer->model->be;
    const bool offload = optimizer->model->offload_optimizer;
    if (optimizer->memory)
        (offload ? backend_host_release : backend_release)(be, optimizer->memory);
    muon_close(&optimizer->muon);
    if (optimizer->state) backend_release(be, optimizer->state);
    exchange_close(&optimizer->exchange);
    memset(optimizer, 0, sizeof *optimizer);
}

size_t optimizer_moment_bytes(const struct optimizer *optimizer, enum moment_array array,
                              int64_t count) {
    if (array == MOMENT_VALUES) return dtype_size(optimizer->model->precision.moments, count);
    return array == MOMENT_CODES ? (size_t)count : (size_t)(count / MOMENT_BLOCK) * sizeof(float);
}

char *optimizer_moment_at(const struct optimizer *optimizer, const struct bucket *bucket,
                          int moment, enum moment_array array, int64_t first) {
    const struct tensor *const arrays[] = {optimizer->moments, optimizer->codes, optimizer->scales};
    const int64_t at = bucket->place[moment] + first - bucket->own.first;
    return (char *)arrays[array][moment].data + optimizer_moment_bytes(optimizer, array, at);
}

/* Returns the part of a range that this rank owns in bucket i. */
static struct rank_part own_part(const struct optimizer *optimizer, int moment, ptrdiff_t i,
                                 int64_t first, int64_t count) {
    const struct shards *shards = &optimizer->exchange.shards;
    const struct ranks *ranks = optimizer->model->be->collectives->ranks;
    struct rank_part part = shards_overlap(shards, i, ranks, ranks->rank, first, count);
    if (moment >= shards->buckets[i].rule->moments) part.count = 0;
    return part;
}

enum { PIECE = 8192 /* elements of a part that are converted at a time */ };

/* Codes and scales of a piece on the host. */
struct coded_piece {
    uint8_t codes[PIECE];
    float scales[PIECE / MOMENT_BLOCK];
};

/* Moves `count` elements in 8 bits between this rank's part and fp32 values on the host. */
static void move_coded(const struct optimizer *optimizer, const struct bucket *bucket, int moment,
                       int64_t first, int64_t count, float *to, const float *from) {
    struct coded_piece p;
    struct backend *be = optimizer->model->be;
    const struct moment_blocks blocks = {p.codes, p.scales, moment, false};
    for (int64_t done = 0, n; done < count; done += n) {
        n = MIN(count - done, PIECE);
        char *codes = optimizer_moment_at(optimizer, bucket, moment, MOMENT_CODES, first + done);
        char *scales = optimizer_moment_at(optimizer, bucket, moment, MOMENT_SCALES, first + done);
        const size_t bytes = optimizer_moment_bytes(optimizer, MOMENT_SCALES, n);
        if (from) {
            moment_blocks_store(&blocks, from + done, 0, n, (struct rounding_key){0}, 0);
            backend_upload(be, codes, p.codes, (size_t)n);
            backend_upload(be, scales, p.scales, bytes);
        } else {
            backend_download(be, p.codes, codes, (size_t)n);
            backend_download(be, p.scales, scales, bytes);
            moment_blocks_load(to + done, &blocks, 0, n);
        }
    }
}

void optimizer_download(const struct optimizer *optimizer, int moment, void *values, int64_t first,
                        int64_t count) {
    for (ptrdiff_t i = 0; i < arrlen(optimizer->exchange.shards.buckets); i++) {
        const struct bucket *bucket = &optimizer->exchange.shards.buckets[i];
        struct rank_part part = own_part(optimizer, moment, i, first, count);
        if (part.count == 0) continue;
        char *to =
            (char *)values + optimizer_moment_bytes(optimizer, MOMENT_VALUES, part.first - first);
        if (bucket->coded)
            move_coded(optimizer, bucket, moment, part.first, part.count, (float *)to, NULL);
        else
            backend_download(
                optimizer->model->be, to,
                optimizer_moment_at(optimizer, bucket, moment, MOMENT_VALUES, part.first),
                optimizer_moment_bytes(optimizer, MOMENT_VALUES, part.count));
    }
}

static void upload(const struct optimizer *optimizer, const struct bucket *bucket, int moment,
                   const float *values, int64_t first, int64_t count) {
    float stored[PIECE];
    struct backend *be = optimizer->model->be;
    enum dtype dtype = optimizer->moments[moment].dtype;
    for (int64_t done = 0, n; done < count; done += n) {
        n = MIN(count - done, PIECE);
        dtype_store(stored, dtype, 0, values + done, (size_t)n);
        backend_upload(be,
                       optimizer_moment_at(optimizer, bucket, moment, MOMENT_VALUES, first + done),
                       stored, optimizer_moment_bytes(optimizer, MOMENT_VALUES, n));
    }
}

void optimizer_upload(const struct optimizer *optimizer, int moment, const float *values,
                      int64_t first, int64_t count) {
    for (ptrdiff_t i = 0; i < arrlen(optimizer->exchange.shards.buckets); i++) {
        const struct bucket *bucket = &optimizer->exchange.shards.buckets[i];
        struct rank_part part = own_part(optimizer, moment, i, first, count);
        const float *from = values + (part.first - first);
        if (part.count == 0) continue;
        if (bucket->coded)
            move_coded(optimizer, bucket, moment, part.first, part.count, NULL, from);
        else upload(optimizer, bucket, moment, from, part.first, part.count);
    }
}

void optimizer_upload_codes(const struct optimizer *optimizer, int moment, const uint8_t *codes,
                            const float *scales, int64_t first, int64_t count) {
    struct backend *be = optimizer->model->be;
    for (ptrdiff_t i = 0; i < arrlen(optimizer->exchange.shards.buckets); i++) {
        const struct bucket *bucket = &optimizer->exchange.shards.buckets[i];
        struct rank_part part = own_part(optimizer, moment, i, first, count);
        if (part.count == 0) continue;
        backend_upload(be, optimizer_moment_at(optimizer, bucket, moment, MOMENT_CODES, part.first),
                       codes + (part.first - first), (size_t)part.count);
        backend_upload(be,
                       optimizer_moment_at(optimizer, bucket, moment, MOMENT_SCALES, part.first),
                       scales + (part.first - first) / MOMENT_BLOCK,
                       optimizer_moment_bytes(optimizer, MOMENT_SCALES, part.count));
    }
}

/* Operands of the update of a range of elements in a bucket's own part. */
struct update_range {
    struct tensor master, gradients, moments[MOMENTS_MAX];
    struct moment_scales scales; /* of moments in 8 bits */
    struct tensor copies;        /* 16 bit */
    const struct tensor *copy;   /* copies, or NULL without them */
    int16_t *remainder;          /* NULL unless master weights are split */
    int64_t first;               /* index of element 0 in the flat order */
    double weight_decay;         /* for this group */
    double lr_factor;            /* factor of the learning rate */
};

static void range_of(struct update_range *range, const struct optimizer *optimizer,
                     const struct bucket *bucket, struct rank_part part) {
    struct model *model = optimizer->model;
    const struct config *config = optimizer->config;
    const struct master_group *group = &model->masters.groups[bucket->group];
    int64_t first = part.first - group->first, in_own = part.first - bucket->own.first;
    const double rate = config->optimizer.adamw_lr;
    bool own_rate = rate > 0 && config->optimizer.name == CONFIG_OPTIMIZER_MUON &&
                    bucket->rule->name == CONFIG_OPTIMIZER_ADAMW;
    range->master = tensor_range(&group->master, first, part.count);
    range->gradients = model_gradients(model, part.first, part.count);
    range->scales = (struct moment_scales){.stochastic = config->optimizer.rounding_8bit ==
                                                         CONFIG_ROUNDING_STOCHASTIC};
    for (int i = 0; i < bucket->rule->moments; i++) {
        const struct tensor *array = bucket->coded ? optimizer->codes : optimizer->moments;
        const int64_t at = bucket->place[i] + in_own;
        range->moments[i] = tensor_range(&array[i], at, part.count);
        if (bucket->coded)
            range->scales.of[i] = (float *)optimizer->scales[i].data + at / MOMENT_BLOCK;
    }
    range->copies = tensor_range(&group->copy, first, part.count);
    range->copy = group->form == MASTERS_KEPT ? &range->copies : NULL;
    range->remainder = group->remainder ? group->remainder + first : NULL;
    range->first = part.first;
    range->weight_decay =
        group->parameter->group == GROUP_DECAYED ? config->optimizer.weight_decay : 0;
    range->lr_factor = own_rate ? rate / config->optimizer.lr : 1;
}

/* Writes the momentum of a part of a bucket to direction. */
static void find_direction(const struct optimizer *optimizer, const struct bucket *bucket,
                           struct rank_part part, const struct tensor *direction) {
    struct update_range range;
    if (part.count == 0) return;
    range_of(&range, optimizer, bucket, part);
    struct update_args args = {.direction = direction,
                               .moments = {&range.moments[0]},
                               .scales = range.scales,
                               .gradients = &range.gradients,
                               .state = optimizer->state,
                               .inputs = optimizer->inputs,
                               .first = range.first,
                               .lr_factor = 1};
    update_rule_set(&args, bucket->rule, optimizer->config);
    optimizer->model->be->op->update(optimizer->model->be, &args);
}

/* Orthogonalizes the momentum of a matrix and updates `part` of its weights. */
static void update_matrix(const struct optimizer *optimizer, const struct bucket *bucket,
                          const struct parameter *p, struct rank_part part,
                          const struct tensor *direction) {
    struct tensor matrix = tensor_view(direction, p->extent.rows, p->extent.columns);
    struct tensor own = tensor_range(direction, part.first - p->offset, part.count);
    struct update_range range;
    double factor = muon_direction(&optimizer->muon, &matrix, p, &optimizer->model->shape);
    range_of(&range, optimizer, bucket, part);
    OP(optimizer->model->be, update, .kind = UPDATE_APPLY, .master = &range.master,
       .remainder = range.remainder, .copy = range.copy, .direction = &own,
       .state = optimizer->state, .inputs = optimizer->inputs,
       .weight_decay = range.weight_decay / factor, .lr_factor = factor);
}

/* Updates this rank's part of a bucket of matrices. If ranks divide it, the momentum is gathered,
 * and this rank orthogonalizes the matrices that overlap its part. */
static void update_matrices(struct optimizer *optimizer, const struct bucket *bucket) {
    const struct ranks *ranks = optimizer->model->be->collectives->ranks;
    const struct shards *shards = &optimizer->exchange.shards;
    const struct parameter *list = optimizer->model->list;
    const struct tensor *directions = &optimizer->muon.directions;
    if (shards->divided) {
        struct tensor all = tensor_range(directions, 0, bucket->count);
        struct tensor own =
            tensor_range(&all, bucket->own.first - bucket->first, bucket->own.count);
        find_direction(optimizer, bucket, bucket->own, &own);
        exchange_directions(&optimizer->exchange, bucket, &all);
    }
    for (ptrdiff_t i = 0; i < parameter_trained_count(list); i++) {
        const struct parameter *p = &list[i];
        if (!is_in(bucket, p)) continue;
        int64_t count = parameter_count(p), at = shards->divided ? p->offset - bucket->first : 0;
        struct rank_part part =
            shards_overlap(shards, bucket - shards->buckets, ranks, ranks->rank, p->offset, count);
        struct tensor direction = tensor_range(directions, at, count);
        if (part.count == 0) continue;
        if (!shards->divided) find_direction(optimizer, bucket, part, &direction);
        update_matrix(optimizer, bucket, p, part, &direction);
    }
}

/* Updates this rank's part of a bucket. Offloaded state is read and written in host memory. */
static void update(struct optimizer *optimizer, const struct bucket *bucket) {
    const struct update_rule *rule = bucket->rule;
    struct update_range range;
    if (rule->kind == UPDATE_DIRECTION) {
        update_matrices(optimizer, bucket);
        return;
    }
    if (bucket->own.count == 0) return;
    range_of(&range, optimizer, bucket, bucket->own);
    struct update_args args = {
        .master = &range.master,
        .remainder = range.remainder,
        .copy = range.copy,
        .moments = {&range.moments[0], rule->moments > 1 ? &range.moments[1] : NULL},
        .scales = range.scales,
        .gradients = &range.gradients,
        .state = optimizer->state,
        .inputs = optimizer->inputs,
        .first = range.first,
        .weight_decay = range.weight_decay,
        .lr_factor = range.lr_factor,
    };
    update_rule_set(&args, rule, optimizer->config);
    optimizer->model->be->op->update(optimizer->model->be, &args);
}

/* Sums the squares of the gradients in this rank's parts, and computes the norm from the sums of
 * all ranks. */
static void find_norm(struct optimizer *optimizer) {
    struct backend *be = optimizer->model->be;
    struct exchange *exchange = &optimizer->exchange;
    const struct ranks *ranks = be->collectives->ranks;
    int64_t count = exchange->squares_count;
    size_t bytes = (size_t)count * sizeof(double);
    double *all = ranks->size > 1 ? exchange->squares : backend_workspace(be, bytes);
    double *own = all ? all + ranks->rank * count : NULL;
    struct rank_part run;
    if (ranks->size > 1) OP(be, clear, .data = own, .bytes = bytes);
    for (ptrdiff_t i = 0; shards_run(&run, &i, &exchange->shards, ranks, ranks->rank);) {
        struct tensor gradients = model_gradients(optimizer->model, run.first, run.count);
        OP(be, gradient_squares, .squares = own, .gradients = &gradients,
           .state = optimizer->state);
        if (own) own += backend_squares(be, &gradients);
    }
    exchange_sums(exchange, optimizer->state, objective_of(optimizer->config)->sums);
    OP(be, gradient_norm, .state = optimizer->state, .squares = all, .count = ranks->size * count,
       .grad_clip = (float)optimizer->config->optimizer.grad_clip);
}

/* Updates the buckets in the order in which the next forward pass reads them. */
static void update_all(struct optimizer *optimizer) {
    struct shards *shards = &optimizer->exchange.shards;
    for (ptrdiff_t i = 0; i < arrlen(shards->order); i++) {
        const struct bucket *bucket = &shards->buckets[shards->order[i]];
        update(optimizer, bucket);
        exchange_weights(&optimizer->exchange, bucket);
    }
}

void optimizer_step(struct optimizer *optimizer, const struct step_inputs *inputs) {
    const struct config *config = optimizer->config;
    struct model *model = optimizer->model;
    optimizer->inputs = inputs;
    exchange_gradients_arrived(&optimizer->exchange);
    find_norm(optimizer);
    update_all(optimizer);
    OP(model->be, loss_scale_update, .state = optimizer->state,
       .dynamic = model->precision.scale_loss,
       .growth_factor = (float)config->loss_scale.growth_factor,
       .backoff_factor = (float)config->loss_scale.backoff_factor,
       .min_scale = (float)config->loss_scale.min_scale,
       .growth_interval = (int32_t)config->loss_scale.growth_interval);
}
