#include "model/core/model_initialize.h"

#include <math.h>

#include <stb/stb_ds.h>

#include "data/util/random.h"

enum { DRAW_CHUNK = 8192, SEND_CHUNK = 16 * DRAW_CHUNK };

/* Draws elements first..first+count of a parameter's initial value. */
static void draw(float *values, const struct parameter *parameter, uint64_t seed, uint64_t stream,
                 int64_t first, int64_t count) {
    if (parameter->init > 0) {
        random_normals(values, parameter->init, seed, stream, (uint64_t)first, count);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        values[i] = parameter->init == INIT_ONE ? 1.0f : 0.0f;
        if (parameter->init == INIT_LOG_UNIFORM)
            values[i] =
                logf(0.01f + 15.99f * (float)random_uniform(seed, stream, (uint64_t)(first + i)));
    }
}

/* On a CPU each thread stores the values that it draws. */
static void initialize_in_place(struct model *model, uint64_t seed, ptrdiff_t index) {
    const struct parameter *p = &model->list[index];
    int64_t total = parameter_count(p);
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < total; first += DRAW_CHUNK) {
        float values[DRAW_CHUNK];
        int64_t count = total - first < DRAW_CHUNK ? total - first : DRAW_CHUNK;
        draw(values, p, seed, (uint64_t)index + 1, first, count);
        masters_upload(&model->masters, model->be, values, p->offset + first, count);
    }
}

/* For a device all threads draw values and one thread sends them. */
static void initialize_and_send(struct model *model, uint64_t seed, ptrdiff_t index) {
    const struct parameter *p = &model->list[index];
    float values[SEND_CHUNK];
    for (int64_t begin = 0, total = parameter_count(p); begin < total; begin += SEND_CHUNK) {
        int64_t sent = total - begin < SEND_CHUNK ? total - begin : SEND_CHUNK;
#pragma omp parallel for schedule(static)
        for (int64_t first = 0; first < sent; first += DRAW_CHUNK)
            draw(values + first, p, seed, (uint64_t)index + 1, begin + first,
                 sent - first < DRAW_CHUNK ? sent - first : DRAW_CHUNK);
        masters_upload(&model->masters, model->be, values, p->offset + begin, sent);
    }
}

static void initialize_first(struct model *model, uint64_t seed, ptrdiff_t count) {
    struct backend *be = model->be;
    for (ptrdiff_t i = 0; i < count; i++) {
        if (masters_upload_begin(&model->masters, &model->list[i], &be->failure)) return;
        if (be->device.kind == BACKEND_CPU) initialize_in_place(model, seed, i);
        else initialize_and_send(model, seed, i);
        masters_upload_end(&model->masters, be, &model->list[i], NULL);
    }
    masters_refresh(&model->masters, be);
}

void model_initialize(struct model *model, uint64_t seed) {
    initialize_first(model, seed, arrlen(model->list));
}

void model_initialize_adapters(struct model *model, uint64_t seed) {
    initialize_first(model, seed, parameter_adapter_count(model->list));
}
