/* Autotune of the CPU's matmuls: a later run makes the same choices. */
#include "kernels/cpu/product_library.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data/util/random.h"
#include "kernels/backend.h"
#include "kernels/open/backend_open.h"
#include "kernels/cpu/level.h"
#include "test/scratch.h"

enum { M = 40, N = 24, K = 72 };

TestSuite(autotune, .init = make_folder, .fini = remove_folder);

static void write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    fputs(text, file);
    fclose(file);
}

static void read_text(char text[4096], const char *path) {
    FILE *file = fopen(path, "r");
    cr_assert(file, "%s", path);
    text[fread(text, 1, 4095, file)] = 0;
    fclose(file);
}

/* A matmul with its own backend: out [M, N] = a [M, K] b [K, N]. */
struct bench {
    struct backend be;
    float a[M * K], b[K * N], out[M * N];
};

static void multiply(struct bench *bench) {
    const struct tensor a = {bench->a, DTYPE_F32, 2, {M, K}}, b = {bench->b, DTYPE_F32, 2, {K, N}},
                        out = {bench->out, DTYPE_F32, 2, {M, N}};
    OP(&bench->be, matmul, .out = &out, .a = &a, .b = &b);
}

static void fill(struct bench *bench) {
    for (int i = 0; i < M * K; i++) bench->a[i] = (float)random_normal(1, 1, (uint64_t)i);
    for (int i = 0; i < K * N; i++) bench->b[i] = (float)random_normal(1, 2, (uint64_t)i);
}

static int open_bench(struct bench *bench, const char *choices) {
    struct backend_options options = {
        .device = DEVICE_CPU, .threads = 2, .autotune = AUTOTUNE_ON, .algorithms = choices};
    fill(bench);
    if (backend_open(&bench->be, &options, &error)) return -1;
    backend_plan_begin(&bench->be);
    multiply(bench);
    cr_assert_eq(backend_plan_end(&bench->be, &error), 0);
    multiply(bench);
    cr_assert_str_eq(bench->be.failure.text, "");
    return 0;
}

static int implementations(char names[IMPLEMENTATIONS_MAX][IMPLEMENTATION_NAME_MAX]) {
    const struct product_shape shape = {M, N, K, DTYPE_F32, DTYPE_F32, -1, 0, 0, 0};
    struct product_library *library = library_open(cpu_level_choose(NULL, &error), false);
    int count = library_implementations(names, library, &shape);
    library_close(library);
    return count;
}

/* A plan of sizes makes no trials, and its product is not the one that runs later. */
Test(autotune, plans_of_sizes_make_no_trials) {
    static struct bench bench;
    char names[IMPLEMENTATIONS_MAX][IMPLEMENTATION_NAME_MAX];
    const int trials = implementations(names) > 1; /* one implementation leaves nothing to time */
    const struct backend_options options = {
        .device = DEVICE_CPU, .threads = 2, .autotune = AUTOTUNE_ON};
    fill(&bench);
    cr_assert_eq(backend_open(&bench.be, &options, &error), 0, "%s", error.text);
    backend_plan_sizes(&bench.be, true);
    backend_plan_begin(&bench.be);
    multiply(&bench);
    const size_t planned = backend_plan_pause(&bench.be);
    backend_plan_sizes(&bench.be, false);
    cr_expect_eq(algorithms_tuning(bench.be.algorithms).timed, 0);
    backend_plan_from(&bench.be, 0);
    backend_plan_begin(&bench.be);
    multiply(&bench);
    cr_assert_eq(backend_plan_end(&bench.be, &error), 0, "%s", error.text);
    cr_expect_eq(algorithms_tuning(bench.be.algorithms).timed, trials);
    cr_expect_leq(bench.be.workspace_bytes, planned);
    multiply(&bench);
    cr_expect_str_empty(bench.be.failure.text);
    backend_close(&bench.be);
}

