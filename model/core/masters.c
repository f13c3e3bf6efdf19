#include "model/core/masters.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>
#include "data/util/min_max.h"

static bool is_frozen_matrix(const struct parameter *p) {
    return p->group == GROUP_FROZEN && p->extent.columns > 0;
}

/* Returns the format of a parameter. */
static enum weight_format format_of(const struct precision *precision, const struct parameter *p) {
    bool linear = is_frozen_matrix(p) && linear_index(p->site) >= 0;
    return linear ? precision->frozen_format : WEIGHT_PLAIN;
}

static enum master_form form_of(const struct precision *precision, const struct parameter *p) {
    enum dtype site = precision->site[p->site];
    if (is_frozen_matrix(p)) {
        bool read = p->site == SITE_EMBEDDING || site == precision->frozen; /* it reads any dtype */
        return format_of(precision, p) == WEIGHT_PLAIN && read ? MASTERS_DIRECT : MASTERS_CAST;
    }
    if (precision->compute_dtype == DTYPE_F32 || p->adapter) return MASTERS_DIRECT;
    if (p->extent.columns == 0) return MASTERS_KEPT;
    return site == DTYPE_F32 ? MASTERS_DIRECT : precision->masters;
}

static size_t scratch_bytes(const struct precision *precision, const struct parameter *p) {
    if (form_of(precision, p) != MASTERS_CAST) return 0;
    return dtype_size(precision->site[p->site], p->elements);
}

static bool is_read_by(const struct parameter *p, int64_t layer, enum autocast_site site) {
    return p->layer == layer && p->site == site;
}

/* Returns the offset in bytes of a parameter's copy in scratch, which begins with the first CAST
 * parameter of its site in its layer. Those are adjacent. */
static size_t scratch_offset(const struct masters *masters, const struct parameter *parameter) {
    size_t offset = 0;
    for (const struct parameter *p = parameter;
         p > masters->list && is_read_by(p - 1, parameter->layer, parameter->site); p--)
        offset += scratch_bytes(masters->precision, p - 1);
    return offset;
}

/* True if a parameter belongs to the group before it. */
static bool joins(const struct master_group *last, const struct master_group *next) {
    return last && last->form == next->form && last->parameter->group == next->parameter->group &&
           last->offloaded == next->offloaded && last->master.dtype == next->master.dtype &&
           last->streamed == next->streamed &&
           (!next->streamed || last->parameter->layer == next->parameter->layer) &&
           last->format == WEIGHT_PLAIN && next->format == WEIGHT_PLAIN;
}

void masters_open(struct masters *masters, const struct parameter *list,
                  const struct precision *precision, struct masters_offload offload) {
    *masters = (struct masters){.precision = precision, .list = list};
    for (ptrdiff_t i = 0; i < arrlen(list); i++) {
        const struct parameter *p = &list[i];
        enum master_form form = form_of(precision, p);
        struct master_group *last = arrlen(masters->groups) ? &arrlast(masters->groups) : NULL;
        struct master_group next = {
            .first = p->offset,
            .form = form,
            .format = format_of(precision, p),
            .offloaded = offload.remainders && form == MASTERS_SPLIT && p != parameter_wte(list),
            .streamed = offload.layers && parameter_in_layer(p) && form != MASTERS_KEPT,
            .master.dtype = form == MASTERS_SPLIT ? DTYPE_BF16
                            : is_frozen_matrix(p) ? precision->frozen
                                                  : DTYPE_F32,
            .parameter = p};
        if (!joins(last, &next)) {
            arrput(masters->groups, next);
            last = &arrlast(masters->groups);
        }
        last->count = p->offset + p->elements - last->first;
        if (last->streamed) masters->stream.layers = p->layer + 1;
        size_t end = scratch_offset(masters, p) + scratch_bytes(precision, p);
        if (end > masters->scratch_bytes) masters->scratch_bytes = end;
    }
}

void masters_drop_frozen(struct masters *masters) {
    while (arrlen(masters->groups) && arrlast(masters->groups).parameter->group == GROUP_FROZEN)
        arrpop(masters->groups);
    for (ptrdiff_t i = 0; i < arrlen(masters->groups); i++) masters->groups[i].streamed = false;
    masters->stream.layers = 0;
}

void masters_close(struct masters *masters) {
    arrfree(masters->groups);
    free(masters->staging);
    *masters = (struct masters){0};
}

/* Lays out the weights of a group. */
static void take_weights(struct tensor *master, struct quantized_weight *quantized,
                         const struct master_group *group, struct arena *arena) {
    const struct extent *extent = &group->parameter->extent;
    if (group->format == WEIGHT_PLAIN)
        *master = arena_tensor(arena, group->master.dtype, group->count, 0);
    else
        *quantized =
            quantized_weight_take(arena, group->format, extent->padded_rows, extent->columns);
}

