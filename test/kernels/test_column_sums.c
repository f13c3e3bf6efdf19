/* Column sums on a GPU by themselves, with shapes that no matrix product of the tests has. */
#include <criterion/criterion.h>
#include <math.h>

#include "test/device.h"
#include "test/kernels/check.h"

#ifdef WITH_CUDA
/* As in kernels/cuda/cuda.h, which is C++ where nvcc's types are concerned. */
size_t cuda_column_sums_bytes(const struct backend *be, const struct tensor *b);
void cuda_column_sums(struct backend *be, const struct tensor *dbias, const struct tensor *b,
                      void *scratch);

struct shape {
    int64_t rows, columns;
    enum dtype b, dbias;
    bool odd; /* b begins one element behind where a vector could be read */
};

static const struct shape shapes[] = {
    {1, 1, DTYPE_F32, DTYPE_F32, false},
    {77, 40, DTYPE_BF16, DTYPE_F32, false},
    {64, 256, DTYPE_BF16, DTYPE_BF16, false}, /* one group, one tile */
    {65, 264, DTYPE_F16, DTYPE_F32, false},   /* two of each */
    {333, 515, DTYPE_F16, DTYPE_F16, false},
    {200, 48, DTYPE_BF16, DTYPE_F32, true},
    {9, 72, DTYPE_F32, DTYPE_BF16, true},
    {500, 2760, DTYPE_BF16, DTYPE_F32, false}, /* the last tile is not full */
    {131073, 1, DTYPE_BF16, DTYPE_F32, false}, /* so many rows that groups of them grow */
    {1, 525000, DTYPE_BF16, DTYPE_F32, false}, /* more tiles than blocks are wanted */
};

static void column_sums(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t odd = s->odd, count = s->rows * s->columns;
    struct tensor whole = check_normal(c, s->b, count + odd, 0, 1.0);
    struct tensor part = tensor_range(&whole, odd, count);
    struct tensor b = tensor_view(&part, s->rows, s->columns);
    struct tensor dbias = check_sum(c, s->dbias, s->columns, 0);
    double *sum = check_read(c, &dbias);
    check_plan_begin(c);
    struct tensor unknown = b;
    unknown.data = NULL; /* as when a layout is measured */
    size_t bytes = cuda_column_sums_bytes(&c->be, &unknown);
    backend_workspace(&c->be, bytes);
    check_plan_end(c, "column_sums");
    cuda_column_sums(&c->be, &dbias, &b, backend_workspace(&c->be, bytes));
    check_finished(c, "column_sums");
    if (!c->verify) return;
    const double *values = check_read(c, &b);
    double *size = check_doubles(c, s->columns);
    for (int64_t i = 0; i < s->columns; i++) size[i] = fabs(sum[i]);
    for (int64_t i = 0; i < count; i++) {
        sum[i % s->columns] += values[i];
        size[i % s->columns] += fabs(values[i]);
    }
    check_close(c, "column_sums", &dbias, sum, size);
}

Test(column_sums, shapes) {
    if (test_device() != DEVICE_CUDA) return;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        check_everywhere(column_sums, &shapes[s]);
}
#endif
