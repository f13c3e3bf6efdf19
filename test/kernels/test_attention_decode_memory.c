/* Memory that is planned for attention_decode with some queries is enough for fewer of them, which
 * may have more parts. */
#include <criterion/criterion.h>

#include "test/kernels/check.h"

enum { QUERIES = 100, HEADS = 2 };

struct shape {
    int64_t length, head_columns;
    enum dtype dtype;
};

static void fewer_queries(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t columns = HEADS * s->head_columns;
    double *values = check_doubles(c, (QUERIES + s->length) * 2 * columns);
    struct tensor q = check_tensor(c, CHECK_READ, s->dtype, QUERIES, columns, values);
    struct tensor cache = check_tensor(c, CHECK_READ, s->dtype, s->length, 2 * columns, values);
    struct tensor out = check_tensor(c, CHECK_WRITE, s->dtype, QUERIES, columns, NULL);
    size_t before = 0;
    for (int64_t count = 1; count <= QUERIES; count++) {
        struct tensor some = tensor_slice(&out, 0, count), queries = tensor_slice(&q, 0, count);
        check_plan_begin(c);
        OP(&c->be, attention_decode, .out = &some, .q = &queries, .cache = &cache, .stride = 1,
           .keys_to = s->length, .keys_max = s->length, .scale = 1, .heads = HEADS,
           .kv_heads = HEADS);
        cr_assert_geq(c->be.workspace_bytes, before, "%d queries", (int)count);
        before = c->be.workspace_bytes;
        check_plan_end(c, "attention_decode");
    }
}

Test(attention_decode_memory, for_fewer_queries) {
    static const int64_t lengths[] = {20, 48, 77, 200}, widths[] = {24, 128};
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
            const struct shape shape = {lengths[l], widths[w], (enum dtype)(l % 3)};
            check_everywhere(fewer_queries, &shape);
        }
}
