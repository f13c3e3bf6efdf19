/* The matmuls of a training step: the time of each within the step, and alone.
 *
 * An operation of matmul may be several passes: copies of operands, the library's product, bias,
 * GELU. "fused" is the operation as the library fuses GELU, "apart" with a pass for GELU, "plain"
 * the product without bias, GELU and column sums. Alone its operands may be in the cache, and
 * within the step each operation waits for the marks around it: small products seem slower. */
#include <stdlib.h>
#include <string.h>

#include "test/gpu_bench_subject.h"

/* ---- within the step */

static bool is_same(const struct tensor *one, const struct tensor *other) {
    if (!one || !other) return one == other;
    return one->dtype == other->dtype && tensor_rows(one) == tensor_rows(other) &&
           tensor_columns(one) == tensor_columns(other);
}

static bool is_same_product(const struct matmul_args *one, const struct matmul_args *other) {
    return is_same(one->out, other->out) && is_same(one->a, other->a) &&
           is_same(one->b, other->b) && is_same(one->bias, other->bias) &&
           is_same(one->pre_activation, other->pre_activation) &&
           is_same(one->column_sums, other->column_sums) &&
           is_same(one->a_scales, other->a_scales) && is_same(one->b_scales, other->b_scales) &&
           one->epilogue == other->epilogue && one->transpose_a == other->transpose_a &&
           one->transpose_b == other->transpose_b && one->accumulate == other->accumulate;
}

/* Copies a tensor's shape to the product's own, so that its arguments outlive the call. */
static const struct tensor *keep(struct bench_product *product, const struct tensor *tensor) {
    if (!tensor) return NULL;
    struct tensor *kept = &product->tensors[product->tensor_count++];
    *kept = *tensor;
    return kept;
}

int bench_products_find(struct bench_products *products, const struct matmul_args *args) {
    for (int i = 0; i < products->count; i++)
        if (is_same_product(&products->of[i].args, args)) return i;
    if (products->count == BENCH_PRODUCTS_MAX) return -1;
    struct bench_product *product = &products->of[products->count];
    memset(product, 0, sizeof *product);
    product->args = *args;
    product->args.out = keep(product, args->out);
    product->args.a = keep(product, args->a);
    product->args.b = keep(product, args->b);
    product->args.bias = keep(product, args->bias);
    product->args.pre_activation = keep(product, args->pre_activation);
    product->args.column_sums = keep(product, args->column_sums);
    product->args.a_scales = keep(product, args->a_scales);
    product->args.b_scales = keep(product, args->b_scales);
    return products->count++;
}

/* ---- alone */

static void matmul_body(const struct subject *s) {
    s->be->op->matmul(s->be, s->scratch);
}

/* Allocates a tensor of the product, with random values. */
static const struct tensor *take_tensor(struct subject *s, const struct tensor *tensor) {
    if (!tensor) return NULL;
    int i = s->tensor_count++;
    make(s, i, tensor->dtype, tensor_rows(tensor), tensor_columns(tensor), 0.5);
    return &s->t[i];
}

/* Returns the seconds of a product. plain: without the operations that follow it. */
static double time_alone(struct bench *bench, struct backend *be, const struct bench_product *from,
                         bool plain) {
    struct subject s = {bench, be, matmul_body, .block_count = 0};
    struct matmul_args args = from->args;
    if (plain) {
        args.out = matmul_sum(&args);
        args.epilogue = MATMUL_STORE;
        args.bias = args.pre_activation = args.column_sums = NULL;
        args.track_amax = NULL;
    }
    args.label = NULL;
    args.out = take_tensor(&s, args.out);
    args.a = take_tensor(&s, args.a);
    args.b = take_tensor(&s, args.b);
    args.bias = take_tensor(&s, args.bias);
    args.pre_activation = take_tensor(&s, args.pre_activation);
    args.column_sums = take_tensor(&s, args.column_sums);
    args.a_scales = take_tensor(&s, args.a_scales);
    args.b_scales = take_tensor(&s, args.b_scales);
    if (args.track_amax) args.track_amax = take(&s, sizeof(struct amax));
    s.scratch = &args;
    return measure(&s, "a product of the step");
}

void bench_products_alone(struct bench *bench, struct backend *be,
                          struct bench_products *products) {
    for (int fused = 1; fused >= 0; fused--) {
        gpu_fuse(be, fused);
        for (int i = 0; i < products->count; i++) {
            struct bench_product *product = &products->of[i];
            if (fused) product->fused = time_alone(bench, be, product, false);
            else if (product->args.pre_activation)
                product->apart = time_alone(bench, be, product, false);
            if (!fused) product->plain = time_alone(bench, be, product, true);
        }
    }
}

