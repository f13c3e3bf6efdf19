/* Observers of operations: when they are called and with what, and that results do not change. */
#include <criterion/criterion.h>

#include "kernels/open/backend_open.h"
#include "kernels/observer.h"
#include "test/device.h"
#include "test/kernels/check.h"

struct log {
    struct observer observer;
    int count;
    struct {
        enum operation_id id;
        const void *args;
        bool after;
        float value; /* value of the tensor at that time */
    } calls[8];
    struct backend *be;
    const float *watched; /* backend memory */
};

static void note(struct log *log, enum operation_id id, const void *args, bool after) {
    cr_assert_lt(log->count, 8);
    float value;
    backend_download(log->be, &value, log->watched, sizeof value);
    log->calls[log->count].id = id;
    log->calls[log->count].args = args;
    log->calls[log->count].after = after;
    log->calls[log->count++].value = value;
}

static void before(struct observer *observer, enum operation_id id, const void *args) {
    note((struct log *)observer, id, args, false);
}

static void after(struct observer *observer, enum operation_id id, const void *args) {
    note((struct log *)observer, id, args, true);
}

Test(observer, sees_each_operation_before_and_after) {
    struct error error;
    struct backend be;
    cr_assert_eq(
        backend_open(&be, &(const struct backend_options){.device = test_device()}, &error), 0,
        "%s", error.text);
    float host = 3;
    float *data = backend_allocate(&be, sizeof *data), *copy = backend_allocate(&be, sizeof *copy);
    backend_upload(&be, data, &host, sizeof host);
    struct tensor out = {copy, DTYPE_F32, 1, {1}}, in = {data, DTYPE_F32, 1, {1}};
    struct log log = {{before, after}, .be = &be, .watched = data};
    backend_observe(&be, &log.observer);
    OP(&be, cast, .out = &out, .in = &in);
    OP(&be, clear, .data = data, .bytes = sizeof *data);
    log.observer.before = NULL;
    OP(&be, clear, .data = data, .bytes = sizeof *data);
    log.observer.after = NULL;
    OP(&be, clear, .data = data, .bytes = sizeof *data);
    backend_observe(&be, NULL);
    OP(&be, clear, .data = data, .bytes = sizeof *data);
    cr_expect_eq(log.count, 5);
    const enum operation_id ids[] = {ID_cast, ID_cast, ID_clear, ID_clear, ID_clear};
    const bool afters[] = {false, true, false, true, true};
    const float values[] = {3, 3, 3, 0, 0};
    for (int i = 0; i < 5; i++) {
        cr_expect_eq(log.calls[i].id, ids[i], "call %d", i);
        cr_expect_eq(log.calls[i].after, afters[i], "call %d", i);
        cr_expect_eq(log.calls[i].value, values[i], "call %d", i);
    }
    cr_expect_eq(log.calls[0].args, log.calls[1].args);
    backend_download(&be, &host, copy, sizeof host);
    cr_expect_eq(host, 3, "the operation itself was not called");
    backend_release(&be, data);
    backend_release(&be, copy);
    backend_close(&be);
}

Test(observer, operations_have_the_names_of_the_table) {
    cr_expect_str_eq(operation_name(ID_embedding_forward), "embedding_forward");
    cr_expect_str_eq(operation_name(ID_matmul), "matmul");
    cr_expect_str_eq(operation_name(OPERATION_IDS - 1), "loss_scale_update");
}
