#include <criterion/criterion.h>
#include <math.h>

#include "test/kernels/golden.h"

struct shape {
    int64_t batch, length, positions, columns;
    int32_t vocabulary;
    enum dtype table, out;
    bool restarts; /* positions are given for each row */
    float token_scale;
};

static const struct shape shapes[] = {
    {2, 13, 16, 40, 37, DTYPE_F32, DTYPE_F32, false, 1},
    {1, 1, 1, 1, 1, DTYPE_F32, DTYPE_F32, false, 1},
    {3, 77, 77, 72, 50257, DTYPE_F32, DTYPE_F32, false, 1},
    {2, 13, 16, 1100, 5, DTYPE_F32, DTYPE_BF16, false, 1},
    {2, 7, 9, 33, 61, DTYPE_BF16, DTYPE_BF16, false, 1},
    {2, 7, 9, 33, 61, DTYPE_F16, DTYPE_F16, false, 1},
    {5, 3, 4, 65, 11, DTYPE_F16, DTYPE_F32, false, 1},
    /* One token everywhere; few tokens over many chunks of rows; token numbers of two and of
     * three bytes. */
    {20, 11, 11, 24, 1, DTYPE_F32, DTYPE_F32, false, 1},
    {3, 32, 32, 264, 1, DTYPE_BF16, DTYPE_F32, false, 1},
    {60, 21, 30, 16, 7, DTYPE_F32, DTYPE_BF16, false, 1},
    {64, 33, 33, 9, 300, DTYPE_F32, DTYPE_F32, false, 1},
    {41, 50, 50, 8, 256, DTYPE_F16, DTYPE_F16, false, 1},
    {9, 64, 64, 8, 70000, DTYPE_F32, DTYPE_F32, false, 1},
    {1, 40, 64, 2056, 3, DTYPE_BF16, DTYPE_BF16, false, 1},
    /* Enough rows for larger chunks of them. */
    {2050, 33, 33, 1, 257, DTYPE_F32, DTYPE_F32, false, 1},
    /* Embedding without a table of positions. */
    {2, 77, 0, 72, 331, DTYPE_BF16, DTYPE_F32, false, 1},
    {3, 13, 0, 41, 61, DTYPE_F32, DTYPE_BF16, false, 1},
    /* Positions of each row: one for all, few, more than sequence_length, and many. */
    {2, 13, 1, 40, 37, DTYPE_F32, DTYPE_F32, true, 1},
    {3, 77, 5, 72, 331, DTYPE_BF16, DTYPE_BF16, true, 1},
    {9, 7, 300, 33, 61, DTYPE_F16, DTYPE_F32, true, 1},
    {1, 1, 1, 1, 1, DTYPE_F32, DTYPE_F32, true, 1},
    {64, 33, 70000, 8, 300, DTYPE_F32, DTYPE_BF16, true, 1},
    /* Scaled rows of tokens: without positions, with them, and with few tokens over many rows. */
    {2, 77, 0, 72, 331, DTYPE_BF16, DTYPE_F32, false, 25.25f},
    {3, 13, 0, 41, 61, DTYPE_F32, DTYPE_BF16, false, 33.94113f},
    {2, 13, 16, 40, 37, DTYPE_F32, DTYPE_F32, false, 0.1f},
    {9, 7, 300, 33, 61, DTYPE_F16, DTYPE_F16, true, 25.298221f},
    {60, 21, 30, 16, 7, DTYPE_F32, DTYPE_BF16, false, 25.298221f},
    {3, 32, 0, 264, 1, DTYPE_BF16, DTYPE_F32, false, -3.7f},
};
#define EACH_SHAPE(s) (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)

/* Positions of rows: NULL for the operation where they repeat with the sequence. */
struct places {
    const int32_t *given; /* in backend memory, or NULL */
    int32_t *rows;        /* [N], on the host */
};

static struct places places_of(struct check *c, const struct shape *s) {
    int64_t count = s->batch * s->length;
    struct places places = {.rows = (int32_t *)check_doubles(c, count)};
    const int32_t *random;
    if (s->restarts) places.given = check_tokens(c, count, (int32_t)s->positions, &random);
    for (int64_t i = 0; i < count; i++)
        places.rows[i] = s->restarts ? random[i] : (int32_t)(i % s->length);
    return places;
}

