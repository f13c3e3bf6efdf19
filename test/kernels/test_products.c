/* State of matmuls on CUDA between steps and between runs: prepared matmuls, and the algorithms
 * that autotune chose. */
#include <criterion/criterion.h>

#ifdef EMULATED
#include "test/cuda_emulator/control.h"
#include "test/kernels/products_fixture.h"

TestSuite(products, .init = make_folder, .fini = remove_folder);

Test(products, are_prepared_once) {
    struct bench bench;
    open_bench(&bench, &plain);
    plan(&bench);
    long operations = fake_cublaslt_counts()->operations, queries = fake_cublaslt_counts()->queries;
    cr_assert_eq(operations, 2);
    run_products(&bench);
    run_products(&bench);
    plan(&bench);
    cr_assert_eq(fake_cublaslt_counts()->products, 2 + 4, "each was tried once");
    cr_assert_eq(fake_cublaslt_counts()->operations, operations);
    cr_assert_eq(fake_cublaslt_counts()->queries, queries);
    close_bench(&bench);
    cr_assert_eq(fake_cublaslt_counts()->alive, 0, "objects of the library are left");
}

/* Planning sizes runs nothing; a plan for training tries its matmuls. */
Test(products, are_not_tried_for_sizes) {
    struct bench bench;
    open_bench(&bench, &plain);
    bench.be.only_sizes = true;
    plan(&bench);
    cr_expect_eq(fake_cublaslt_counts()->products, 0);
    bench.be.only_sizes = false;
    fake_cublaslt_lie(FAKE_DEFAULT, 0);
    plan(&bench);
    cr_expect(strstr(bench.be.failure.text, "then fails"), "%s", bench.be.failure.text);
    close_bench(&bench);
}

/* Sampling runs matmuls that no step has; casts need a workspace that only planning reserves. */
Test(products, unplanned_ones_work_or_say_why_not) {
    struct bench bench;
    open_bench(&bench, &plain);
    run_products(&bench);
    cr_assert_str_empty(bench.be.failure.text);
    cr_assert_eq(fake_cublaslt_counts()->algorithm, FAKE_DIRECT, "there is no workspace");
    struct tensor lower = bench.a;
    lower.dtype = DTYPE_BF16;
    OP(&bench.be, matmul, .out = &bench.out, .a = &lower, .b = &bench.b);
    cr_assert(strstr(bench.be.failure.text, "not planned"), "%s", bench.be.failure.text);
    close_bench(&bench);
}

Test(products, without_an_algorithm_say_so) {
    struct bench bench;
    fake_cublaslt_refuse(FAKE_DEFAULT);
    open_bench(&bench, &plain);
    plan(&bench);
    cr_assert(strstr(bench.be.failure.text, "24 x 40 x 72"), "%s", bench.be.failure.text);
    close_bench(&bench);
}

/* The heuristics offer algorithms that the library then refuses: one of them, or all. */
Test(products, that_fail_when_they_are_tried) {
    struct bench bench;
    open_bench(&bench, &plain);
    plan(&bench);
    uint64_t usual = digest(&bench);
    int algorithm = fake_cublaslt_counts()->algorithm;
    close_bench(&bench);
    fake_cublaslt_lie(FAKE_DEFAULT, algorithm);
    open_bench(&bench, &plain);
    plan(&bench);
    cr_expect_neq(digest(&bench), usual, "another algorithm adds in another order");
    cr_expect_neq(fake_cublaslt_counts()->algorithm, algorithm);
    close_bench(&bench);
    fake_cublaslt_lie(FAKE_DEFAULT, 0);
    open_bench(&bench, &plain);
    plan(&bench);
    cr_expect(strstr(bench.be.failure.text, "24 x 40 x 72"), "%s", bench.be.failure.text);
    cr_expect(strstr(bench.be.failure.text, "then fails"), "%s", bench.be.failure.text);
    close_bench(&bench);
    cr_expect_eq(fake_cublaslt_counts()->alive, 0);
}

static double worst_difference(struct bench *bench, bool tf32) {
    static float values[M * N], exact[M * N];
    struct bench other;
    struct backend_options options = {.device = DEVICE_CUDA, .tf32 = tf32};
    open_bench(&other, &options);
    OP(&bench->be, matmul, .out = &bench->out, .a = &bench->a, .b = &bench->b);
    OP(&other.be, matmul, .out = &other.out, .a = &other.a, .b = &other.b);
    backend_download(&bench->be, exact, bench->out.data, sizeof exact);
    backend_download(&other.be, values, other.out.data, sizeof values);
    double worst = 0;
    for (int i = 0; i < M * N; i++) worst = fmax(worst, fabs(values[i] - exact[i]));
    close_bench(&other);
    return worst;
}