Test(autotune, a_choice_is_kept) {
    static struct bench first, second;
    char names[IMPLEMENTATIONS_MAX][IMPLEMENTATION_NAME_MAX];
    char text[4096], again[4096], path[4096];
    bool something = implementations(names) > 1; /* several to choose from */
    snprintf(path, sizeof path, "%s", in_folder("products.txt"));
    cr_assert_eq(open_bench(&first, path), 0, "%s", error.text); /* a missing file is no error */
    cr_assert_eq(algorithms_write(first.be.algorithms, path, &error), 0, "%s", error.text);
    backend_close(&first.be);
    read_text(text, path);
    cr_expect_eq(strstr(text, "m=40 n=24 k=72") != NULL, something, "%s", text);
    /* Selects the other implementation by hand: the next run has to use it, whatever the timing
     * says. */
    char *at = something ? strstr(text, names[0]) : NULL;
    const char *other = something ? names[at != NULL] : "";
    if (something) {
        at = strrchr(text, ' ') + 1;
        snprintf(at, sizeof text - (size_t)(at - text), "%s\n", other);
        write_text(path, text);
    }
    cr_assert_eq(open_bench(&second, path), 0, "%s", error.text);
    cr_assert_eq(algorithms_write(second.be.algorithms, path, &error), 0, "%s", error.text);
    backend_close(&second.be);
    read_text(again, path);
    cr_expect_str_eq(again, text);
    for (int i = 0; i < M * N; i++)
        cr_expect_float_eq(second.out[i], first.out[i], 1e-4, "%d: %g %g", i, first.out[i],
                           second.out[i]);
}

Test(autotune, the_file_of_another_device_is_ignored) {
    static struct bench bench;
    char text[4096];
    const char *path = in_folder("products.txt");
    write_text(path, "mantissa algorithms, format 3, cublasLt 130100, NVIDIA H200\n"
                     "a=fp32 b=fp32 out=fp32 m=40 n=24 k=72 algorithm=0000000000000042\n");
    cr_assert_eq(open_bench(&bench, path), 0, "%s", error.text);
    cr_assert_eq(algorithms_write(bench.be.algorithms, path, &error), 0, "%s", error.text);
    backend_close(&bench.be);
    read_text(text, path);
    cr_expect_null(strstr(text, "cublasLt"), "%s", text);
    cr_expect_null(strstr(text, "algorithm="), "%s", text);
}

Test(autotune, damaged_and_unwritable_files_are_errors) {
    static struct bench bench;
    const char *path = in_folder("products.txt");
    write_text(path, "what is this?\n");
    cr_expect_eq(open_bench(&bench, path), -1);
    cr_expect(strstr(error.text, path) && strstr(error.text, "line 1"), "%s", error.text);
    cr_assert_eq(open_bench(&bench, NULL), 0);
    path = in_folder("nul.txt");
    cr_assert_eq(algorithms_write(bench.be.algorithms, path, &error), 0, "%s", error.text);
    FILE *file = fopen(path, "ab");
    cr_assert_not_null(file);
    cr_assert(fwrite("a\0 b\n", 1, 5, file) == 5 && fclose(file) == 0);
    backend_close(&bench.be);
    cr_expect_eq(open_bench(&bench, path), -1);
    cr_expect(strstr(error.text, "nul.txt") && strstr(error.text, "is not of a file that autotune"),
              "%s", error.text);
    cr_assert_eq(open_bench(&bench, NULL), 0);
    path = in_folder("missing/products.txt");
    cr_expect_eq(algorithms_write(bench.be.algorithms, path, &error), -1);
    cr_expect(strstr(error.text, path) && strstr(error.text, "No such file"), "%s", error.text);
    backend_close(&bench.be);
}

Test(autotune, an_implementation_that_is_no_more_is_no_error) {
    static struct bench bench;
    char text[4096], path[4096];
    snprintf(path, sizeof path, "%s", in_folder("products.txt"));
    cr_assert_eq(open_bench(&bench, NULL), 0);
    cr_assert_eq(algorithms_write(bench.be.algorithms, path, &error), 0, "%s", error.text);
    backend_close(&bench.be);
    read_text(text, path);
    *(strchr(text, '\n') + 1) = 0;
    strcat(text, "in=fp32 out=fp32 bias=none m=40 n=24 k=72 transpose=00 accumulate=0 lost\n");
    write_text(path, text);
    cr_assert_eq(open_bench(&bench, path), 0, "%s", error.text);
    backend_close(&bench.be);
}

enum { GOOD, BAD, CANNOT_REFUSE, NO_GENERATED_CODE };

static bool is_product(const struct bench *bench) {
    for (int i = 0; i < M * N; i++) {
        double sum = 0;
        for (int k = 0; k < K; k++)
            sum += (double)bench->a[i / N * K + k] * bench->b[k * N + i % N];
        if (fabs(bench->out[i] - sum) > 1e-4) return false;
    }
    return true;
}

static bool can_be_created(void) {
    const struct product_shape shape = {M, N, K, DTYPE_F32, DTYPE_F32, -1, 0, 0, 0};
    struct product_library *library = library_open(cpu_level_choose(NULL, &error), false);
    return library_prepare(library, &shape, NULL) != NULL;
}