static void forward(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t rows = s->batch * s->length, columns = s->columns;
    const int32_t *tokens, *place = check_tokens(c, rows, s->vocabulary, &tokens);
    struct tensor token_table = check_normal(c, s->table, s->vocabulary, columns, 1.0);
    struct places places = places_of(c, s);
    int64_t positions = s->positions ? s->positions : s->length;
    struct tensor position_table = check_normal(c, s->table, positions, columns, 1.0);
    struct tensor out = check_output(c, s->out, rows, columns);
    CHECK_OP(c, embedding_forward, .out = &out, .tokens = place, .token_table = &token_table,
             .position_table = s->positions ? &position_table : NULL, .positions = places.given,
             .sequence_length = s->length, .token_scale = s->token_scale);
    if (!c->verify) return;
    double *token = check_read(c, &token_table), *position = check_read(c, &position_table);
    double *sum = check_doubles(c, rows * columns), *size = check_doubles(c, rows * columns);
    for (int64_t i = 0; i < rows * columns; i++) {
        int64_t row = i / columns, column = i % columns;
        double a = (double)s->token_scale * token[tokens[row] * columns + column];
        double b = s->positions ? position[places.rows[row] * columns + column] : 0;
        sum[i] = a + b;
        size[i] = fabs(a) + fabs(b);
    }
    check_close(c, s->token_scale != 1 ? "embedding_scaled" : "embedding_forward", &out, sum, size);
}

Test(embedding, forward) {
    for
        EACH_SHAPE(s) check_everywhere(forward, &shapes[s]);
}

/* A table of split masters gives the same bits as the table in fp32. */
static void forward_split(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t rows = s->batch * s->length, columns = s->columns, count = s->vocabulary * columns;
    const int32_t *tokens, *place = check_tokens(c, rows, s->vocabulary, &tokens);
    struct tensor table = check_normal(c, DTYPE_F32, s->vocabulary, columns, 1.0);
    struct tensor position_table = check_normal(c, DTYPE_F32, s->positions, columns, 1.0);
    struct tensor expected = check_output(c, s->out, rows, columns);
    struct tensor out = check_output(c, s->out, rows, columns);
    const double *values = check_read(c, &table);
    uint16_t *upper = (uint16_t *)check_doubles(c, count);
    int16_t *remainder = (int16_t *)check_doubles(c, count);
    for (int64_t i = 0; i < count; i++) {
        float value = (float)values[i];
        split_masters(&upper[i], &remainder[i], &value, 1);
    }
    struct tensor halves = table;
    size_t bytes = (size_t)count * sizeof *upper;
    halves.dtype = DTYPE_BF16;
    halves.data = check_memory(c, CHECK_READ, upper, bytes);
    CHECK_OP(c, embedding_forward, .out = &expected, .tokens = place, .token_table = &table,
             .position_table = &position_table, .sequence_length = s->length, .token_scale = 1);
    CHECK_OP(c, embedding_forward, .out = &out, .tokens = place, .token_table = &halves,
             .token_remainder = check_memory(c, CHECK_READ, remainder, bytes),
             .position_table = &position_table, .sequence_length = s->length, .token_scale = 1);
    check_equal(c, "split", &out, check_read(c, &expected));
}

Test(embedding, forward_of_split_masters) {
    for (int s = 0; s < 6; s++) check_everywhere(forward_split, &shapes[s]);
}

/* The gradient of sum(dout * out): out is linear in the tables, so this is exact. */
static void backward(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t rows = s->batch * s->length, columns = s->columns;
    const int32_t *tokens, *place = check_tokens(c, rows, s->vocabulary, &tokens);
    struct tensor dout = check_normal(c, s->out, rows, columns, 1.0);
    struct tensor dtoken = check_sum(c, s->table, s->vocabulary, columns);
    struct places places = places_of(c, s);
    int64_t positions = s->positions ? s->positions : s->length;
    struct tensor dposition = check_sum(c, s->table, positions, columns);
    double *token = check_read(c, &dtoken), *position = check_read(c, &dposition);
    CHECK_OP(c, embedding_backward, .dtoken_table = &dtoken,
             .dposition_table = s->positions ? &dposition : NULL, .dout = &dout, .tokens = place,
             .positions = places.given, .sequence_length = s->length,
             .token_scale = s->token_scale);
    if (!c->verify) return;
    double *d = check_read(c, &dout);
    double *token_size = check_doubles(c, s->vocabulary * columns);
    double *position_size = check_doubles(c, positions * columns);
    for (int64_t i = 0; i < s->vocabulary * columns; i++) token_size[i] = fabs(token[i]);
    for (int64_t i = 0; i < positions * columns; i++) position_size[i] = fabs(position[i]);
    for (int64_t i = 0; i < rows * columns; i++) {
        int64_t row = i / columns, column = i % columns;
        int64_t t = tokens[row] * columns + column, p = places.rows[row] * columns + column;
        token[t] += (double)s->token_scale * d[i];
        token_size[t] += fabs((double)s->token_scale * d[i]);
        if (s->positions) position[p] += d[i];
        position_size[p] += fabs(d[i]);
    }
    check_close(c, "embedding_backward", &dtoken, token, token_size);
    check_close(c, "embedding_backward", &dposition, position, position_size);
}