/* Each of the 72 terms is off by up to 2^-10 of itself, with either sign. */
Test(products, tf32_is_an_option) {
    struct bench bench;
    open_bench(&bench, &plain);
    cr_assert_eq(worst_difference(&bench, false), 0);
    double worst = worst_difference(&bench, true);
    cr_assert(worst > 1e-4 && worst < 0.1, "%g", worst);
    close_bench(&bench);
}

/* ---- autotune */

Test(products, autotune_takes_the_fastest) {
    static const int algorithms[] = {FAKE_DIRECT, FAKE_BLOCKS, FAKE_SPLIT};
    struct backend_options options = tuned(NULL);
    for (int i = 0; i < 3; i++) {
        struct bench bench;
        fake_cublaslt_slow(algorithms[i]);
        open_bench(&bench, &options);
        plan(&bench);
        run_products(&bench);
        cr_assert_neq(fake_cublaslt_counts()->algorithm, algorithms[i]);
        close_bench(&bench);
    }
}

/* Writes the file while one algorithm is slow; returns the bits of that run's result. */
static uint64_t tune_and_write(const char *path, int slow) {
    struct error message;
    struct backend_options options = tuned(path);
    struct bench bench;
    fake_cublaslt_slow(slow);
    open_bench(&bench, &options);
    plan(&bench);
    uint64_t bits = digest(&bench);
    cr_assert_eq(algorithms_write(bench.be.algorithms, path, &message), 0, "%s", message.text);
    close_bench(&bench);
    fake_cublaslt_slow(0);
    return bits;
}

Test(products, a_resumed_run_takes_the_same_algorithms) {
    const char *path = in_folder("products.txt");
    uint64_t bits = tune_and_write(path, FAKE_DIRECT);
    int algorithm = fake_cublaslt_counts()->algorithm;
    struct backend_options options = tuned(path);
    struct bench bench;
    fake_cublaslt_slow(algorithm); /* now another algorithm would be chosen */
    long queries = fake_cublaslt_counts()->queries;
    open_bench(&bench, &options);
    plan(&bench);
    cr_assert_eq(digest(&bench), bits);
    cr_assert_eq(fake_cublaslt_counts()->algorithm, algorithm);
    cr_assert_eq(fake_cublaslt_counts()->queries, queries, "asked although the file knows");
    close_bench(&bench);
    options.autotune = AUTOTUNE_OFF; /* then the file does not apply */
    open_bench(&bench, &options);
    plan(&bench);
    cr_assert_gt(fake_cublaslt_counts()->queries, queries);
    close_bench(&bench);
}

/* ---- fused or not */

static struct tensor lower(struct bench *bench, int64_t rows, int64_t columns) {
    struct tensor tensor = make_tensor(bench, rows, columns); /* large enough */
    tensor.dtype = DTYPE_BF16;
    return tensor;
}

/* The epilogue of a matmul with GELU, in a run that reads and writes its choices while matmuls
 * with the epilogue `slow` are slow. */
static int epilogue_with(int slow, const char *choices) {
    struct backend_options options = tuned(choices);
    struct error message;
    struct bench bench;
    fake_cublaslt_slow_epilogue(slow);
    open_bench(&bench, &options);
    struct tensor of[] = {lower(&bench, M, N), lower(&bench, M, N), lower(&bench, M, K),
                          lower(&bench, K, N)};
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 0) backend_plan_begin(&bench.be);
        OP(&bench.be, matmul, .out = &of[0], .epilogue = MATMUL_GELU, .pre_activation = &of[1],
           .a = &of[2], .b = &of[3]);
        if (pass == 0) cr_assert_eq(backend_plan_end(&bench.be, &message), 0, "%s", message.text);
    }
    cr_assert_str_empty(bench.be.failure.text);
    int epilogue = fake_cublaslt_counts()->epilogue;
    cr_assert_eq(algorithms_write(bench.be.algorithms, choices, &message), 0, "%s", message.text);
    for (int i = 0; i < 4; i++) backend_release(&bench.be, of[i].data);
    close_bench(&bench);
    return epilogue;
}

