#include "test/gpu_bench_subject.h"

#include <stdlib.h>
#include <string.h>

#include "data/util/random.h"

enum { ROUNDS = 5, PATTERN = 1 << 20 /* different random values */ };

void *take(struct subject *s, size_t bytes) {
    void *memory = backend_allocate(s->be, bytes);
    if (!memory) {
        snprintf(s->be->failure.text, sizeof s->be->failure.text, "out of memory: no %zu MiB",
                 bytes >> 20);
        return NULL;
    }
    s->blocks[s->block_count++] = memory;
    return memory;
}

/* Realistic values: a matmul of zeros draws less power and runs faster. */
static const float *random_pattern(void) {
    static float *pattern;
    if (pattern) return pattern;
    pattern = malloc(PATTERN * sizeof *pattern);
    for (uint64_t i = 0; i < PATTERN; i++) pattern[i] = (float)random_normal(3, 1, i);
    return pattern;
}

static void fill(struct subject *s, const struct tensor *tensor, double scale) {
    size_t bytes = tensor_bytes(tensor), size = dtype_bytes(tensor->dtype);
    size_t first = bytes < PATTERN * size ? bytes : PATTERN * size;
    float *values = malloc(PATTERN * sizeof *values);
    void *stored = malloc(PATTERN * size);
    for (int i = 0; i < PATTERN; i++) values[i] = (float)scale * random_pattern()[i];
    dtype_store(stored, tensor->dtype, 0, values, PATTERN);
    backend_upload(s->be, tensor->data, stored, first);
    for (size_t done = first; done < bytes; done *= 2)
        gpu_copy(s->be, (char *)tensor->data + done, tensor->data,
                 done < bytes - done ? done : bytes - done);
    gpu_wait(s->be);
    free(stored);
    free(values);
}

void make(struct subject *s, int i, enum dtype dtype, int64_t rows, int64_t columns, double scale) {
    s->t[i] = (struct tensor){NULL, dtype, columns ? 2 : 1, {rows, columns}};
    s->t[i].data = take(s, tensor_bytes(&s->t[i]));
    if (!s->t[i].data) return;
    if (scale > 0) fill(s, &s->t[i], scale);
    else OP(s->be, clear, .data = s->t[i].data, .bytes = tensor_bytes(&s->t[i]));
}

float *make_vector(struct subject *s, int64_t count) {
    float *vector = take(s, (size_t)count * sizeof(float));
    if (vector) OP(s->be, clear, .data = vector, .bytes = (size_t)count * sizeof(float));
    return vector;
}

void make_tokens(struct subject *s, int64_t count, int64_t limit) {
    size_t bytes = (size_t)count * sizeof(int32_t);
    int32_t *host = malloc(bytes);
    for (int64_t i = 0; i < count; i++)
        host[i] = (int32_t)(random_bits(4, 1, (uint64_t)i) % (uint64_t)limit);
    s->tokens = take(s, bytes);
    if (s->tokens) backend_upload(s->be, s->tokens, host, bytes);
    free(host);
}

void make_decode_keys(struct subject *s, int64_t sequences, int64_t length) {
    size_t bytes = (size_t)sequences * sizeof(struct decode_keys);
    struct decode_keys *host = calloc(1, bytes);
    for (int64_t i = 0; i < sequences; i++)
        host[i] = (struct decode_keys){.first = (int32_t)(i * length), .count = (int32_t)length};
    s->tokens = take(s, bytes);
    if (s->tokens) backend_upload(s->be, s->tokens, host, bytes);
    free(host);
}

void make_state(struct subject *s) {
    struct step_state state = {.loss_scale = 1, .clip_factor = 1};
    s->state = take(s, sizeof state);
    if (s->state) backend_upload(s->be, s->state, &state, sizeof state);
    struct step_inputs inputs = {.lr = 1e-4, .loss_weight = 1};
    s->inputs = take(s, sizeof inputs);
    if (s->inputs) backend_upload(s->be, s->inputs, &inputs, sizeof inputs);
}

static void release(struct subject *s) {
    while (s->block_count) backend_release(s->be, s->blocks[--s->block_count]);
}

static double timed(struct subject *s, int calls) {
    gpu_mark(s->be, 0);
    for (int i = 0; i < calls; i++) s->body(s);
    gpu_mark(s->be, 1);
    return gpu_seconds(s->be, 0, 1) / calls;
}

double measure(struct subject *s, const char *what) {
    struct backend *be = s->be;
    double rounds[ROUNDS] = {0};
    if (!be->failure.text[0]) {
        backend_plan_begin(be);
        s->body(s);
        if (backend_plan_end(be, &be->failure) == 0) {
            timed(s, 1);
            double once = timed(s, 1), wanted = s->bench->seconds / ROUNDS;
            int calls = once * 200 < wanted ? 200 : 1 + (int)(wanted / once);
            if (s->bench->tiny) calls = 1;
            for (int i = 0; i < ROUNDS && !be->failure.text[0]; i++) rounds[i] = timed(s, calls);
        }
    }
    double seconds = median_of(rounds, ROUNDS);
    if (be->failure.text[0]) {
        bench_failed(s->bench, what, be->failure.text);
        be->failure.text[0] = 0;
        gpu_forget_error();
        seconds = 0;
    }
    release(s);
    return seconds;
}
