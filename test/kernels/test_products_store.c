/* Autotune by default: trials of a limited time, the store that saves later runs their trials, and
 * ranks that use the choices of rank 0. */
#include <criterion/criterion.h>

#ifdef EMULATED
#include <dirent.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/cuda_emulator/control.h"
#include "test/kernels/forked_ranks.h"
#include "test/kernels/products_fixture.h"

TestSuite(products_store, .init = make_folder, .fini = remove_folder);

enum { PLENTY_S = 1000 };

/* Options of a run with the default, whose store is in the test's folder. */
static struct backend_options stored(double seconds) {
    return (struct backend_options){.device = DEVICE_CUDA,
                                    .autotune = AUTOTUNE_AUTO,
                                    .autotune_seconds = seconds,
                                    .store = in_folder("cache/mantissa")};
}

struct outcome {
    uint64_t bits;
    int algorithm;
    long queries, products; /* calls of the heuristics and matmuls while planning */
    struct tuning tuning;
};

/* A run that plans, computes, and writes its choices to options.algorithms and the store. */
static struct outcome run(struct backend_options options) {
    struct bench bench;
    struct error message;
    struct outcome o;
    open_bench(&bench, &options);
    o.queries = fake_cublaslt_counts()->queries, o.products = fake_cublaslt_counts()->products;
    plan(&bench);
    o.queries = fake_cublaslt_counts()->queries - o.queries;
    o.products = fake_cublaslt_counts()->products - o.products;
    o.bits = digest(&bench);
    o.algorithm = fake_cublaslt_counts()->algorithm;
    o.tuning = algorithms_tuning(bench.be.algorithms);
    if (options.algorithms)
        cr_assert_eq(algorithms_write(bench.be.algorithms, options.algorithms, &message), 0, "%s",
                     message.text);
    cr_assert_eq(algorithms_store(bench.be.algorithms, &message), 0, "%s", message.text);
    close_bench(&bench);
    return o;
}

static struct outcome run_slow(int algorithm, struct backend_options options) {
    fake_cublaslt_slow(algorithm);
    struct outcome o = run(options);
    fake_cublaslt_slow(0);
    return o;
}

/* Counts the files in the store; *path is one of them. */
static int stores(const char **path) {
    static char found[FILE_PATH_MAX];
    DIR *directory = opendir(in_folder("cache/mantissa"));
    struct dirent *entry;
    int count = 0;
    while (directory && (entry = readdir(directory))) {
        if (entry->d_name[0] == '.') continue;
        snprintf(found, sizeof found, "%s", in_folder("cache/mantissa/%s", entry->d_name));
        count++;
    }
    if (directory) closedir(directory);
    if (path) *path = found;
    return count;
}

static const char *only_store(void) {
    const char *path;
    cr_assert_eq(stores(&path), 1);
    return path;
}

Test(products_store, gpus_are_tuned_by_default_and_cpus_are_not) {
    struct backend_options options = stored(PLENTY_S);
    struct outcome o = run(options);
    cr_expect(o.tuning.on && o.tuning.timed == 2 && o.tuning.untimed == 0);
    cr_expect_gt(o.tuning.seconds, 0);
    struct backend be;
    options.device = DEVICE_CPU;
    options.algorithms = in_folder("products.txt");
    SUCCEEDS(backend_open(&be, &options, &error));
    cr_expect_not(algorithms_tuning(be.algorithms).on);
    SUCCEEDS(algorithms_write(be.algorithms, options.algorithms, &error));
    cr_expect_not(file_exists(options.algorithms));
    backend_close(&be);
    options.autotune = AUTOTUNE_ON;
    SUCCEEDS(backend_open(&be, &options, &error));
    cr_expect(algorithms_tuning(be.algorithms).on);
    backend_close(&be);
}

Test(products_store, a_second_run_makes_no_trials) {
    struct outcome first = run_slow(FAKE_DIRECT, stored(PLENTY_S));
    struct outcome second = run_slow(first.algorithm, stored(PLENTY_S));
    cr_expect_eq(second.bits, first.bits);
    cr_expect_eq(second.algorithm, first.algorithm);
    cr_expect_eq(second.queries + second.products, 0);
    cr_expect_eq(second.tuning.timed + second.tuning.untimed, 0);
    cr_expect_eq(second.tuning.seconds, 0);
    cr_expect_neq(run_slow(first.algorithm, plain).algorithm, FAKE_DIRECT,
                  "the library's first algorithm is the one that was slow");
}

