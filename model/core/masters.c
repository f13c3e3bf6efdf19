#include "model/core/masters.h"

#include <stb/stb_ds.h>

static enum master_form form_of(const struct precision *precision, const struct parameter *p) {
    if (precision->compute_dtype == DTYPE_F32 || p->adapter) return MASTERS_FLOAT32;
    if (p->extent.columns == 0) return MASTERS_KEPT;
    return precision->site[p->site] == DTYPE_F32 ? MASTERS_FLOAT32 : precision->masters;
}

/* Returns the offset of a parameter's copy in scratch, which begins with the first CAST parameter
 * of its layer. Matrices of a layer are adjacent. */
static int64_t scratch_offset(const struct masters *masters, const struct parameter *parameter) {
    int64_t first = parameter->offset;
    for (const struct parameter *p = parameter;
         p > masters->list && p[-1].layer == parameter->layer; p--)
        if (form_of(masters->precision, p - 1) == MASTERS_CAST) first = p[-1].offset;
    return parameter->offset - first;
}

void masters_open(struct masters *masters, const struct parameter *list,
                  const struct precision *precision, bool offload) {
    *masters = (struct masters){.precision = precision, .list = list};
    struct master_group *last = NULL;
    for (ptrdiff_t i = 0; i < arrlen(list); i++) {
        const struct parameter *p = &list[i];
        enum master_form form = form_of(precision, p);
        bool offloaded = offload && form == MASTERS_SPLIT && p != parameter_wte(list);
        if (!last || last->form != form || last->group != p->group ||
            last->offloaded != offloaded) {
            struct master_group group = {p->offset, 0, p->group, form, .offloaded = offloaded};
            arrput(masters->groups, group);
            last = &arrlast(masters->groups);
        }
        last->count = p->offset + p->elements - last->first;
        if (form != MASTERS_CAST) continue;
        int64_t end = scratch_offset(masters, p) + p->elements;
        if (end > masters->scratch_count) masters->scratch_count = end;
    }
}

void masters_close(struct masters *masters) {
    arrfree(masters->groups);
    *masters = (struct masters){0};
}

void masters_layout(struct masters *masters, struct arena *arena, struct arena *host) {
    for (ptrdiff_t i = 0; i < arrlen(masters->groups); i++) {
        struct master_group *group = &masters->groups[i];
        bool split = group->form == MASTERS_SPLIT;
        group->master = arena_tensor(arena, split ? DTYPE_BF16 : DTYPE_F32, group->count, 0);
        if (split)
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
    masters->scratch = arena_tensor(arena, lower, masters->scratch_count, 0);
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
    if (group->form == MASTERS_CAST)
        return shaped(&masters->scratch, scratch_offset(masters, parameter), parameter);
    return shaped(&group->master, first, parameter);
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

void masters_download(const struct masters *masters, struct backend *be, float *values,
                      int64_t first, int64_t count) {
    while (count > 0) {
        struct group_range s = range_in_group(masters, first, count);
        const float *master = (const float *)s.group->master.data + s.first;
        if (s.group->remainder) download_split(s.group, be, values, s.first, s.count);
        else fetch(be, values, master, (size_t)s.count * sizeof *values);
        values += s.count, first += s.count, count -= s.count;
    }
}

void masters_upload(const struct masters *masters, struct backend *be, const float *values,
                    int64_t first, int64_t count) {
    while (count > 0) {
        struct group_range s = range_in_group(masters, first, count);
        float *master = (float *)s.group->master.data + s.first;
        if (s.group->remainder) upload_split(s.group, be, values, s.first, s.count);
        else backend_upload(be, master, values, (size_t)s.count * sizeof *values);
        values += s.count, first += s.count, count -= s.count;
    }
}

void masters_refresh(const struct masters *masters, struct backend *be) {
    for (ptrdiff_t i = 0; i < arrlen(masters->groups); i++) {
        const struct master_group *group = &masters->groups[i];
        if (group->form == MASTERS_KEPT)
            OP(be, cast, .out = &group->copy, .in = &group->master, .masters = true);
    }
}

void masters_cast(const struct masters *masters, struct backend *be, int64_t layer) {
    if (masters->scratch_count == 0) return;
    for (ptrdiff_t i = 0; i < arrlen(masters->list); i++) {
        const struct parameter *p = &masters->list[i];
        if (p->layer != layer || form_of(masters->precision, p) != MASTERS_CAST) continue;
        int16_t *none;
        struct tensor copy = masters_read_tensor(masters, p),
                      master = masters_tensor(masters, p, &none);
        OP(be, cast, .out = &copy, .in = &master, .masters = true);
    }
}
