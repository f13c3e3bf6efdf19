#include "model/core/masters.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

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

/* Returns the offset in bytes of a parameter's copy in scratch, which begins with the first CAST
 * parameter of its layer. Matrices of a layer are adjacent. */
static size_t scratch_offset(const struct masters *masters, const struct parameter *parameter) {
    size_t offset = 0;
    for (const struct parameter *p = parameter;
         p > masters->list && p[-1].layer == parameter->layer; p--)
        offset += scratch_bytes(masters->precision, p - 1);
    return offset;
}

/* True if a parameter belongs to the group before it. */
static bool joins(const struct master_group *last, const struct master_group *next) {
    return last && last->form == next->form && last->group == next->group &&
           last->offloaded == next->offloaded && last->master.dtype == next->master.dtype &&
           last->format == WEIGHT_PLAIN && next->format == WEIGHT_PLAIN;
}

void masters_open(struct masters *masters, const struct parameter *list,
                  const struct precision *precision, bool offload) {
    *masters = (struct masters){.precision = precision, .list = list};
    for (ptrdiff_t i = 0; i < arrlen(list); i++) {
        const struct parameter *p = &list[i];
        enum master_form form = form_of(precision, p);
        struct master_group *last = arrlen(masters->groups) ? &arrlast(masters->groups) : NULL;
        struct master_group next = {.first = p->offset,
                                    .group = p->group,
                                    .form = form,
                                    .format = format_of(precision, p),
                                    .offloaded = offload && form == MASTERS_SPLIT &&
                                                 p != parameter_wte(list),
                                    .master.dtype = form == MASTERS_SPLIT ? DTYPE_BF16
                                                    : is_frozen_matrix(p) ? precision->frozen
                                                                          : DTYPE_F32,
                                    .parameter = p};
        if (!joins(last, &next)) {
            arrput(masters->groups, next);
            last = &arrlast(masters->groups);
        }
        last->count = p->offset + p->elements - last->first;
        size_t end = scratch_offset(masters, p) + scratch_bytes(precision, p);
        if (end > masters->scratch_bytes) masters->scratch_bytes = end;
    }
}

void masters_drop_frozen(struct masters *masters) {
    while (arrlen(masters->groups) && arrlast(masters->groups).group == GROUP_FROZEN)
        arrpop(masters->groups);
}

void masters_close(struct masters *masters) {
    arrfree(masters->groups);
    free(masters->staging);
    *masters = (struct masters){0};
}