Test(products, autotune_fuses_what_is_faster_so) {
    const char *one = in_folder("one.txt"), *other = in_folder("other.txt");
    cr_expect_eq(epilogue_with(FAKE_GELU_AUX, one), FAKE_DEFAULT);
    cr_expect_eq(epilogue_with(FAKE_DEFAULT, other), FAKE_GELU_AUX);
    /* A resumed run repeats its choices, even if others are faster now. */
    for (int i = 0; i < 2; i++) {
        cr_expect_eq(epilogue_with(FAKE_DEFAULT, one), FAKE_DEFAULT);
        cr_expect_eq(epilogue_with(FAKE_GELU_AUX, other), FAKE_GELU_AUX);
    }
}

/* ---- what runs otherwise than asked */

/* Plans and runs bf16 matmuls with a bias and GELU, and frees their tensors. Returns the epilogue
 * of the library's matmul. */
static int run_gelu(struct bench *bench) {
    struct error message;
    struct tensor of[] = {lower(bench, M, N), lower(bench, M, N), lower(bench, M, K),
                          lower(bench, K, N), lower(bench, 1, N)};
    of[4].rank = 1, of[4].shape[0] = N;
    for (int pass = 0; pass < 3; pass++) {
        if (pass < 2) backend_plan_begin(&bench->be);
        OP(&bench->be, matmul, .out = &of[0], .epilogue = MATMUL_GELU, .pre_activation = &of[1],
           .a = &of[2], .b = &of[3], .bias = &of[4]);
        if (pass < 2) cr_assert_eq(backend_plan_end(&bench->be, &message), 0, "%s", message.text);
    }
    cr_assert_str_empty(bench->be.failure.text);
    for (int i = 0; i < 5; i++) backend_release(&bench->be, of[i].data);
    return fake_cublaslt_counts()->epilogue;
}

/* Checks that exactly one matmul fell back, whose line has these texts. */
static void check_fallback(struct bench *bench, const char *what, const char *why) {
    const char *line = backend_fallback(&bench->be, 0);
    cr_assert(line, "nothing is recorded");
    cr_expect(strstr(line, what), "%s", line);
    cr_expect(strstr(line, why), "%s", line);
    cr_expect_null(backend_fallback(&bench->be, 1), "recorded twice");
}

Test(products, record_what_runs_and_why) {
    const char *what = "matmul 24 x 40 x 72: bf16 x bf16, epilogue bias, instead of bf16 x bf16, "
                       "gelu_bias: ";
    struct bench bench;
    open_bench(&bench, &plain);
    cr_expect_eq(run_gelu(&bench), FAKE_GELU_AUX_BIAS);
    cr_expect_null(backend_fallback(&bench.be, 0), "%s", backend_fallback(&bench.be, 0));
    close_bench(&bench);
    fake_cublaslt_lie(FAKE_GELU_AUX_BIAS, 0);
    open_bench(&bench, &plain);
    cr_expect_eq(run_gelu(&bench), FAKE_BIAS);
    check_fallback(&bench, what, "then fails: not supported (fake) (status 15)");
    close_bench(&bench);
    fake_cublaslt_lie(0, 0);
    fake_cublaslt_misuse(FAKE_GELU_AUX_BIAS);
    open_bench(&bench, &plain);
    cr_expect_eq(run_gelu(&bench), FAKE_BIAS);
    check_fallback(&bench, what,
                   "cublasLtMatmulAlgoGetHeuristic: failure (fake) (status 7); this "
                   "is a bug of mantissa");
    close_bench(&bench);
    fake_cublaslt_misuse(0);
    fake_cublaslt_refuse(FAKE_GELU_AUX_BIAS);
    open_bench(&bench, &plain);
    cr_expect_eq(run_gelu(&bench), FAKE_BIAS);
    check_fallback(&bench, what,
                   "cublasLtMatmulAlgoGetHeuristic: not supported (fake) (status 15)");
    close_bench(&bench);
}

/* A choice of autotune is not a fallback. */
Test(products, record_no_choice_of_autotune) {
    struct backend_options options = tuned(NULL);
    struct bench bench;
    fake_cublaslt_slow_epilogue(FAKE_GELU_AUX_BIAS);
    open_bench(&bench, &options);
    cr_expect_eq(run_gelu(&bench), FAKE_BIAS);
    cr_expect_null(backend_fallback(&bench.be, 0), "%s", backend_fallback(&bench.be, 0));
    close_bench(&bench);
}

