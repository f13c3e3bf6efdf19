/* make bench-ranks: what the engine of several ranks moves between processes of this machine,
 * beside memcpy of as many bytes by each process at the same time.
 *
 *   build/fast/bench_ranks [--ranks 2] [--mib 64] [--rounds 9]
 *
 * Medians of the slowest rank's times. Bytes are those that each rank receives, (ranks - 1) / ranks
 * of all. cpu: seconds that all threads of rank 0 computed, by second. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/base/statistics.h"
#include "kernels/backend_open.h"
#include "kernels/ranks/collectives.h"
#include "kernels/ranks/launch.h"
#include "test/cpu_time.h"

enum { ROUNDS_MAX = 99 };

struct bench {
    struct ranks ranks;
    struct backend be;
    char *data, *copy; /* [bytes] */
    size_t bytes;
    int rounds;
};

static void die(const char *error) {
    fprintf(stderr, "bench_ranks: %s\n", error);
    exit(1);
}

static int64_t elements(const struct bench *b, enum dtype dtype) {
    return (int64_t)(b->bytes / dtype_bytes(dtype));
}

static void reduce_scatter(struct bench *b, enum dtype dtype) {
    const struct collectives *c = b->be.collectives;
    collectives_wait(c, collectives_reduce_scatter(c, b->data, dtype, elements(b, dtype)));
}

static void all_gather(struct bench *b, enum dtype dtype) {
    const struct collectives *c = b->be.collectives;
    int64_t count = elements(b, dtype);
    collectives_wait(c, collectives_all_gather(c, b->data, dtype_bytes(dtype), count));
}

static size_t received(const struct bench *b) {
    return b->bytes / (size_t)b->ranks.size * (size_t)(b->ranks.size - 1);
}

static void copy(struct bench *b, enum dtype dtype) {
    (void)dtype;
    memcpy(b->copy, b->data, received(b));
}

/* Seconds of the slowest rank. */
static double measure(struct bench *b, void (*run)(struct bench *b, enum dtype dtype),
                      enum dtype dtype, double *cpu) {
    double times[ROUNDS_MAX], busy = 0, all = 0;
    for (int round = -1; round < b->rounds; round++) {
        memset(b->data, 0, b->bytes);
        ranks_barrier(&b->ranks);
        double began = omp_get_wtime(), began_cpu = cpu_seconds();
        run(b, dtype);
        double taken = omp_get_wtime() - began;
        if (round >= 0) busy += cpu_seconds() - began_cpu, all += taken;
        times[round < 0 ? 0 : round] = 1e-9 * (double)ranks_max(&b->ranks, (int64_t)(1e9 * taken));
    }
    *cpu = busy / all;
    return median_of(times, b->rounds);
}

static void transport(struct bench *b) {
    static const struct {
        const char *name;
        void (*run)(struct bench *b, enum dtype dtype);
        enum dtype dtype;
    } rows[] = {{"reduce_scatter", reduce_scatter, DTYPE_F32},
                {"reduce_scatter", reduce_scatter, DTYPE_F16},
                {"reduce_scatter", reduce_scatter, DTYPE_BF16},
                {"all_gather", all_gather, DTYPE_F32},
                {"all_gather", all_gather, DTYPE_BF16}};
    bool tells = b->ranks.rank == 0;
    double ignored, copied = measure(b, copy, DTYPE_F32, &ignored);
    if (tells)
        printf("%d ranks by %s, %zu MiB, medians of %d; memcpy of what a rank receives: %.1f ms, "
               "%.2f GB/s\n%-14s %-5s %8s %8s %9s %6s\n",
               b->ranks.size, b->ranks.description, b->bytes >> 20, b->rounds, 1e3 * copied,
               1e-9 * (double)received(b) / copied, "", "", "ms", "GB/s", "of memcpy", "cpu");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double cpu, s = measure(b, rows[i].run, rows[i].dtype, &cpu);
        if (tells)
            printf("%-14s %-5s %8.1f %8.2f %9.2f %6.2f\n", rows[i].name, dtype_name(rows[i].dtype),
                   1e3 * s, 1e-9 * (double)received(b) / s, copied / s, cpu);
    }
}

static int64_t number_of(const char *text) {
    char *end;
    long long value = text ? strtoll(text, &end, 10) : 0;
    if (value < 1 || value > 1 << 20 || *end)
        die("usage: bench_ranks [--ranks N] [--mib N] [--rounds N]");
    return value;
}

int main(int argc, char **argv) {
    struct bench b = {.rounds = 9};
    struct error error = {0};
    int64_t ranks = 2, mib = 64;
    for (int i = 1; i < argc; i += 2) {
        int64_t value = number_of(argv[i + 1]);
        if (strcmp(argv[i], "--ranks") == 0) ranks = value;
        else if (strcmp(argv[i], "--mib") == 0) mib = value;
        else if (strcmp(argv[i], "--rounds") == 0 && value <= ROUNDS_MAX) b.rounds = (int)value;
        else die("usage: bench_ranks [--ranks N] [--mib N] [--rounds N]");
    }
    if (ranks > 1 && ranks_launched() == 1) {
        int status = ranks_launch(ranks, argv, &error);
        if (status < 0) die(error.text);
        return status;
    }
    if (ranks_open(&b.ranks, &error)) die(error.text);
    const struct backend_options options = {DEVICE_CPU, .ranks = &b.ranks};
    if (backend_open(&b.be, &options, &error)) die(error.text);
    b.bytes = (size_t)mib << 20;
    b.data = backend_allocate(&b.be, b.bytes);
    b.copy = backend_allocate(&b.be, b.bytes);
    if (!b.data || !b.copy) die("out of memory");
    memset(b.copy, 0, b.bytes);
    transport(&b);
    backend_release(&b.be, b.data);
    backend_release(&b.be, b.copy);
    backend_close(&b.be);
    ranks_close(&b.ranks);
    return 0;
}
