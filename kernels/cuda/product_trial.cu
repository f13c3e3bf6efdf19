/* A product is run once before step 0, on memory that has nothing else to do: what the library
 * offers and then refuses is found while there is another algorithm, or a form with less in it, to
 * fall back on. With autotune every algorithm is timed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/plain_c.h"
#include "kernels/cuda/products.h"

enum { WARM_UPS = 2, TIMED_RUNS = 5 };
static const size_t PATTERN_BYTES = 1 << 16;

struct trial {
    struct cuda_products *products;
    struct product_memory operands;
    cudaEvent_t event[2];
};

static size_t place(struct product_memory *operands, const struct product_key *key,
                    size_t workspace_bytes, void *memory) {
    struct arena arena = {(char *)memory, 0, SIZE_MAX};
    size_t out = dtype_bytes((enum dtype)key->out);
    operands->a =
        arena_take(&arena, (size_t)(key->m * key->k) * dtype_bytes((enum dtype)key->a_in));
    operands->b =
        arena_take(&arena, (size_t)(key->k * key->n) * dtype_bytes((enum dtype)key->b_in));
    operands->a_scale = (const float *)arena_take(&arena, sizeof(float));
    operands->b_scale = (const float *)arena_take(&arena, sizeof(float));
    operands->out = arena_take(&arena, (size_t)(key->m * key->n) * out);
    operands->aux = arena_take(&arena, (size_t)(key->m * key->n) * out);
    operands->vector = arena_take(&arena, (size_t)key->n * out);
    operands->workspace = arena_take(&arena, workspace_bytes);
    return arena.used;
}

/* Numbers of all signs and many sizes around 1, since the clocks of a GPU go by the bits that it
 * switches; in every dtype that operands have, and never infinite: 16 bits of 0x3c00 with some of
 * them at random are 2^-7 to 2 in bf16, 1 to 2 in fp16, and the bytes are finite in E4M3 and E5M2.
 */
static bool fill(const struct cuda_products *products, char *memory, size_t bytes) {
    static uint16_t pattern[PATTERN_BYTES / sizeof(uint16_t)];
    for (size_t i = 0; i < PATTERN_BYTES / sizeof *pattern; i++)
        pattern[i] = (uint16_t)(0x3c00 | (random_bits(12, 0, i) & 0x83fb));
    size_t first = bytes < PATTERN_BYTES ? bytes : PATTERN_BYTES;
    bool ok = !cudaMemcpyAsync(memory, pattern, first, cudaMemcpyHostToDevice, products->stream);
    for (size_t done = first; done < bytes && ok; done *= 2)
        ok = !cudaMemcpyAsync(memory + done, memory, done < bytes - done ? done : bytes - done,
                              cudaMemcpyDeviceToDevice, products->stream);
    return ok;
}

/* Whether the algorithm works; notes what was said if not. */
static bool works(struct trial *trial, const struct cuda_product *product) {
    struct cuda_products *products = trial->products;
    cublasStatus_t status = product_run(products, product, &trial->operands);
    cudaError_t error = status ? cudaSuccess : cudaStreamSynchronize(products->stream);
    if (!status && error == cudaSuccess) return true;
    snprintf(products->refusal, sizeof products->refusal,
             "cuBLASLt offers an algorithm and then fails: %s",
             status ? products->lt.GetStatusString(status) : cudaGetErrorString(error));
    return false;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The median of some runs, in milliseconds; infinite if the algorithm fails. */
static float time_product(struct trial *trial, const struct cuda_product *product) {
    cudaStream_t stream = trial->products->stream;
    float times[TIMED_RUNS];
    for (int run = -WARM_UPS; run < TIMED_RUNS; run++) {
        if (cudaEventRecord(trial->event[0], stream) || !works(trial, product) ||
            cudaEventRecord(trial->event[1], stream) || cudaEventSynchronize(trial->event[1]))
            return INFINITY;
        if (run >= 0 && cudaEventElapsedTime(&times[run], trial->event[0], trial->event[1]))
            return INFINITY;
    }
    qsort(times, TIMED_RUNS, sizeof *times, by_value);
    return times[TIMED_RUNS / 2];
}

static int choose(struct trial *trial, struct cuda_product *product,
                  const cublasLtMatmulHeuristicResult_t *algorithms, int count) {
    bool tune = trial->products->autotune && count > 1;
    int best = -1;
    float least = INFINITY;
    for (int i = 0; i < count; i++) {
        product->algorithm = algorithms[i].algo;
        product->workspace_bytes = algorithms[i].workspaceSize;
        if (!tune && works(trial, product)) return i;
        float time = tune ? time_product(trial, product) : INFINITY;
        if (time < least) {
            least = time;
            best = i;
        }
    }
    return best;
}

int product_try(struct cuda_products *products, struct cuda_product *product,
                const cublasLtMatmulHeuristicResult_t *algorithms, int count) {
    struct trial trial = {products, {}, {NULL, NULL}};
    size_t workspace_bytes = 0;
    void *memory = NULL;
    int chosen = 0;
    for (int i = 0; i < count; i++)
        if (algorithms[i].workspaceSize > workspace_bytes)
            workspace_bytes = algorithms[i].workspaceSize;
    size_t bytes = place(&trial.operands, &product->key, workspace_bytes, NULL);
    cudaError_t error = cudaMalloc(&memory, bytes);
    if (error == cudaSuccess) error = cudaEventCreate(&trial.event[0]);
    if (error == cudaSuccess) error = cudaEventCreate(&trial.event[1]);
    if (error != cudaSuccess && error != cudaErrorMemoryAllocation) {
        snprintf(products->refusal, sizeof products->refusal, "it cannot be tried: %s",
                 cudaGetErrorString(error));
        chosen = -1;
    } else if (error == cudaSuccess) {
        place(&trial.operands, &product->key, workspace_bytes, memory);
        if (fill(products, (char *)memory, bytes))
            chosen = choose(&trial, product, algorithms, count);
    }
    for (int i = 0; i < 2; i++)
        if (trial.event[i]) cudaEventDestroy(trial.event[i]);
    if (memory) cudaFree(memory);
    cudaGetLastError(); /* too little memory: then the library's own first choice */
    return chosen;
}