/* Lays out the layers in host memory and in their buffers alike, so one copy moves a layer. */
static void layout_layers(struct masters *masters) {
    struct layer_stream *stream = &masters->stream;
    struct arena host = {0}, buffer = {0};
    int64_t layer = -1;
    for (ptrdiff_t i = 0; i < arrlen(masters->groups); i++) {
        struct master_group *group = &masters->groups[i];
        if (!group->streamed) continue;
        if (group->parameter->layer != layer) {
            layer = group->parameter->layer;
            host = layer_stream_host(stream, layer);
            buffer = layer_stream_buffer(stream, layer);
        }
        take_weights(&group->master, &group->quantized, group, &host);
        take_weights(&group->buffered.master, &group->buffered.quantized, group, &buffer);
        stream->bytes = MAX(stream->bytes, host.used);
    }
}

void masters_layout(struct masters *masters, struct arena *arena, struct arena *host) {
    struct layer_stream *stream = &masters->stream;
    if (stream->bytes == 0) layout_layers(masters); /* measures a layer */
    stream->host = arena_take(host, layer_stream_host_bytes(stream));
    layer_stream_layout(stream, arena);
    layout_layers(masters);
    for (ptrdiff_t i = 0; i < arrlen(masters->groups); i++) {
        struct master_group *group = &masters->groups[i];
        if (!group->streamed) take_weights(&group->master, &group->quantized, group, arena);
        if (group->form == MASTERS_SPLIT)
            group->remainder = arena_take(group->offloaded ? host : arena,
                                          (size_t)group->count * sizeof *group->remainder);
    }
}

void masters_layout_copies(struct masters *masters, struct arena *arena) {
    enum dtype lower = masters->precision->compute_dtype;
    for (ptrdiff_t i = 0; i < arrlen(masters->groups); i++) {
        struct master_group *group = &masters->groups[i];
        if (group->form == MASTERS_KEPT) group->copy = arena_tensor(arena, lower, group->count, 0);
    }
    masters->scratch = arena_take(arena, masters->scratch_bytes);
}

/* Returns the group that contains an element. */
static struct master_group *group_of(const struct masters *masters, int64_t element) {
    struct master_group *group = masters->groups;
    while (element >= group->first + group->count) group++;
    return group;
}

static struct tensor shaped(const struct tensor *array, int64_t first,
                            const struct parameter *parameter) {
    const struct extent *extent = &parameter->extent;
    struct tensor tensor = tensor_range(array, first, parameter->elements);
    tensor.rank = extent->columns ? 2 : 1;
    tensor.shape[0] = extent->padded_rows;
    tensor.shape[1] = extent->columns;
    return tensor;
}

struct tensor masters_tensor(const struct masters *masters, const struct parameter *parameter,
                             int16_t **remainder) {
    const struct master_group *group = group_of(masters, parameter->offset);
    int64_t first = parameter->offset - group->first;
    *remainder = group->remainder ? group->remainder + first : NULL;
    return shaped(&group->master, first, parameter);
}

/* Returns the weights of a group where operations read them. */
static const struct tensor *read_master(const struct master_group *group) {
    return group->streamed ? &group->buffered.master : &group->master;
}

struct tensor masters_read_tensor(const struct masters *masters,
                                  const struct parameter *parameter) {
    const struct master_group *group = group_of(masters, parameter->offset);
    int64_t first = parameter->offset - group->first;
    bool float32 = masters->precision->site[parameter->site] == DTYPE_F32;
    if (group->form == MASTERS_KEPT && !float32) return shaped(&group->copy, first, parameter);
    if (group->form != MASTERS_CAST) return shaped(read_master(group), first, parameter);
    struct tensor copy = {
        NULL, masters->precision->site[parameter->site], 1, {parameter->elements}};
    if (masters->scratch) copy.data = (char *)masters->scratch + scratch_offset(masters, parameter);
    return shaped(&copy, 0, parameter);
}

/* ---- Transfer between fp32 on the host and the stored form */

/* A transfer to the backend if `in` is given, else from there. be is NULL to read master weights
 * that are in host memory. */
struct host_transfer {
    struct backend *be;
    const float *in;
    float *out;
    const float *scales; /* optional, with `in` of a quantized group */
};

/* Part of a range of elements that lies in one group. */
struct group_range {
    const struct master_group *group;
    int64_t first, count; /* first: index in the group */
};

static void move(const struct host_transfer *t, void *stored, void *host, size_t bytes) {
    if (t->in) backend_upload(t->be, stored, host, bytes);
    else if (t->be) backend_download(t->be, host, stored, bytes);
    else memcpy(host, stored, bytes);
}