Test(products, record_8_bit_operands_of_odd_sizes) {
    struct bench bench;
    struct error message;
    for (int capable = 0; capable < 2; capable++) {
        cuda_emulator_capability(capable ? 90 : 80);
        open_bench(&bench, &plain);
        struct tensor a = bench.a, b = bench.b, scale = {bench.out.data, DTYPE_F32, 0, {0}};
        a.dtype = b.dtype = DTYPE_E4M3;
        backend_plan_begin(&bench.be);
        OP(&bench.be, matmul, .out = &bench.out, .a = &a, .b = &b, .a_scales = &scale,
           .b_scales = &scale);
        cr_assert_eq(backend_plan_end(&bench.be, &message), 0, "%s", message.text);
        if (capable)
            check_fallback(&bench, "bf16 x bf16, epilogue none, instead of e4m3 x e4m3, none",
                           "its sizes are not multiples of 16");
        else cr_expect_null(backend_fallback(&bench.be, 0), "reported for the device");
        close_bench(&bench);
    }
}

/* A separate pass is faster on GeForce cards of Blackwell (sm_120) and before Hopper. */
Test(products, gelu_is_fused_where_that_is_faster) {
    static const struct {
        int capability, epilogue;
    } gpus[] = {{80, FAKE_BIAS},           {89, FAKE_BIAS},  {90, FAKE_GELU_AUX_BIAS},
                {100, FAKE_GELU_AUX_BIAS}, {120, FAKE_BIAS}, {121, FAKE_BIAS}};
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++) {
        struct bench bench;
        cuda_emulator_capability(gpus[i].capability);
        open_bench(&bench, &plain);
        cr_expect_eq(run_gelu(&bench), gpus[i].epilogue, "sm_%d", gpus[i].capability);
        cr_expect_null(backend_fallback(&bench.be, 0), "not a fallback");
        close_bench(&bench);
    }
}

/* Effect of an edited file: 0 read and used, 1 timed anew, -1 an error that names the line. */
static int outcome(const char *from, const char *to, const char *place) {
    struct error message;
    const char *path = in_folder("products.txt");
    remove(path); /* file of the previous call */
    tune_and_write(path, 0);
    edit_file(path, from, to);
    struct backend_options options = tuned(path);
    struct bench bench;
    long queries = fake_cublaslt_counts()->queries;
    if (try_open(&bench, &options, &message)) {
        cr_assert(strstr(message.text, place) && strstr(message.text, path), "%s", message.text);
        return -1;
    }
    plan(&bench);
    close_bench(&bench);
    return fake_cublaslt_counts()->queries > queries;
}

Test(products, files_of_other_machines_are_not_used) {
    cr_assert_eq(outcome("\n", "\n", ""), 0);
    cr_assert_eq(outcome("\n", " Ti\n", ""), 1); /* another GPU */
    cr_assert_eq(outcome("format 3", "format 4", ""), 1);
    cr_assert_eq(outcome("cublasLt 1", "cublasLt 2", ""), 1);
    cr_assert_eq(outcome("m=24", "m=25", ""), 1);               /* another matmul */
    cr_assert_eq(outcome("algorithm=6", "algorithm=7", ""), 1); /* unknown algorithm */
    cr_assert_eq(outcome("algorithm=6", "algorithm=g", ""), 1); /* no algorithm */
}

Test(products, malformed_files_are_errors) {
    static const struct {
        const char *from, *to, *line;
    } edits[] = {
        {"mantissa", "Mantissa", "line 1"},
        {"algorithm=6", "algorithm=6666666666666666666666666666666666666666", "line 2"},
        {"accumulate=1", "\naccumulate=1", "line 3"},
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++)
        cr_expect_eq(outcome(edits[i].from, edits[i].to, edits[i].line), -1, "edit %zu", i);
}

Test(products, choices_that_cannot_be_written_are_an_error) {
    struct error message;
    struct backend_options options = tuned(NULL);
    struct bench bench;
    open_bench(&bench, &options);
    const char *path = in_folder("missing/products.txt");
    cr_assert_eq(algorithms_write(bench.be.algorithms, path, &message), -1);
    cr_assert(strstr(message.text, path) && strstr(message.text, "No such file"), "%s",
              message.text);
    close_bench(&bench);
}
#endif
