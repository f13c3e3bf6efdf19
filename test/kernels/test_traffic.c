/* Traffic between host and device while operations run: slots that take turns, and state that is
 * loaded, changed and stored. Under ThreadSanitizer the emulated GPU also sees a wait that is
 * missing (make test-races). */
#include <criterion/criterion.h>

#include "kernels/backend_open.h"
#include "test/device.h"

enum { COUNT = 1000, STEPS = 7 };

static struct backend be;

static void open_it(void) {
    struct error error;
    cr_assert_eq(
        backend_open(&be, &(const struct backend_options){.device = test_device()}, &error), 0,
        "%s", error.text);
}

static void close_it(void) {
    cr_expect_str_empty(be.failure.text);
    backend_close(&be);
}

TestSuite(traffic, .init = open_it, .fini = close_it);

static float *on_host(void) {
    float *values = backend_host_allocate(&be, COUNT * sizeof *values);
    cr_assert(values);
    return values;
}

static struct tensor on_device(enum dtype dtype) {
    struct tensor tensor = {NULL, dtype, 1, {COUNT}};
    tensor.data = backend_allocate(&be, tensor_bytes(&tensor));
    cr_assert(tensor.data);
    return tensor;
}

static void fill(float *values, int step) {
    for (int i = 0; i < COUNT; i++) values[i] = (float)(step * COUNT + i);
}

/* As the micro-batches of a step do it: one is sent while those before still compute, and nobody
 * waits for what they make. */
Test(traffic, slots_take_turns) {
    float *batches[BACKEND_SLOTS], *results[STEPS];
    struct tensor in[BACKEND_SLOTS], out = on_device(DTYPE_F32);
    for (int i = 0; i < BACKEND_SLOTS; i++) batches[i] = on_host(), in[i] = on_device(DTYPE_F32);
    for (int step = 0; step < STEPS; step++) {
        int slot = step % BACKEND_SLOTS;
        results[step] = on_host();
        if (step >= BACKEND_SLOTS) backend_sent(&be, slot);
        fill(batches[slot], step);
        backend_send(&be, slot, in[slot].data, batches[slot], COUNT * sizeof(float));
        OP(&be, cast, .out = &out, .in = &in[slot]);
        backend_fetch(&be, slot, results[step], out.data, COUNT * sizeof(float));
    }
    for (int i = 0; i < BACKEND_SLOTS; i++) backend_fetched(&be, i);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < COUNT; i++)
            cr_assert_eq(results[step][i], (float)(step * COUNT + i), "step %d", step);
        backend_host_release(&be, results[step]);
    }
    for (int i = 0; i < BACKEND_SLOTS; i++) {
        backend_host_release(&be, batches[i]);
        backend_release(&be, in[i].data);
    }
    backend_release(&be, out.data);
}

/* Pieces of state pass through two windows, each always through the same one; operations round
 * them to bf16. */
Test(traffic, windows_take_turns) {
    enum { PIECES = 5, ROUNDS = 3 };
    float *pieces[PIECES];
    struct tensor window[BACKEND_SLOTS], lower = on_device(DTYPE_BF16);
    for (int i = 0; i < BACKEND_SLOTS; i++) window[i] = on_device(DTYPE_F32);
    for (int p = 0; p < PIECES; p++) {
        pieces[p] = on_host();
        for (int i = 0; i < COUNT; i++) pieces[p][i] = 1 + 0x1p-9f * (float)(p + 1);
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int p = 0; p < PIECES; p++) {
            int slot = p % BACKEND_SLOTS;
            struct transfer transfer = {window[slot].data, pieces[p], COUNT * sizeof(float)};
            backend_load(&be, slot, &transfer, 1);
            OP(&be, cast, .out = &lower, .in = &window[slot]);
            OP(&be, cast, .out = &window[slot], .in = &lower);
            backend_store(&be, slot, &transfer, 1);
        }
    backend_stored(&be);
    for (int p = 0; p < PIECES; p++) /* multiples of 2^-7 by now, ties to even */
        for (int i = 0; i < COUNT; i++)
            cr_assert_eq(pieces[p][i], p < 2 ? 1 : 1 + 0x1p-7f, "piece %d: %a", p,
                         (double)pieces[p][i]);
    for (int p = 0; p < PIECES; p++) backend_host_release(&be, pieces[p]);
    for (int i = 0; i < BACKEND_SLOTS; i++) backend_release(&be, window[i].data);
    backend_release(&be, lower.data);
}