void masters_layout(struct masters *masters, struct arena *arena, struct arena *host) {
    for (ptrdiff_t i = 0; i < arrlen(masters->groups); i++) {
        struct master_group *group = &masters->groups[i];
        const struct extent *extent = &group->parameter->extent;
        if (group->format != WEIGHT_PLAIN) {
            group->quantized =
                quantized_weight_take(arena, group->format, extent->padded_rows, extent->columns);
            continue;
        }
        group->master = arena_tensor(arena, group->master.dtype, group->count, 0);
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

struct tensor masters_read_tensor(const struct masters *masters,
                                  const struct parameter *parameter) {
    const struct master_group *group = group_of(masters, parameter->offset);
    int64_t first = parameter->offset - group->first;
    bool float32 = masters->precision->site[parameter->site] == DTYPE_F32;
    if (group->form == MASTERS_KEPT && !float32) return shaped(&group->copy, first, parameter);
    if (group->form != MASTERS_CAST) return shaped(&group->master, first, parameter);
    struct tensor copy = {
        NULL, masters->precision->site[parameter->site], 1, {parameter->elements}};
    if (masters->scratch) copy.data = (char *)masters->scratch + scratch_offset(masters, parameter);
    return shaped(&copy, 0, parameter);
}

/* Split groups are transferred between host and backend in pieces of this many elements. */
enum { PIECE = 32768 };

/* Copies bytes to the host. be is NULL if `from` is in host memory. */
static void fetch(struct backend *be, void *to, const void *from, size_t bytes) {
    if (be) backend_download(be, to, from, bytes);
    else memcpy(to, from, bytes);
}

static void download_split(const struct master_group *group, struct backend *be, float *values,
                           int64_t first, int64_t count) {
    uint16_t upper[PIECE];
    int16_t remainder[PIECE];
    for (int64_t done = 0; done < count; done += PIECE) {
        int64_t n = count - done < PIECE ? count - done : PIECE, at = first + done;
        size_t bytes = (size_t)n * sizeof *upper;
        fetch(be, upper, (const uint16_t *)group->master.data + at, bytes);
        fetch(be, remainder, group->remainder + at, bytes);
        join_masters(values + done, upper, remainder, (size_t)n);
    }
}

static void upload_split(const struct master_group *group, struct backend *be, const float *values,
                         int64_t first, int64_t count) {
    uint16_t upper[PIECE];
    int16_t remainder[PIECE];
    for (int64_t done = 0; done < count; done += PIECE) {
        int64_t n = count - done < PIECE ? count - done : PIECE, at = first + done;
        size_t bytes = (size_t)n * sizeof *upper;
        split_masters(upper, remainder, values + done, (size_t)n);
        backend_upload(be, (uint16_t *)group->master.data + at, upper, bytes);
        backend_upload(be, group->remainder + at, remainder, bytes);
    }
}

/* Frozen weights in 16 bit are rounded as copies of master weights are, so that linear layers read
 * the same values in every plain dtype that holds theirs. */
static void download_frozen(const struct master_group *group, struct backend *be, float *values,
                            int64_t first, int64_t count) {
    enum dtype dtype = group->master.dtype;
    uint16_t stored[PIECE];
    for (int64_t done = 0; done < count; done += PIECE) {
        int64_t n = count - done < PIECE ? count - done : PIECE, at = first + done;
        fetch(be, stored, (const uint16_t *)group->master.data + at, dtype_size(dtype, n));
        dtype_widen(values + done, stored, dtype, 0, (size_t)n);
    }
}

static void upload_frozen(const struct master_group *group, struct backend *be, const float *values,
                          int64_t first, int64_t count) {
    enum dtype dtype = group->master.dtype;
    uint16_t stored[PIECE];
    for (int64_t done = 0; done < count; done += PIECE) {
        int64_t n = count - done < PIECE ? count - done : PIECE, at = first + done;
        copy_masters(stored, dtype, 0, values + done, (size_t)n);
        backend_upload(be, (uint16_t *)group->master.data + at, stored, dtype_size(dtype, n));
    }
}

/* The arrays of a quantized parameter. */
enum { QUANTIZED_ARRAYS = 4 };
static void list_arrays(const struct tensor *arrays[QUANTIZED_ARRAYS],
                        const struct quantized_weight *weight) {
    arrays[0] = &weight->codes, arrays[1] = &weight->scales;
    arrays[2] = &weight->second_scales, arrays[3] = &weight->mean;
}

/* Returns a copy of a quantized parameter's arrays, without values, in memory of the host; *memory
 * is to be freed, NULL if there is none left. */
static struct quantized_weight host_copy(const struct master_group *group, char **memory) {
    const struct extent *extent = &group->parameter->extent;
    struct arena arena = {0};
    quantized_weight_take(&arena, group->format, extent->padded_rows, extent->columns);
    arena = (struct arena){
        aligned_alloc(ARENA_ALIGNMENT, round_up((int64_t)arena.used, ARENA_ALIGNMENT)), 0,
        arena.used};
    *memory = arena.base;
    return quantized_weight_take(&arena, group->format, extent->padded_rows, extent->columns);
}

static void upload_quantized(const struct master_group *group, struct backend *be,
                             const float *values) {
    const struct tensor *to[QUANTIZED_ARRAYS], *from[QUANTIZED_ARRAYS];
    char *memory;
    if (be->device.host_memory) {
        quantized_weight_store(&group->quantized, values);
        return;
    }
    struct quantized_weight stored = host_copy(group, &memory);
    if (!memory) {
        fail(&be->failure, "out of memory of the host while quantizing weights");
        return;
    }
    quantized_weight_store(&stored, values);
    list_arrays(to, &group->quantized);
    list_arrays(from, &stored);
    for (int i = 0; i < QUANTIZED_ARRAYS; i++)
        if (from[i]->data) backend_upload(be, to[i]->data, from[i]->data, tensor_bytes(from[i]));
    free(memory);
}

static void download_quantized(const struct master_group *group, struct backend *be, float *values,
                               int64_t first, int64_t count) {
    const struct tensor *to[QUANTIZED_ARRAYS], *from[QUANTIZED_ARRAYS];
    char *memory;
    if (!be || be->device.host_memory) {
        quantized_weight_load(&group->quantized, values, first, count);
        return;
    }
    struct quantized_weight stored = host_copy(group, &memory);
    if (!memory) {
        fail(&be->failure, "out of memory of the host while reading quantized weights");
        return;
    }
    list_arrays(to, &stored);
    list_arrays(from, &group->quantized);
    for (int i = 0; i < QUANTIZED_ARRAYS; i++)
        if (to[i]->data) backend_download(be, to[i]->data, from[i]->data, tensor_bytes(to[i]));
    quantized_weight_load(&stored, values, first, count);
    free(memory);
}

/* Part of a range of elements that lies in one group. */
struct group_range {
    const struct master_group *group;
    int64_t first, count; /* first: index in the group */
};

static struct group_range range_in_group(const struct masters *masters, int64_t first,
                                         int64_t count) {
    const struct master_group *group = group_of(masters, first);
    int64_t at = first - group->first, left = group->count - at;
    return (struct group_range){group, at, count < left ? count : left};
}

/* Returns the elements of a range that a quantized group stores, without those between parameters.
 */
static int64_t stored_count(const struct group_range *range) {
    int64_t left = range->group->quantized.count - range->first;
    return left < 0 ? 0 : left < range->count ? left : range->count;
}

void masters_download(const struct masters *masters, struct backend *be, float *values,
                      int64_t first, int64_t count) {
    while (count > 0) {
        struct group_range s = range_in_group(masters, first, count);
        const float *master = (const float *)s.group->master.data + s.first;
        if (s.group->format != WEIGHT_PLAIN) {
            int64_t stored = stored_count(&s);
            download_quantized(s.group, be, values, s.first, stored);
            memset(values + stored, 0, (size_t)(s.count - stored) * sizeof *values);
        } else if (s.group->remainder) download_split(s.group, be, values, s.first, s.count);
        else if (s.group->master.dtype != DTYPE_F32)
            download_frozen(s.group, be, values, s.first, s.count);
        else fetch(be, values, master, (size_t)s.count * sizeof *values);
        values += s.count, first += s.count, count -= s.count;
    }
}

void masters_upload(const struct masters *masters, struct backend *be, const float *values,
                    int64_t first, int64_t count) {
    while (count > 0) {
        struct group_range s = range_in_group(masters, first, count);
        float *master = (float *)s.group->master.data + s.first;
        if (s.group->format != WEIGHT_PLAIN) {
            int64_t stored = stored_count(&s);
            assert(masters->staging || stored == s.group->quantized.count);
            if (!masters->staging) upload_quantized(s.group, be, values);
            else if (stored > 0)
                memcpy(masters->staging + s.first, values, (size_t)stored * sizeof *values);
        } else if (s.group->remainder) upload_split(s.group, be, values, s.first, s.count);
        else if (s.group->master.dtype != DTYPE_F32)
            upload_frozen(s.group, be, values, s.first, s.count);
        else backend_upload(be, master, values, (size_t)s.count * sizeof *values);
        values += s.count, first += s.count, count -= s.count;
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
    return fail(error, "out of memory of the host: %s needs %zu MiB while it is quantized",
                parameter->name, bytes >> 20);
}

void masters_upload_end(struct masters *masters, struct backend *be,
                        const struct parameter *parameter) {
    const struct master_group *group = group_of(masters, parameter->offset);
    if (masters->staging) upload_quantized(group, be, masters->staging);
    free(masters->staging);
    masters->staging = NULL;
}

void masters_refresh(const struct masters *masters, struct backend *be) {
    for (ptrdiff_t i = 0; i < arrlen(masters->groups); i++) {
        const struct master_group *group = &masters->groups[i];
        if (group->form == MASTERS_KEPT)
            OP(be, cast, .out = &group->copy, .in = &group->master, .masters = true);
    }
}

void masters_cast(const struct masters *masters, struct backend *be, int64_t layer) {
    if (masters->scratch_bytes == 0) return;
    for (ptrdiff_t i = 0; i < arrlen(masters->list); i++) {
        const struct parameter *p = &masters->list[i];
        if (p->layer != layer || form_of(masters->precision, p) != MASTERS_CAST) continue;
        const struct master_group *group = group_of(masters, p->offset);
        struct tensor copy = masters_read_tensor(masters, p);
        if (group->format != WEIGHT_PLAIN) {
            OP(be, dequantize, .out = &copy, .in = &group->quantized);
            continue;
        }
        struct tensor master = shaped(&group->master, p->offset - group->first, p);
        OP(be, cast, .out = &copy, .in = &master, .masters = master.dtype == DTYPE_F32);
    }
}
