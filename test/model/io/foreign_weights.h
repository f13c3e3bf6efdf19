/* Shared by the tests of imports and exports: weights in the formats of other programs, in the
 * test's folder. Needs test/model/io/checkpoint_fixture.h before it. */
#pragma once

#include "model/architecture/parameters.h"
#include "model/io/safetensors.h"

struct foreign_format {
    enum safetensors_dtype dtype;
    const char *prefix;
    const char *extra;   /* name of one more tensor, or NULL */
    const char *missing; /* parameter left out, or NULL */
    int head;            /* 0: no lm_head.weight, 1: tied, 2: untied */
    int shards;          /* 0: one file without an index */
    bool mixed;          /* dtypes alternate, beginning with `dtype` */
    const char *longer;  /* parameter with an extra row, or NULL */
};

enum { FOREIGN_MAX = 40 };

struct foreign_tensor {
    struct safetensors_entry entry;
    char name[80];
    int64_t id; /* known to value_of */
};

/* Small multiples of 1/64: exact in all dtypes. */
static inline float value_of(int64_t tensor, int64_t index) {
    return (float)((tensor * 31 + index * 7) % 255 - 127) / 64.0f;
}

static inline void put_text(const char *name, const char *text) {
    FILE *out = fopen(in_folder("%s", name), "w");
    cr_assert_not_null(out);
    fputs(text, out);
    cr_assert_eq(fclose(out), 0);
}

static inline const char *shard_name(const struct foreign_format *format, int shard) {
    static char names[4][48];
    static int turn;
    char *name = names[turn++ % 4];
    if (format->shards == 0) return "model.safetensors";
    snprintf(name, sizeof *names, "model-%05d-of-%05d.safetensors", shard + 1, format->shards);
    return name;
}

static inline void put_values(struct safetensors_writer *writer,
                              const struct foreign_tensor *tensor) {
    static const enum dtype dtypes[] = {[SAFETENSORS_F16] = DTYPE_F16,
                                        [SAFETENSORS_BF16] = DTYPE_BF16,
                                        [SAFETENSORS_F32] = DTYPE_F32};
    const struct safetensors_entry *entry = &tensor->entry;
    enum dtype dtype = dtypes[entry->dtype];
    uint64_t count = entry->shape[0] * (entry->rank == 2 ? entry->shape[1] : 1);
    for (uint64_t k = 0; k < count; k++) {
        uint32_t stored = 0;
        float value = value_of(tensor->id, (int64_t)k);
        dtype_store(&stored, dtype, 0, &value, 1);
        SUCCEEDS(safetensors_write_data(writer, &stored, dtype_bytes(dtype), &error));
    }
}

static inline int list_foreign(struct foreign_tensor tensors[FOREIGN_MAX],
                               const struct parameter *list, const struct foreign_format *format) {
    static const enum safetensors_dtype turns[] = {SAFETENSORS_F32, SAFETENSORS_F16,
                                                   SAFETENSORS_BF16};
    int count = 0;
    for (ptrdiff_t i = 0; i < arrlen(list) + 2; i++) {
        bool own = i < arrlen(list), head = i == arrlen(list);
        const struct parameter *p = &list[own ? i : 0];
        if (own && format->missing && strcmp(p->name, format->missing) == 0) continue;
        if ((head && !format->head) || (!own && !head && !format->extra)) continue;
        struct foreign_tensor *tensor = &tensors[count++];
        if (own) snprintf(tensor->name, sizeof tensor->name, "%s%s", format->prefix, p->name);
        else
            snprintf(tensor->name, sizeof tensor->name, "%s",
                     head ? "lm_head.weight" : format->extra);
        bool longer = own && format->longer && strcmp(p->name, format->longer) == 0;
        tensor->entry = (struct safetensors_entry){
            .name = tensor->name,
            .dtype = format->mixed ? turns[i % 3] : format->dtype,
            .rank = p->extent.columns ? 2 : 1,
            .shape = {(uint64_t)p->extent.rows + longer, (uint64_t)p->extent.columns},
        };
        tensor->id = own ? i : head && format->head == 1 ? 0 : 50;
    }
    return count;
}

/* Tensor i goes to shard i modulo their number. */
static inline void put_shard(const struct foreign_tensor *tensors, int count, int shard, int shards,
                             const char *name) {
    struct safetensors_entry entries[FOREIGN_MAX];
    struct safetensors_writer writer;
    int used = 0;
    for (int i = shard; i < count; i += shards) entries[used++] = tensors[i].entry;
    SUCCEEDS(safetensors_write_begin(&writer, in_folder("%s", name), entries, used, &error));
    for (int i = shard; i < count; i += shards) put_values(&writer, &tensors[i]);
    SUCCEEDS(safetensors_write_end(&writer, &error));
}

static inline void put_index(const struct foreign_tensor *tensors, int count,
                             const struct foreign_format *format) {
    FILE *out = fopen(in_folder("model.safetensors.index.json"), "w");
    cr_assert_not_null(out);
    fputs("{\"metadata\": {\"total_size\": 1}, \"weight_map\": {", out);
    for (int i = 0; i < count; i++)
        fprintf(out, "%s\"%s\": \"%s\"", i ? ", " : "", tensors[i].name,
                shard_name(format, i % format->shards));
    fputs("}}", out);
    cr_assert_eq(fclose(out), 0);
}

/* Weights with the names and shapes of the list. */
static inline void put_weights(const struct parameter *list, const struct foreign_format *format) {
    struct foreign_tensor tensors[FOREIGN_MAX];
    int count = list_foreign(tensors, list, format);
    int shards = format->shards ? format->shards : 1;
    for (int shard = 0; shard < shards; shard++)
        put_shard(tensors, count, shard, shards, shard_name(format, shard));
    if (format->shards) put_index(tensors, count, format);
}