/* ---- the table */

static double operations_of(const struct matmul_args *args) {
    double k = (double)(args->transpose_a ? tensor_rows(args->a) : tensor_columns(args->a));
    return 2 * k * (double)tensor_rows(args->out) * (double)tensor_columns(args->out);
}

/* The form of a product: layouts of a and b, dtypes, and what it does with its sums. */
static void print_form(char text[BENCH_FORM_MAX], const struct matmul_args *args) {
    static const char *const epilogues[] = {"", " gelu", " dgelu"};
    snprintf(text, BENCH_FORM_MAX, "%s x %s%s to %s%s%s%s%s", dtype_name(args->a->dtype),
             dtype_name(args->b->dtype),
             args->transpose_a   ? " tn"
             : args->transpose_b ? " nt"
                                 : " nn",
             dtype_name(args->out->dtype), args->accumulate ? " +=" : "", args->bias ? " bias" : "",
             epilogues[args->epilogue], args->column_sums ? " sums" : "");
}

static double rate_of(double operations, double seconds) {
    return seconds > 0 ? operations / seconds * 1e-12 : 0;
}

static void print_product(struct bench *bench, const struct bench_product *product,
                          const char *precision, double ceiling) {
    const struct matmul_args *args = &product->args;
    double operations = operations_of(args), all = operations * product->calls;
    double lost = ceiling > 0 ? product->seconds - all / ceiling : 0;
    double step = rate_of(all, product->seconds), fused = rate_of(operations, product->fused);
    double apart = rate_of(operations, product->apart), plain = rate_of(operations, product->plain);
    char form[BENCH_FORM_MAX];
    print_form(form, args);
    printf("  %6lld %6lld %6.0f %-34s %4.0f %8.3f %8.3f %7.1f %7.1f %7.1f %7.1f\n",
           (long long)tensor_rows(args->out), (long long)tensor_columns(args->out),
           operations / 2 / (double)tensor_count(args->out), form, product->calls,
           1e3 * product->seconds, 1e3 * lost, step, fused, apart, plain);
    bench_json_line(bench,
                    "{\"product\": \"%lld x %lld x %.0f %s\", \"precision\": \"%s\", "
                    "\"calls\": %.0f, \"tflop\": %.9f, \"ms\": %.4f, \"step_tflop_per_s\": %.2f, "
                    "\"fused_tflop_per_s\": %.2f, \"apart_tflop_per_s\": %.2f, "
                    "\"plain_tflop_per_s\": %.2f}",
                    (long long)tensor_rows(args->out), (long long)tensor_columns(args->out),
                    operations / 2 / (double)tensor_count(args->out), form, precision,
                    product->calls, 1e-12 * all, 1e3 * product->seconds, step, fused, apart, plain);
}

/* Compares pointers to products by their time in the step, longest first. */
static int by_seconds(const void *one, const void *other) {
    double difference = (*(const struct bench_product *const *)other)->seconds -
                        (*(const struct bench_product *const *)one)->seconds;
    return difference > 0 ? 1 : difference < 0 ? -1 : 0;
}

void bench_products_print(struct bench *bench, const struct bench_products *products,
                          enum bench_precision precision) {
    const struct bench_product *order[BENCH_PRODUCTS_MAX]; /* products point into themselves */
    double ceiling = bench->product_rate[precision], seconds = 0, operations = 0;
    const char *name = bench_precision_names[precision];
    if (products->count == 0) return;
    for (int i = 0; i < products->count; i++) order[i] = &products->of[i];
    qsort(order, (size_t)products->count, sizeof *order, by_seconds);
    printf("Products of a step in %s, ms and TFLOP/s; lost: ms beyond the best rate measured\n",
           name);
    printf("  %6s %6s %6s %-34s %4s %8s %8s %7s %7s %7s %7s\n", "M", "N", "K", "", "", "ms", "lost",
           "step", "fused", "apart", "plain");
    for (int i = 0; i < products->count; i++) {
        print_product(bench, order[i], name, ceiling);
        seconds += order[i]->seconds;
        operations += operations_of(&order[i]->args) * order[i]->calls;
    }
    printf("  %-20s %-40s %8.3f %8.3f %7.1f\n", "all", "", 1e3 * seconds,
           ceiling > 0 ? 1e3 * (seconds - operations / ceiling) : 0, rate_of(operations, seconds));
    fflush(stdout);
}