/* Converted groups are transferred in pieces of this many elements. */
enum { PIECE = 32768 };

/* A piece of a group as it is stored: its master weights, and the remainders if they are split. */
struct piece {
    uint16_t master[PIECE];
    int16_t remainder[PIECE];
};

/* Frozen weights in 16 bit are rounded as copies of master weights are, so that linear layers read
 * the same values in every plain dtype that holds theirs. */
static void pack(struct piece *piece, const struct master_group *group, const float *values,
                 size_t n) {
    if (group->remainder) split_masters(piece->master, piece->remainder, values, n);
    else copy_masters(piece->master, group->master.dtype, 0, values, n);
}

static void unpack(float *values, const struct piece *piece, const struct master_group *group,
                   size_t n) {
    if (group->remainder) join_masters(values, piece->master, piece->remainder, n);
    else dtype_widen(values, piece->master, group->master.dtype, 0, n);
}

/* Transfers a group that is not quantized; fp32 is copied as it is. */
static void move_plain(const struct host_transfer *t, const struct group_range *range) {
    const struct master_group *group = range->group;
    struct piece piece;
    if (!group->remainder && group->master.dtype == DTYPE_F32) {
        float *stored = (float *)group->master.data + range->first;
        const size_t bytes = (size_t)range->count * sizeof *stored;
        if (t->in) backend_upload(t->be, stored, t->in, bytes);
        else move(t, stored, t->out, bytes);
        return;
    }
    for (int64_t done = 0; done < range->count; done += PIECE) {
        const int64_t n = MIN(range->count - done, PIECE);
        const int64_t at = range->first + done;
        const size_t bytes = (size_t)n * sizeof *piece.master;
        if (t->in) pack(&piece, group, t->in + done, (size_t)n);
        move(t, (uint16_t *)group->master.data + at, piece.master, bytes);
        if (group->remainder) move(t, group->remainder + at, piece.remainder, bytes);
        if (t->out) unpack(t->out + done, &piece, group, (size_t)n);
    }
}

/* Allocates host memory for the arrays of a quantized parameter. The caller frees it. Returns NULL
 * if memory is short. */
static char *host_copy(struct quantized_weight *copy, const struct master_group *group) {
    const struct extent *extent = &group->parameter->extent;
    struct arena arena = {0};
    quantized_weight_take(&arena, group->format, extent->padded_rows, extent->columns);
    arena = (struct arena){
        aligned_alloc(ARENA_ALIGNMENT, (size_t)round_up((int64_t)arena.used, ARENA_ALIGNMENT)), 0,
        arena.used};
    *copy = quantized_weight_take(&arena, group->format, extent->padded_rows, extent->columns);
    return arena.base;
}

/* Transfers a quantized group: all of its values to the backend, or a range from there. */
static void move_quantized(const struct host_transfer *t, const struct group_range *range) {
    const struct quantized_weight *stored = &range->group->quantized;
    struct quantized_weight host = *stored;
    char *memory = NULL;
    const bool copies = t->be && !t->be->device.host_memory;
    if (copies && !(memory = host_copy(&host, range->group))) {
        fail_memory(&t->be->failure, "a copy of quantized weights");
        return;
    }
    const struct tensor *from[] = {&stored->codes, &stored->scales, &stored->second_scales,
                                   &stored->mean};
    const struct tensor *to[] = {&host.codes, &host.scales, &host.second_scales, &host.mean};
    if (t->in) quantized_weight_store(&host, t->in, t->scales);
    for (int i = 0; copies && i < 4; i++)
        if (from[i]->data) move(t, from[i]->data, to[i]->data, tensor_bytes(to[i]));
    if (t->out) quantized_weight_load(&host, t->out, range->first, range->count);
    free(memory);
}

static struct group_range range_in_group(const struct masters *masters, int64_t first,
                                         int64_t count) {
    const struct master_group *group = group_of(masters, first);
    int64_t at = first - group->first, left = group->count - at;
    return (struct group_range){group, at, MIN(count, left)};
}

/* Returns the part of a range that a quantized group stores, without elements between parameters.
 */
static struct group_range stored_range(struct group_range range) {
    int64_t left = range.group->quantized.count - range.first;
    if (left < range.count) range.count = left < 0 ? 0 : left;
    return range;
}

void masters_download(const struct masters *masters, struct backend *be, float *values,
                      int64_t first, int64_t count) {
    while (count > 0) {
        const struct group_range range = range_in_group(masters, first, count);
        const struct host_transfer t = {.be = be, .out = values};
        if (range.group->format == WEIGHT_PLAIN) move_plain(&t, &range);
        else {
            const struct group_range stored = stored_range(range);
            move_quantized(&t, &stored);
            memset(values + stored.count, 0, (size_t)(range.count - stored.count) * sizeof *values);
        }
        values += range.count, first += range.count, count -= range.count;
    }
}