/* Only timed choices are stored: the next run times the others. */
Test(products_store, without_time_the_first_algorithm_is_used) {
    struct outcome usual = run(plain), none = run_slow(usual.algorithm, stored(0));
    cr_expect_eq(none.bits, usual.bits);
    cr_expect_eq(none.products, usual.products);
    cr_expect(none.tuning.on && none.tuning.timed == 0 && none.tuning.untimed == 2);
    cr_expect_eq(stores(NULL), 0);
    struct outcome some = run(stored(1e-9)); /* ends within the first trial */
    cr_expect_gt(some.products, none.products);
    cr_expect(some.tuning.timed == 0 && some.tuning.untimed == 2);
    cr_expect_eq(stores(NULL), 0);
    struct outcome all = run_slow(usual.algorithm, stored(PLENTY_S));
    cr_expect_neq(all.algorithm, usual.algorithm);
    cr_expect_eq(run(stored(0)).bits, all.bits, "stored choices need no time");
}

/* The first algorithm works if an earlier one is refused after the time is over. */
Test(products_store, without_time_refused_algorithms_are_skipped) {
    struct outcome usual = run(plain);
    fake_cublaslt_lie(FAKE_DEFAULT, usual.algorithm);
    struct outcome none = run(stored(0));
    cr_expect_neq(none.algorithm, usual.algorithm);
    cr_expect_eq(none.tuning.untimed, 2);
}

static uint64_t bits_of_choices(const char *choices, double seconds) {
    struct backend_options options = stored(seconds);
    options.algorithms = choices;
    return run(options).bits;
}

/* The choices of a run are those of its file, timed or not, whatever the store holds. */
Test(products_store, a_resumed_run_does_not_depend_on_the_store) {
    char timed[FILE_PATH_MAX], untimed[FILE_PATH_MAX];
    snprintf(timed, sizeof timed, "%s", in_folder("timed.txt"));
    snprintf(untimed, sizeof untimed, "%s", in_folder("untimed.txt"));
    int first = run(plain).algorithm;
    uint64_t slow_bits, usual_bits = bits_of_choices(untimed, 0);
    fake_cublaslt_slow(first);
    slow_bits = bits_of_choices(timed, PLENTY_S);
    cr_expect_neq(slow_bits, usual_bits);
    cr_expect_eq(bits_of_choices(untimed, PLENTY_S), usual_bits);
    fake_cublaslt_slow(0);
    remove(only_store());
    run_slow(FAKE_BLOCKS, stored(PLENTY_S));
    run_slow(FAKE_SPLIT, stored(PLENTY_S));
    cr_expect_eq(bits_of_choices(timed, PLENTY_S), slow_bits);
    remove(only_store());
    cr_expect_eq(bits_of_choices(timed, PLENTY_S), slow_bits);
    cr_expect_eq(stores(NULL), 0, "choices of a file were not timed here");
}

/* Fusion is compared once, too. */
static int epilogue_with(int slow, double seconds) {
    struct backend_options options = stored(seconds);
    struct bench bench;
    fake_cublaslt_slow_epilogue(slow);
    open_bench(&bench, &options);
    struct tensor other = make_tensor(&bench, M, N), of[] = {bench.out, other, bench.a, bench.b};
    for (int i = 0; i < 4; i++) of[i].dtype = DTYPE_BF16;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 0) backend_plan_begin(&bench.be);
        OP(&bench.be, matmul, .out = &of[0], .epilogue = MATMUL_GELU, .pre_activation = &of[1],
           .a = &of[2], .b = &of[3]);
        if (pass == 0) SUCCEEDS(backend_plan_end(&bench.be, &error));
    }
    SUCCEEDS(algorithms_store(bench.be.algorithms, &error));
    int epilogue = fake_cublaslt_counts()->epilogue;
    backend_release(&bench.be, other.data);
    close_bench(&bench);
    return epilogue;
}

