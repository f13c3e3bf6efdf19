#include "model/io/adapter_merge.h"

#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/utf8.h"
#include "model/io/checkpoint_tensors.h"

void merged_layer_close(struct merged_layer *layer) {
    free(layer->a);
    free(layer->b);
    layer->a = layer->b = NULL;
    layer->of = NULL;
}

/* Returns A or B of a weight: "q_proj.lora_A.weight" of "q_proj.weight"; NULL without adapter. */
static const struct parameter *part_of(const struct parameter *list, const struct parameter *weight,
                                       const char *part) {
    static const char end[] = "weight";
    if (!text_ends(weight->name, end)) return NULL;
    const size_t stem = strlen(weight->name) - strlen(end);
    for (ptrdiff_t i = 0; i < parameter_adapter_count(list); i++)
        if (strncmp(list[i].name, weight->name, stem) == 0 &&
            strcmp(list[i].name + stem, part) == 0)
            return &list[i];
    return NULL;
}

static float *read_part(const struct parameter *list, const struct tensor_files *files,
                        const struct parameter *part, struct error *error) {
    int64_t count = parameter_count(part);
    float *values = malloc((size_t)count * sizeof *values);
    if (!values) fail_memory(error, "an adapter");
    else if (checkpoint_widen(values, checkpoint_find_adapter(list, files, part->name), 0, count,
                              error) == 0)
        return values;
    free(values);
    return NULL;
}

int merged_layer_load(struct merged_layer *layer, const struct parameter *list,
                      const struct tensor_files *files, const struct parameter *weight,
                      struct error *error) {
    if (layer->of == weight) return 0;
    merged_layer_close(layer);
    const struct parameter *a = part_of(list, weight, "lora_A.weight");
    const struct parameter *b = part_of(list, weight, "lora_B.weight");
    layer->of = weight;
    if (!a || !b) return 0;
    layer->rank = a->extent.rows;
    layer->rows = weight->extent.rows, layer->columns = weight->extent.columns;
    layer->a = read_part(list, files, a, error);
    layer->b = layer->a ? read_part(list, files, b, error) : NULL;
    if (layer->b) return 0;
    merged_layer_close(layer);
    return -1;
}

/* Adds to values columns first .. first + count of a row of the weight. */
static void add_row(const struct merged_layer *layer, float *values, int64_t row, int64_t first,
                    int64_t count) {
    enum { PIECE = 256 };
    const bool out_in = layer->out_in;
    const int64_t rank = layer->rank;
    for (int64_t done = 0; done < count; done += PIECE) {
        float sum[PIECE] = {0};
        int64_t n = count - done < PIECE ? count - done : PIECE, at = first + done;
        for (int64_t r = 0; r < rank; r++) {
            float factor = out_in ? layer->b[row * rank + r] : layer->a[r * layer->rows + row];
            const float *a = layer->a + r * layer->columns + at, *b = layer->b + at * rank + r;
            if (out_in)
                for (int64_t i = 0; i < n; i++) sum[i] += factor * a[i];
            else
                for (int64_t i = 0; i < n; i++) sum[i] += factor * b[i * rank];
        }
        for (int64_t i = 0; i < n; i++) values[done + i] += layer->scale * sum[i];
    }
}

void merged_layer_add(const struct merged_layer *layer, float *values, int64_t first,
                      int64_t count) {
    for (int64_t done = 0; done < count;) {
        int64_t row = (first + done) / layer->columns, column = (first + done) % layer->columns;
        int64_t n = layer->columns - column;
        if (n > count - done) n = count - done;
        add_row(layer, values + done, row, column, n);
        done += n;
    }
}