/* Multiplies where the system refuses memory for generated code, as Linux since 6.3 does on request
 * and for the rest of the process's life. One thread: a fork has none of the others.
 * Implementations that generate code when they are created are reported in planning; those that
 * generate it later ("gemm", which has plain loops too) multiply correctly or report an error. */
static int multiply_without_generated_code(void) {
    enum { SET_MDWE = 65, REFUSE_EXEC_GAIN = 1 }; /* PR_SET_MDWE: headers may be older */
    static struct bench bench;
    struct backend_options options = {.device = DEVICE_CPU, .threads = 1};
    if (prctl(SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0)) return CANNOT_REFUSE;
    if (backend_open(&bench.be, &options, &error)) return BAD;
    if (strncmp(bench.be.device.library, "oneDNN", 6) != 0) return NO_GENERATED_CODE;
    fill(&bench);
    backend_plan_begin(&bench.be);
    multiply(&bench);
    if (backend_plan_end(&bench.be, &error)) return BAD;
    if (!can_be_created()) {
        const char *line = backend_fallback(&bench.be, 0);
        bool reported = line && strstr(line, "oneDNN cannot create its implementation") &&
                        !backend_fallback(&bench.be, 1);
        return reported ? GOOD : BAD;
    }
    multiply(&bench);
    return bench.be.failure.text[0] || is_product(&bench) ? GOOD : BAD;
}

/* True if the system refuses the implementation and the default is another, which it allows. */
static bool only_this_is_refused(const struct product_shape *shape, const char *name) {
    struct product_library *library = library_open(cpu_level_choose(NULL, &error), false);
    return !library_prepare(library, shape, name) && library_prepare(library, shape, NULL);
}

/* The same for a matmul whose recorded implementation generates code, and the default later. */
static int plan_recorded_without_generated_code(void) {
    enum { SET_MDWE = 65, REFUSE_EXEC_GAIN = 1, ROWS = 2, INNER = 1032, COLUMNS = 1024 };
    static float a_data[ROWS * INNER], b_data[INNER * COLUMNS], out_data[ROWS * COLUMNS];
    const struct tensor a = {a_data, DTYPE_F32, 2, {ROWS, INNER}};
    const struct tensor b = {b_data, DTYPE_F32, 2, {INNER, COLUMNS}};
    const struct tensor out = {out_data, DTYPE_F32, 2, {ROWS, COLUMNS}};
    const struct product_shape shape = {ROWS, COLUMNS, INNER, DTYPE_F32, DTYPE_F32, -1, 0, 0, 0};
    char names[IMPLEMENTATIONS_MAX][IMPLEMENTATION_NAME_MAX];
    const char *path = in_folder("products.txt");
    struct backend be;
    struct backend_options options = {
        .device = DEVICE_CPU, .threads = 1, .autotune = AUTOTUNE_ON, .algorithms = path};
    struct product_library *library = library_open(cpu_level_choose(NULL, &error), false);
    library_implementations(names, library, &shape);
    if (backend_open(&be, &options, &error) || algorithms_write(be.algorithms, path, &error))
        return BAD;
    FILE *file = fopen(path, "a");
    fprintf(file, "in=fp32 out=fp32 bias=none m=%d n=%d k=%d transpose=00 accumulate=0 %s\n", ROWS,
            COLUMNS, INNER, names[0]);
    fclose(file);
    backend_close(&be);
    if (prctl(SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0)) return CANNOT_REFUSE;
    if (!only_this_is_refused(&shape, names[0])) return NO_GENERATED_CODE;
    if (backend_open(&be, &options, &error)) return BAD;
    backend_plan_begin(&be);
    OP(&be, matmul, .out = &out, .a = &a, .b = &b);
    if (backend_plan_end(&be, &error)) return BAD;
    const char *line = backend_fallback(&be, 0);
    return line && strstr(line, names[0]) && !backend_fallback(&be, 1) ? GOOD : BAD;
}

static void expect_good(int (*body)(void)) {
    int status;
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) _exit(body());
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status), "status %d", status);
    if (WEXITSTATUS(status) == CANNOT_REFUSE) cr_skip_test("the kernel cannot refuse");
    if (WEXITSTATUS(status) == NO_GENERATED_CODE) cr_skip_test("no generated code");
    cr_expect_eq(WEXITSTATUS(status), GOOD);
}

Test(autotune, an_implementation_that_cannot_be_created_is_reported) {
    expect_good(multiply_without_generated_code);
}

Test(autotune, a_recorded_implementation_that_cannot_be_created_is_reported) {
    expect_good(plan_recorded_without_generated_code);
}
