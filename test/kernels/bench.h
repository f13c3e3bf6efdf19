/* Benchmarks of operations, in the manner of checkasm: the binary that checks an operation also
 * times it.
 *
 *   build/fast/tests --bench [FILTER] [--rounds 9] [--rows 8192] ...
 *
 * FILTER is a SUITE or a pattern of SUITE/NAME; without it, all run. The benchmark of an operation
 * is below its tests:
 *
 *     static size_t time_rope(struct bench *b, int variant) {
 *         struct tensor x = bench_rows(b, (enum dtype)variant, BENCH_QKV);
 *         OP(&b->be, rope, .inout = &x, ...);
 *         return 2 * tensor_bytes(&x);
 *     }
 *     BENCH(rope, forward, bench_dtypes, time_rope)
 *
 * Its variants run in turns on the CPU, each beside a copy of as many bytes. The table has medians
 * of --rounds. */
#pragma once

#include "kernels/arena.h"
#include "kernels/backend.h"

struct bench {
    struct backend be;
    int64_t rows;       /* --rows */
    struct arena arena; /* zeros; measures its size while the backend plans */
};

/* Runs the operation once. Returns the bytes that it must read or write at least. */
typedef size_t bench_body(struct bench *b, int variant);

struct bench_entry {
    const char *suite, *name;
    const char *const *variants; /* names, up to 8, then NULL */
    bench_body *body;
    void (*table)(void); /* replaces body: prints its own table */
    struct bench_entry *next;
};
void bench_register(struct bench_entry *entry);

#define BENCH_ENTRY(SUITE, NAME, ...)                                                \
    static struct bench_entry entry_##SUITE##_##NAME = {#SUITE, #NAME, __VA_ARGS__}; \
    __attribute__((constructor)) static void register_##SUITE##_##NAME(void) {       \
        bench_register(&entry_##SUITE##_##NAME);                                     \
    }
#define BENCH(SUITE, NAME, VARIANTS, BODY) \
    BENCH_ENTRY(SUITE, NAME, .variants = VARIANTS, .body = BODY)
#define BENCH_TABLE(SUITE, NAME, TABLE) BENCH_ENTRY(SUITE, NAME, .table = TABLE)

enum { BENCH_ROUNDS_MAX = 99 };

/* One layer of SmolLM2 135M. */
enum {
    BENCH_WIDTH = 576,
    BENCH_HIDDEN = 1536,
    BENCH_HEADS = 9,
    BENCH_KV_HEADS = 3,
    BENCH_HEAD_SIZE = 64,
    BENCH_T = 256,
    BENCH_QK = (BENCH_HEADS + BENCH_KV_HEADS) * BENCH_HEAD_SIZE,
    BENCH_QKV = BENCH_QK + BENCH_KV_HEADS * BENCH_HEAD_SIZE
};

/* Names of the 16- and 32-bit dtypes: variant i is enum dtype i. */
extern const char *const bench_dtypes[];

/* A tensor of b->rows rows in the arena. */
struct tensor bench_rows(struct bench *b, enum dtype dtype, int64_t columns);

/* Returns the value of option --NAME, or `otherwise` without it. Ends the program if a number is
 * not between 1 and max. */
const char *bench_text(const char *name, const char *otherwise);
int64_t bench_number(const char *name, int64_t otherwise, int64_t max);

/* Returns --rounds and all other options, NULL-terminated, for a benchmark that runs the program
 * again. */
int bench_rounds(void);
char **bench_options(void);

_Noreturn void bench_die(const char *error);
