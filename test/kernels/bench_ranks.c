/* Benchmark of the collectives between processes of this machine, each beside a memcpy of as
 * many bytes by every process at the same time.
 *
 *   build/fast/tests --bench ranks [--ranks 2] [--mib 64] [--rounds 9]
 *
 * Medians of the slowest rank's times. Bytes are those that each rank receives, (ranks - 1) /
 * ranks of all. cpu: CPU time of all threads of rank 0 per second. */
#include <omp.h>
#include <stdio.h>
#include <string.h>

#include "data/util/statistics.h"
#include "kernels/open/backend_open.h"
#include "kernels/collectives.h"
#include "kernels/comm/launch.h"
#include "test/cpu_time.h"
#include "test/kernels/bench.h"

struct subject {
    struct ranks ranks;
    struct backend be;
    char *data, *copy; /* [bytes] */
    size_t bytes;
    int rounds;
};

static int64_t elements(const struct subject *b, enum dtype dtype) {
    return (int64_t)(b->bytes / dtype_bytes(dtype));
}

static void reduce_scatter(struct subject *b, enum dtype dtype) {
    const struct collectives *c = b->be.collectives;
    collectives_wait(c, collectives_reduce_scatter(c, b->data, dtype, elements(b, dtype)));
}

static void all_gather(struct subject *b, enum dtype dtype) {
    const struct collectives *c = b->be.collectives;
    int64_t count = elements(b, dtype);
    collectives_wait(c, collectives_all_gather(c, b->data, dtype_bytes(dtype), count));
}

static size_t received(const struct subject *b) {
    return b->bytes / (size_t)b->ranks.size * (size_t)(b->ranks.size - 1);
}

static void copy(struct subject *b, enum dtype dtype) {
    (void)dtype;
    memcpy(b->copy, b->data, received(b));
}

/* Returns the time of the slowest rank, in seconds. */
static double measure(struct subject *b, void (*run)(struct subject *b, enum dtype dtype),
                      enum dtype dtype, double *cpu) {
    double times[BENCH_ROUNDS_MAX], busy = 0, all = 0;
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

static void transport(struct subject *b) {
    static const struct {
        const char *name;
        void (*run)(struct subject *b, enum dtype dtype);
        enum dtype dtype;
    } rows[] = {{"reduce_scatter", reduce_scatter, DTYPE_F32},
                {"reduce_scatter", reduce_scatter, DTYPE_F16},
                {"reduce_scatter", reduce_scatter, DTYPE_BF16},
                {"all_gather", all_gather, DTYPE_F32},
                {"all_gather", all_gather, DTYPE_BF16}};
    bool prints = b->ranks.rank == 0;
    double ignored, copied = measure(b, copy, DTYPE_F32, &ignored);
    if (prints)
        printf("%d ranks by %s, %zu MiB, medians of %d; memcpy of what a rank receives: %.1f ms, "
               "%.2f GB/s\n%-14s %-5s %8s %8s %9s %6s\n",
               b->ranks.size, b->ranks.description, b->bytes >> 20, b->rounds, 1e3 * copied,
               1e-9 * (double)received(b) / copied, "", "", "ms", "GB/s", "of memcpy", "cpu");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double cpu, s = measure(b, rows[i].run, rows[i].dtype, &cpu);
        if (prints)
            printf("%-14s %-5s %8.1f %8.2f %9.2f %6.2f\n", rows[i].name, dtype_name(rows[i].dtype),
                   1e3 * s, 1e-9 * (double)received(b) / s, copied / s, cpu);
    }
}

/* Runs this benchmark alone, once for each rank. */
static int launch(int64_t ranks, struct error *error) {
    char *arguments[64] = {"tests", "--bench", "ranks"};
    char **options = bench_options();
    for (int i = 0; options[i] && i < 60; i++) arguments[3 + i] = options[i];
    return ranks_launch(ranks, arguments, error);
}

static void table(void) {
    struct subject b = {.rounds = bench_rounds()};
    struct error error = {0};
    int64_t ranks = bench_number("ranks", 2, 1 << 20);
    if (ranks > 1 && ranks_launched() == 1) {
        int status = launch(ranks, &error);
        if (status) bench_die(status < 0 ? error.text : "the ranks failed");
        return;
    }
    if (ranks_open(&b.ranks, &error)) bench_die(error.text);
    const struct backend_options options = {DEVICE_CPU, .ranks = &b.ranks};
    if (backend_open(&b.be, &options, &error)) bench_die(error.text);
    b.bytes = (size_t)bench_number("mib", 64, 1 << 20) << 20;
    b.data = backend_allocate(&b.be, b.bytes);
    b.copy = backend_allocate(&b.be, b.bytes);
    if (!b.data || !b.copy) bench_die("out of memory");
    memset(b.copy, 0, b.bytes);
    transport(&b);
    backend_release(&b.be, b.data);
    backend_release(&b.be, b.copy);
    backend_close(&b.be);
    ranks_close(&b.ranks);
}
BENCH_TABLE(ranks, collectives, table)
