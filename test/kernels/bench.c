#include <fnmatch.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/statistics.h"
#include "kernels/open/backend_open.h"
#include "test/kernels/bench.h"
#include "test/kernels/leaks.h"

enum { VARIANTS_MAX = 8, MEMORY_MIN = 256 << 20 /* bytes; larger than the caches */ };

static const char *const known_options[] = {
    "rounds", "rows",    "count",     "width", "dtype",    "batch",     "seq",  "steps",
    "layers", "preset",  "precision", "ranks", "mib",      "tokenizer", "text", "rank",
    "base",   "counted", "method",    "vocab", "all-rows", NULL};

const char *const bench_dtypes[] = {"fp32", "fp16", "bf16", NULL};

static struct bench_entry *entries; /* sorted by suite and name, tables last */
static char **options;              /* --NAME VALUE ..., then NULL */

static int in_order(const struct bench_entry *a, const struct bench_entry *b) {
    int order = (a->table != NULL) - (b->table != NULL);
    if (!order) order = strcmp(a->suite, b->suite);
    return order ? order : strcmp(a->name, b->name);
}

void bench_register(struct bench_entry *entry) {
    struct bench_entry **at = &entries;
    while (*at && in_order(*at, entry) < 0) at = &(*at)->next;
    entry->next = *at;
    *at = entry;
}

_Noreturn void bench_die(const char *error) {
    fprintf(stderr, "bench: %s\n", error);
    exit(1);
}

const char *bench_text(const char *name, const char *otherwise) {
    for (char **option = options; *option; option += 2)
        if (strcmp(*option + 2, name) == 0) return option[1];
    return otherwise;
}

int64_t bench_number(const char *name, int64_t otherwise, int64_t max) {
    const char *text = bench_text(name, NULL);
    char *end = "";
    long long value = text ? strtoll(text, &end, 10) : otherwise;
    if (*end || value < 1 || value > max) {
        fprintf(stderr, "bench: --%s must be from 1 to %lld\n", name, (long long)max);
        exit(1);
    }
    return value;
}

int bench_rounds(void) {
    return (int)bench_number("rounds", 9, BENCH_ROUNDS_MAX);
}

char **bench_options(void) {
    return options;
}

struct tensor bench_rows(struct bench *b, enum dtype dtype, int64_t columns) {
    return arena_tensor(&b->arena, dtype, b->rows, columns);
}

/* Returns the seconds that all threads take to copy, reads and writes together being this many
 * bytes. If memory is too small for all of them, the time is extrapolated from a part. */
static double copy_s(const struct bench *b, size_t bytes) {
    size_t all = bytes < b->arena.capacity ? bytes : b->arena.capacity, half = all / 2;
    size_t share = half / (size_t)b->be.device.threads;
    double begin = omp_get_wtime();
#pragma omp parallel num_threads(b->be.device.threads)
    {
        char *to = b->arena.base + (size_t)omp_get_thread_num() * share;
        memcpy(to, to + half, share);
    }
    return (omp_get_wtime() - begin) * ((double)bytes / (double)all);
}

/* Allocates the workspace and the arena that the largest variant needs. */
static void prepare(struct bench *b, const struct bench_entry *entry) {
    struct error error = {0};
    size_t capacity = MEMORY_MIN;
    b->arena = (struct arena){0};
    backend_plan_begin(&b->be);
    for (int i = 0; entry->variants[i]; i++) {
        b->arena.used = 0;
        entry->body(b, i);
        if (b->arena.used > capacity) capacity = b->arena.used;
    }
    if (backend_plan_end(&b->be, &error)) bench_die(error.text);
    b->arena = (struct arena){backend_allocate(&b->be, capacity), 0, capacity};
    if (!b->arena.base) bench_die("out of memory");
    OP(&b->be, clear, .data = b->arena.base, .bytes = capacity); /* first touch by worker threads */
}