void masters_upload(const struct masters *masters, struct backend *be, const float *values,
                    int64_t first, int64_t count) {
    while (count > 0) {
        const struct group_range range = range_in_group(masters, first, count);
        const struct host_transfer t = {.be = be, .in = values};
        if (range.group->format == WEIGHT_PLAIN) move_plain(&t, &range);
        else {
            const struct group_range stored = stored_range(range);
            assert(masters->staging || stored.count == range.group->quantized.count);
            if (!masters->staging) move_quantized(&t, &stored);
            else if (stored.count > 0)
                memcpy(masters->staging + stored.first, values,
                       (size_t)stored.count * sizeof *values);
        }
        values += range.count, first += range.count, count -= range.count;
    }
}

int masters_upload_begin(struct masters *masters, const struct parameter *parameter,
                         struct error *error) {
    const struct master_group *group = group_of(masters, parameter->offset);
    free(masters->staging); /* left by an upload that failed */
    masters->staging = NULL;
    if (group->format == WEIGHT_PLAIN) return 0;
    size_t bytes = (size_t)group->quantized.count * sizeof *masters->staging;
    masters->staging = malloc(bytes);
    if (masters->staging) return 0;
    return fail_memory(error, "%s while it is quantized (%zu MiB)", parameter->name, bytes >> 20);
}

void masters_upload_end(struct masters *masters, struct backend *be,
                        const struct parameter *parameter, const float *scales) {
    const struct master_group *group = group_of(masters, parameter->offset);
    if (masters->staging)
        move_quantized(&(struct host_transfer){.be = be, .in = masters->staging, .scales = scales},
                       &(struct group_range){group, 0, group->quantized.count});
    free(masters->staging);
    masters->staging = NULL;
}

int64_t masters_scales(const struct masters *masters, const struct parameter *parameter,
                       int64_t *block) {
    const struct master_group *group = group_of(masters, parameter->offset);
    const struct quantized_weight *weight = &group->quantized;
    *block = weight->block;
    return group->format == WEIGHT_PLAIN || weight->second_block ? 0
                                                                 : tensor_count(&weight->scales);
}

void masters_refresh(const struct masters *masters, struct backend *be) {
    for (ptrdiff_t i = 0; i < arrlen(masters->groups); i++) {
        const struct master_group *group = &masters->groups[i];
        if (group->form == MASTERS_KEPT)
            OP(be, cast, .out = &group->copy, .in = &group->master, .masters = true);
    }
}

/* Returns the quantized matrix as operations read it. */
static const struct quantized_weight *read_quantized(const struct master_group *group) {
    return group->streamed ? &group->buffered.quantized : &group->quantized;
}

bool masters_stored(const struct masters *masters, struct stored_matrices *stored, int64_t layer,
                    enum autocast_site site) {
    stored->count = 0;
    for (ptrdiff_t i = 0; i < arrlen(masters->list); i++) {
        const struct parameter *p = &masters->list[i];
        if (!is_read_by(p, layer, site) || form_of(masters->precision, p) != MASTERS_CAST) continue;
        const struct master_group *group = group_of(masters, p->offset);
        if (group->format == WEIGHT_PLAIN || stored->count == STORED_MAX) return false;
        stored->weights[stored->count++] = read_quantized(group);
    }
    return stored->count > 0;
}

void masters_cast(const struct masters *masters, struct backend *be, int64_t layer,
                  enum autocast_site site) {
    if (masters->scratch_bytes == 0) return;
    for (ptrdiff_t i = 0; i < arrlen(masters->list); i++) {
        const struct parameter *p = &masters->list[i];
        if (!is_read_by(p, layer, site) || form_of(masters->precision, p) != MASTERS_CAST) continue;
        const struct master_group *group = group_of(masters, p->offset);
        struct tensor copy = masters_read_tensor(masters, p);
        if (group->format != WEIGHT_PLAIN) {
            OP(be, dequantize, .out = &copy, .in = read_quantized(group));
            continue;
        }
        struct tensor master = shaped(read_master(group), p->offset - group->first, p);
        OP(be, cast, .out = &copy, .in = &master, .masters = master.dtype == DTYPE_F32);
    }
}

void masters_ready(struct masters *masters, struct backend *be, int64_t layer, int64_t next) {
    layer_stream_fetch(&masters->stream, be, layer);
    layer_stream_fetch(&masters->stream, be, next);
    layer_stream_wait(&masters->stream, be, layer);
}