Test(products_store, fusion_is_stored) {
    cr_expect_eq(epilogue_with(FAKE_GELU_AUX, 0), FAKE_GELU_AUX, "not compared without time");
    cr_expect_eq(stores(NULL), 0);
    cr_expect_eq(epilogue_with(FAKE_GELU_AUX, PLENTY_S), FAKE_DEFAULT);
    cr_expect_eq(epilogue_with(FAKE_DEFAULT, PLENTY_S), FAKE_DEFAULT);
    remove(only_store());
    cr_expect_eq(epilogue_with(FAKE_DEFAULT, PLENTY_S), FAKE_GELU_AUX);
    cr_expect_eq(epilogue_with(FAKE_GELU_AUX, PLENTY_S), FAKE_GELU_AUX);
}

static void write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    fputs(text, file);
    fclose(file);
}

/* Such a store is ignored, and replaced by that of this run. */
static void expect_replaced(const char *what) {
    struct outcome o = run(stored(PLENTY_S));
    cr_expect_eq(o.tuning.timed, 2, "%s: %d timed", what, o.tuning.timed);
    cr_expect_eq(run(stored(PLENTY_S)).tuning.timed, 0, "%s: not replaced", what);
}

Test(products_store, damaged_ones_are_ignored) {
    static const char *const edits[][2] = {
        {"mantissa", "Mantissa"}, {"cublasLt 1", "cublasLt 2"}, {"\n", " Ti\n"},
        {"format 3", "format 4"}, {"accumulate=1", "\naccumu"},
    };
    run(stored(PLENTY_S));
    const char *path = only_store();
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        edit_file(path, edits[i][0], edits[i][1]);
        expect_replaced(edits[i][0]);
    }
    write_text(path, "");
    expect_replaced("an empty file");
    cr_assert_eq(truncate(path, 300), 0);
    expect_replaced("a cut file");
    cr_assert_eq(unlink(path) + mkfifo(path, 0600), 0);
    expect_replaced("a pipe");
    cr_assert_eq(unlink(path) + symlink("/nowhere/at/all", path), 0);
    expect_replaced("a dangling link");
}

/* Opens, plans and stores, which fails with a message; the run itself is unaffected. */
static void expect_no_store(struct backend_options options, const char *part) {
    struct bench bench;
    struct error message;
    open_bench(&bench, &options);
    plan(&bench);
    digest(&bench);
    cr_expect_eq(algorithms_store(bench.be.algorithms, &message), -1);
    cr_expect(strstr(message.text, part), "%s", message.text);
    close_bench(&bench);
}

Test(products_store, unwritable_ones_are_no_failure) {
    write_text(in_folder("cache"), "a file");
    expect_no_store(stored(PLENTY_S), "cache");
    cr_assert_eq(unlink(in_folder("cache")), 0);
    run(stored(PLENTY_S));
    const char *path = only_store();
    cr_assert_eq(unlink(path) + mkdir(path, 0700), 0);
    expect_no_store(stored(PLENTY_S), path);
    cr_expect_eq(stores(NULL), 1, "a temporary file is left");
    static char longest[FILE_PATH_MAX + 1];
    memset(longest, 'x', FILE_PATH_MAX);
    longest[0] = '/';
    struct backend_options options = stored(PLENTY_S);
    options.store = longest;
    cr_expect_eq(run(options).tuning.timed, 2, "a path that is too long");
}

/* Sizes alone, as for --fit, suffice for every algorithm that a trial may choose. */
Test(products_store, plans_of_sizes_cover_what_trials_choose) {
    static const int slow[] = {FAKE_DIRECT, FAKE_BLOCKS, FAKE_SPLIT};
    struct backend_options options = stored(0);
    struct bench bench;
    open_bench(&bench, &options);
    bench.be.only_sizes = true;
    plan(&bench);
    size_t planned = bench.be.workspace_bytes, most = 0;
    close_bench(&bench);
    options.autotune_seconds = PLENTY_S;
    for (int i = 0; i < 9 || (most == 0 && i < 90); i++) { /* times are noisy */
        fake_cublaslt_slow(slow[i % 3]);
        open_bench(&bench, &options);
        plan(&bench);
        if (bench.be.workspace_bytes > most) most = bench.be.workspace_bytes;
        close_bench(&bench);
    }
    cr_expect_gt(most, 0);
    cr_expect_leq(most, planned);
    cr_expect_leq(planned, 2 * most, "%zu bytes planned, %zu used", planned, most);
}