static void measure(struct bench *b, const struct bench_entry *entry) {
    double times[VARIANTS_MAX][BENCH_ROUNDS_MAX], copies[VARIANTS_MAX][BENCH_ROUNDS_MAX];
    double bytes[VARIANTS_MAX];
    int rounds = bench_rounds();
    prepare(b, entry);
    for (int round = -1; round < rounds; round++) /* the first warms up */
        for (int i = 0, at = round < 0 ? 0 : round; entry->variants[i]; i++) {
            b->arena.used = 0;
            double begin = omp_get_wtime();
            size_t moved = entry->body(b, i);
            times[i][at] = omp_get_wtime() - begin;
            copies[i][at] = copy_s(b, moved);
            bytes[i] = (double)moved;
            OP(&b->be, clear, .data = b->arena.base, .bytes = b->arena.capacity);
        }
    for (int i = 0; entry->variants[i]; i++) {
        double s = median_of(times[i], rounds), copy = median_of(copies[i], rounds);
        char name[80];
        snprintf(name, sizeof name, "%s/%s %s", entry->suite, entry->name, entry->variants[i]);
        printf("%-52s %8.2f %8.1f %8.1f %8.1f %9.2f\n", name, 1e3 * s, 1e-6 * bytes[i],
               1e-9 * bytes[i] / s, 1e-9 * bytes[i] / copy, copy / s);
    }
    fflush(stdout);
    backend_release(&b->be, b->arena.base);
}

static bool is_selected(const struct bench_entry *entry, const char *filter) {
    char path[80];
    snprintf(path, sizeof path, "%s/%s", entry->suite, entry->name);
    return !filter || strcmp(filter, entry->suite) == 0 || fnmatch(filter, path, FNM_EXTMATCH) == 0;
}

/* Reads [FILTER] [--NAME VALUE] ... */
static const char *read_arguments(char **argv) {
    options = argv + 2;
    const char *filter = *options && strncmp(*options, "--", 2) ? *options++ : NULL;
    for (char **option = options; *option; option += 2) {
        int known = 0;
        while (known_options[known] &&
               (strncmp(*option, "--", 2) || strcmp(*option + 2, known_options[known])))
            known++;
        if (known_options[known] && option[1]) continue;
        fputs("usage: tests --bench [FILTER] [--NAME VALUE] ..., where NAME is", stderr);
        for (known = 0; known_options[known]; known++) fprintf(stderr, " %s", known_options[known]);
        fputs("\n", stderr);
        exit(2);
    }
    return filter;
}

static int run_benchmarks(char **argv) {
    struct bench b = {0};
    struct error error = {0};
    const char *filter = read_arguments(argv);
    bool found = false;
    for (const struct bench_entry *entry = entries; entry; entry = entry->next) {
        if (!is_selected(entry, filter)) continue;
        found = true;
        if (entry->table) {
            entry->table();
            continue;
        }
        if (b.rows == 0) {
            b.rows = bench_number("rows", 8192, 1 << 24);
            if (backend_open(&b.be, &(const struct backend_options){DEVICE_CPU, .threads = 0},
                             &error))
                bench_die(error.text);
            printf("%lld rows on %s, %d threads, medians of %d\n%-52s %8s %8s %8s %8s %9s\n",
                   (long long)b.rows, b.be.device.description, b.be.device.threads, bench_rounds(),
                   "", "ms", "MB", "GB/s", "copy", "of a copy");
        }
        measure(&b, entry);
    }
    if (b.rows) backend_close(&b.be);
    if (!found) bench_die("no benchmark matches");
    return 0;
}

/* The linker puts __wrap_main before the main of the test framework (-Wl,--wrap=main). */
int __real_main(int argc, char **argv);
int __wrap_main(int argc, char **argv);

int __wrap_main(int argc, char **argv) {
    if (argc < 2 || strcmp(argv[1], "--bench") != 0) return leaks_run(__real_main, argc, argv);
    backend_prepare_process(argv);
    return run_benchmarks(argv);
}
