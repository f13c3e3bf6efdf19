#include "model/lab/audit/audit.h"

#include <math.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/table.h"

enum { DTYPES_AUDITED = 3 };
static const struct {
    enum config_newton_schulz dtype;
    const char *name;
} audited[DTYPES_AUDITED] = {{CONFIG_NEWTON_SCHULZ_F32, "fp32"},
                             {CONFIG_NEWTON_SCHULZ_BF16, "bf16"},
                             {CONFIG_NEWTON_SCHULZ_F16, "fp16"}};

/* The momentum of one matrix, on the host, and its results. */
struct matrix {
    int64_t rows, columns;
    float *momentum, *exact; /* stb_ds arrays [rows, columns]; exact: the result in fp32 */
    char *stored;            /* stb_ds array */
    struct fetched fetched;
};

static int64_t side_of(const struct matrix *m) {
    return m->rows < m->columns ? m->rows : m->columns;
}

/* Returns the gram matrix of a result, in scratch of the iteration: fp32 [side, side]. */
static struct tensor gram_of(const struct muon *muon, const struct tensor *result) {
    const bool wide = tensor_rows(result) <= tensor_columns(result);
    int64_t side = wide ? tensor_rows(result) : tensor_columns(result);
    struct tensor gram = tensor_view(&muon->square, side, side);
    OP(muon->be, matmul, .out = &gram, .a = result, .b = result, .transpose_a = !wide,
       .transpose_b = wide);
    return gram;
}

/* Runs the iteration on a matrix and measures its result. */
static void measure(cJSON *row, const struct muon *muon, struct matrix *m, int dtype) {
    int64_t count = m->rows * m->columns, side = side_of(m);
    struct tensor result = tensor_view(&muon->directions, m->rows, m->columns);
    double defect = 0, difference = 0, size = 0;
    arrsetlen(m->stored, tensor_bytes(&result));
    dtype_store(m->stored, result.dtype, 0, m->momentum, (size_t)count);
    backend_upload(muon->be, result.data, m->stored, tensor_bytes(&result));
    muon_orthogonalize(muon, &result);
    const float *values = fetch_tensor(&m->fetched, muon->be, &result);
    for (int64_t i = 0; i < count; i++) {
        if (dtype == 0) m->exact[i] = values[i];
        difference += pow((double)values[i] - (double)m->exact[i], 2);
        size += (double)m->exact[i] * (double)m->exact[i];
    }
    struct tensor gram = gram_of(muon, &result);
    values = fetch_tensor(&m->fetched, muon->be, &gram);
    for (int64_t i = 0; i < side * side; i++)
        defect += pow((double)values[i] - (i % (side + 1) == 0), 2);
    cJSON *object = cJSON_AddObjectToObject(row, audited[dtype].name);
    JSON_NUMBERS(object, {"defect", sqrt(defect / (double)side)},
                 {"difference", sqrt(difference / size)});
}

/* Adds a row for some columns of a parameter, whose momentum is `all`. */
static void audit_part(cJSON *rows, const struct muon muon[DTYPES_AUDITED],
                       const struct parameter *p, const float *all, int64_t first, int64_t columns,
                       const char *part) {
    struct matrix m = {.rows = p->extent.rows, .columns = columns};
    char name[96];
    arrsetlen(m.exact, m.rows * columns);
    snprintf(name, sizeof name, "%s%s", p->name, part);
    cJSON *row = json_add_item(rows);
    cJSON_AddStringToObject(row, "name", name);
    snprintf(name, sizeof name, "%s%s", p->kind, part);
    cJSON_AddStringToObject(row, "kind", name);
    JSON_NUMBERS(row, {"rows", (double)m.rows}, {"columns", (double)m.columns});
    for (int64_t i = 0; i < m.rows * columns; i++)
        arrput(m.momentum, all[i / columns * p->extent.columns + first + i % columns]);
    for (int i = 0; i < DTYPES_AUDITED; i++) measure(row, &muon[i], &m, i);
    fetched_free(&m.fetched);
    arrfree(m.stored);
    arrfree(m.momentum);
    arrfree(m.exact);
}

static void audit_parameter(cJSON *rows, const struct muon muon[DTYPES_AUDITED],
                            const struct trainer *trainer, const struct parameter *p) {
    static const char *const names[] = {" q", " k", " v"};
    const struct gpt_shape *s = &trainer->gpt.shape;
    const int64_t widths[] = {shape_q(s), shape_kv(s), shape_kv(s)};
    enum dtype dtype = trainer->optimizer.moments[0].dtype;
    int64_t first = 0, count = parameter_count(p);
    struct fetched momentum = {0};
    arrsetlen(momentum.raw, (size_t)count * dtype_bytes(dtype));
    arrsetlen(momentum.values, (size_t)count);
    optimizer_download(&trainer->optimizer, 0, momentum.raw, p->offset, count);
    const float *values = dtype_widen(momentum.values, momentum.raw, dtype, 0, (size_t)count);
    if (!muon_splits_qkv(p, s)) audit_part(rows, muon, p, values, 0, p->extent.columns, "");
    for (int i = 0; i < 3 && muon_splits_qkv(p, s); first += widths[i++])
        audit_part(rows, muon, p, values, first, widths[i], names[i]);
    fetched_free(&momentum);
}

/* Opens an iteration in each dtype, with scratch like the optimizer's, and plans its matmuls. */
static int open_iterations(struct muon muon[DTYPES_AUDITED], struct config configs[DTYPES_AUDITED],
                           struct trainer *trainer, struct error *error) {
    const struct muon *own = &trainer->optimizer.muon;
    const struct parameter *list = trainer->gpt.list;
    struct backend *be = trainer->be;
    for (int i = 0; i < DTYPES_AUDITED; i++) {
        configs[i] = *trainer->config;
        configs[i].optimizer.newton_schulz_dtype = audited[i].dtype;
        muon[i] = (struct muon){
            .elements = own->elements, .side = own->side, .direction_count = own->elements};
        muon_open(&muon[i], be, &configs[i]);
        if (muon_allocate(&muon[i], error)) return -1;
    }
    backend_plan_begin(be);
    for (ptrdiff_t k = 0; k < parameter_trained_count(list); k++) {
        const int64_t rows = list[k].extent.rows, columns = list[k].extent.columns;
        if (update_rule_of(trainer->config, &list[k])->name != CONFIG_OPTIMIZER_MUON) continue;
        for (int i = 0; i < DTYPES_AUDITED; i++) {
            struct tensor whole = tensor_view(&muon[i].directions, rows, columns);
            muon_direction(&muon[i], &whole, &list[k], &trainer->gpt.shape);
            gram_of(&muon[i], &whole);
        }
    }
    return backend_plan_end(be, error);
}

int audit_muon(struct cJSON **rows, struct trainer *trainer, struct error *error) {
    struct muon muon[DTYPES_AUDITED] = {{0}};
    struct config *configs = NULL; /* stb_ds array */
    const struct parameter *list = trainer->gpt.list;
    arrsetlen(configs, DTYPES_AUDITED);
    int status = open_iterations(muon, configs, trainer, error);
    *rows = cJSON_CreateArray();
    for (ptrdiff_t i = 0; status == 0 && i < parameter_trained_count(list); i++)
        if (update_rule_of(trainer->config, &list[i])->name == CONFIG_OPTIMIZER_MUON)
            audit_parameter(*rows, muon, trainer, &list[i]);
    for (int i = 0; i < DTYPES_AUDITED; i++) muon_close(&muon[i]);
    arrfree(configs);
    return status;
}