Test(products_store, other_gpus_have_their_own) {
    static const int capabilities[] = {80, 90, 100};
    for (int i = 0; i < 3; i++) {
        cuda_emulator_capability(capabilities[i]);
        cr_expect_eq(run(stored(PLENTY_S)).tuning.timed, 2);
        cr_expect_eq(stores(NULL), i + 1);
    }
    for (int i = 0; i < 3; i++) {
        cuda_emulator_capability(capabilities[i]);
        cr_expect_eq(run(stored(PLENTY_S)).tuning.timed, 0);
    }
}

/* The library no longer accepts a stored algorithm: another is chosen, and a line says so. */
Test(products_store, refused_algorithms_are_chosen_again) {
    run(stored(PLENTY_S));
    edit_file(only_store(), "algorithm=6", "algorithm=7");
    struct backend_options options = stored(PLENTY_S);
    struct bench bench;
    open_bench(&bench, &options);
    plan(&bench);
    digest(&bench);
    const char *line = backend_fallback(&bench.be, 0);
    cr_expect(line && strstr(line, "chosen again, the algorithm of an earlier run is refused"),
              "%s", line);
    cr_expect_null(backend_fallback(&bench.be, 1));
    cr_expect_eq(algorithms_tuning(bench.be.algorithms).timed, 1);
    SUCCEEDS(algorithms_store(bench.be.algorithms, &error));
    close_bench(&bench);
    cr_expect_eq(run(stored(PLENTY_S)).tuning.timed, 0);
}

/* Matmuls of different shapes, timed by processes at once: no part of a file is ever read. */
Test(products_store, runs_may_write_at_once) {
    enum { PROCESSES = 6 };
    pid_t children[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (children[i]) continue;
        struct backend_options options = stored(PLENTY_S);
        struct bench bench;
        for (int round = 0; round < 5; round++) {
            if (backend_open(&bench.be, &options, &error)) _exit(1);
            struct tensor a = make_tensor(&bench, 8, 16 * (1 + round + 5 * i)),
                          b = make_tensor(&bench, 16 * (1 + round + 5 * i), 8),
                          out = make_tensor(&bench, 8, 8);
            backend_plan_begin(&bench.be);
            OP(&bench.be, matmul, .out = &out, .a = &a, .b = &b);
            if (backend_plan_end(&bench.be, &error) ||
                algorithms_store(bench.be.algorithms, &error))
                _exit(2);
            for (int j = 0; j < 3; j++)
                backend_release(&bench.be, (struct tensor *[]){&a, &b, &out}[j]->data);
            backend_close(&bench.be);
        }
        _exit(0);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status;
        waitpid(children[i], &status, 0);
        cr_expect_eq(status, 0, "process %d: status %d", i, WEXITSTATUS(status));
    }
    run(stored(PLENTY_S));
    cr_expect_eq(run(stored(PLENTY_S)).tuning.timed, 0, "the file is damaged");
    only_store();
}

#ifdef WITH_NCCL
/* Rank 0 times while an algorithm is slow for it alone. */
static void tune_as_rank(const struct ranks *ranks, const void *given) {
    struct backend_options options = *(const struct backend_options *)given;
    struct bench bench;
    struct error message;
    uint64_t first;
    options.ranks = ranks;
    setenv("CUDA_EMULATOR_DEVICES", "2", 1);
    fake_cublaslt_slow(ranks->rank == 0 ? FAKE_DIRECT : FAKE_BLOCKS);
    bool opened = try_open(&bench, &options, &message) == 0;
    RANK_CHECK(ranks, opened);
    if (!opened) return;
    if (ranks->rank == 0) plan(&bench);
    RANK_CHECK(ranks, algorithms_share(bench.be.algorithms, ranks, &message) == 0);
    long queries = fake_cublaslt_counts()->queries;
    if (ranks->rank > 0) plan(&bench);
    RANK_CHECK(ranks, fake_cublaslt_counts()->queries == queries);
    RANK_CHECK(ranks, (algorithms_tuning(bench.be.algorithms).timed == 2) == (ranks->rank == 0));
    uint64_t bits = first = digest(&bench);
    ranks_broadcast(ranks, &first, sizeof first);
    RANK_CHECK(ranks, bits == first);
    close_bench(&bench);
}

Test(products_store, ranks_use_the_choices_of_rank_0) {
    struct backend_options options = stored(PLENTY_S);
    cr_expect_eq(forked_ranks(2, tune_as_rank, &options), 0);
}
#endif
#endif