Test(embedding, backward) {
    for
        EACH_SHAPE(s) check_everywhere(backward, &shapes[s]);
}

/* One tensor at an odd offset, and tables of different dtypes. */
static void unaligned(struct check *c, const void *given) {
    const int odd = *(const int *)given; /* index of the tensor */
    const int64_t length = 7, rows = 6 * length, columns = 16, vocabulary = 5;
    const int32_t *tokens, *place = check_tokens(c, rows, (int32_t)vocabulary, &tokens);
    struct tensor t[6];
    const int64_t heights[] = {rows, vocabulary, length, rows, vocabulary, length};
    const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F32, DTYPE_BF16,
                                 DTYPE_F32,  DTYPE_F16, DTYPE_F32};
    for (int i = 0; i < 6; i++) {
        enum check_use use = i == 0 || i > 3 ? CHECK_WRITE : CHECK_READ;
        t[i] = i == odd            ? check_misaligned(c, use, dtypes[i], heights[i], columns)
               : use == CHECK_READ ? check_normal(c, dtypes[i], heights[i], columns, 1.0)
                                   : check_sum(c, dtypes[i], heights[i], columns);
    }
    double *dtoken = check_read(c, &t[4]), *dposition = check_read(c, &t[5]);
    CHECK_OP(c, embedding_forward, .out = &t[0], .tokens = place, .token_table = &t[1],
             .position_table = &t[2], .sequence_length = length, .token_scale = 1);
    CHECK_OP(c, embedding_backward, .dtoken_table = &t[4], .dposition_table = &t[5], .dout = &t[3],
             .tokens = place, .sequence_length = length, .token_scale = 1);
    if (!c->verify) return;
    double *token = check_read(c, &t[1]), *position = check_read(c, &t[2]);
    double *dout = check_read(c, &t[3]), *out = check_doubles(c, rows * columns);
    for (int64_t i = 0; i < rows * columns; i++) {
        int64_t row = i / columns, column = i % columns;
        int64_t at = tokens[row] * columns + column, place_at = row % length * columns + column;
        out[i] = token[at] + position[place_at];
        dtoken[at] += dout[i];
        dposition[place_at] += dout[i];
    }
    check_close(c, "embedding_forward", &t[0], out, NULL);
    check_close(c, "embedding_backward", &t[4], dtoken, NULL);
    check_close(c, "embedding_backward", &t[5], dposition, NULL);
}

Test(embedding, unaligned) {
    for (int odd = 0; odd < 6; odd++) check_everywhere(unaligned, &odd);
}

static void golden(struct check *c, const void *given) {
    (void)given;
    const int32_t *tokens = golden_tokens(c, "embedding.tokens", NULL);
    struct tensor token_table = golden_tensor(c, CHECK_READ, "embedding.token_table");
    struct tensor position_table = golden_tensor(c, CHECK_READ, "embedding.position_table");
    struct tensor dout = golden_tensor(c, CHECK_READ, "embedding.dout");
    int64_t rows = tensor_rows(&dout), columns = tensor_columns(&dout);
    struct tensor out = check_output(c, DTYPE_F32, rows, columns);
    CHECK_OP(c, embedding_forward, .out = &out, .tokens = tokens, .token_table = &token_table,
             .position_table = &position_table, .sequence_length = 13, .token_scale = 1);
    double *zeros = check_doubles(c, tensor_count(&token_table));
    struct tensor dtoken =
        check_tensor(c, CHECK_WRITE, DTYPE_F32, tensor_rows(&token_table), columns, zeros);
    struct tensor dposition =
        check_tensor(c, CHECK_WRITE, DTYPE_F32, tensor_rows(&position_table), columns, zeros);
    CHECK_OP(c, embedding_backward, .dtoken_table = &dtoken, .dposition_table = &dposition,
             .dout = &dout, .tokens = tokens, .sequence_length = 13, .token_scale = 1);
    if (!c->verify) return;
    golden_close(c, "golden", &out, "embedding.out", NULL);
    golden_close(c, "golden_sum", &dtoken, "embedding.dtoken_table", NULL);
    golden_close(c, "golden_sum", &dposition, "embedding.dposition_table", NULL);
}

Test(embedding, golden) {
    check_everywhere(golden, NULL);
}
