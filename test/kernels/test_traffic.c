/* Traffic between host and device while operations run: slots used in turns, copies in lanes, and
 * host state that operations change. Under ThreadSanitizer the emulated GPU also detects a missing
 * wait (make test-races). */
#include <criterion/criterion.h>

#include "kernels/open/backend_open.h"
#include "test/device.h"

enum { COUNT = 1000, STEPS = 7 };

static struct backend be;

static void open_it(void) {
    struct error error;
    cr_assert_eq(
        backend_open(&be, &(const struct backend_options){.device = test_device(), .graphs = true},
                     &error),
        0, "%s", error.text);
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

/* Like the micro-batches of a step: one is sent while earlier ones still compute, without
 * waiting for their results. */
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

struct layers {
    float *host[STEPS];
    struct tensor buffers[BACKEND_SLOTS], out[STEPS];
};

static void copy_layer(const struct layers *layers, int layer) {
    int slot = layer % BACKEND_SLOTS;
    backend_copy(&be, (struct copy_slot){LANE_WEIGHTS, slot}, layers->buffers[slot].data,
                 layers->host[layer], COUNT * sizeof(float));
}

static void read_layers(void *argument) {
    const struct layers *layers = argument;
    copy_layer(layers, 0);
    for (int layer = 0; layer < STEPS; layer++) {
        if (layer + 1 < STEPS) copy_layer(layers, layer + 1);
        backend_copied(&be, (struct copy_slot){LANE_WEIGHTS, layer % BACKEND_SLOTS});
        OP(&be, cast, .out = &layers->out[layer], .in = &layers->buffers[layer % BACKEND_SLOTS]);
    }
}

/* Like the layers of a pass: the next one is copied while an operation reads this one. Called
 * directly, and recorded and started as a graph. */
Test(traffic, copies_alternate) {
    enum { ROUNDS = 4 };
    struct layers layers;
    float values[COUNT];
    for (int i = 0; i < BACKEND_SLOTS; i++) layers.buffers[i] = on_device(DTYPE_F32);
    for (int i = 0; i < STEPS; i++)
        layers.host[i] = on_host(), layers.out[i] = on_device(DTYPE_F32);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < STEPS; i++) fill(layers.host[i], round * STEPS + i);
        backend_graph(&be, 0, &layers, read_layers, &layers);
        for (int i = 0; i < STEPS; i++) {
            backend_download(&be, values, layers.out[i].data, sizeof values);
            for (int k = 0; k < COUNT; k++)
                cr_assert_eq(values[k], (float)((round * STEPS + i) * COUNT + k), "round %d",
                             round);
        }
    }
    for (int i = 0; i < BACKEND_SLOTS; i++) backend_release(&be, layers.buffers[i].data);
    for (int i = 0; i < STEPS; i++) {
        backend_host_release(&be, layers.host[i]);
        backend_release(&be, layers.out[i].data);
    }
}

/* Adds one to each layer where it is: the layer is copied to its buffer and back. */
static void change_layers(void *argument) {
    const struct layers *layers = argument;
    for (int layer = 0; layer < STEPS; layer++) {
        const struct copy_slot slot = {LANE_GRADIENTS, layer % BACKEND_SLOTS};
        const struct tensor *buffer = &layers->buffers[slot.slot];
        backend_copy(&be, slot, buffer->data, layers->host[layer], COUNT * sizeof(float));
        backend_copied(&be, slot);
        OP(&be, weighted_sum, .out = buffer, .a = buffer, .b = &layers->out[0], .columns = COUNT,
           .alpha = 1, .beta = 1);
        backend_copy(&be, slot, layers->host[layer], buffer->data, COUNT * sizeof(float));
    }
    for (int slot = 0; slot < BACKEND_SLOTS; slot++)
        backend_copied(&be, (struct copy_slot){LANE_GRADIENTS, slot});
}

/* A buffer's next layer arrives after the last one has left. Operations that are called after the
 * work read what has left. */
Test(traffic, copies_leave_and_return) {
    enum { ROUNDS = 4 };
    struct layers layers;
    float values[COUNT];
    for (int i = 0; i < BACKEND_SLOTS; i++) layers.buffers[i] = on_device(DTYPE_F32);
    for (int i = 0; i < STEPS; i++) fill(layers.host[i] = on_host(), i);
    layers.out[0] = on_device(DTYPE_F32);
    layers.out[1] = on_device(DTYPE_F32);
    for (int k = 0; k < COUNT; k++) values[k] = 1;
    backend_upload(&be, layers.out[0].data, values, sizeof values);
    for (int round = 1; round <= ROUNDS; round++) {
        backend_graph(&be, 1, &layers, change_layers, &layers);
        for (int i = 0; i < STEPS; i++) {
            const struct tensor left = {layers.host[i], DTYPE_F32, 1, {COUNT}};
            OP(&be, cast, .out = &layers.out[1], .in = &left);
            backend_download(&be, values, layers.out[1].data, sizeof values);
            for (int k = 0; k < COUNT; k++)
                cr_assert_eq(values[k], (float)(i * COUNT + k + round), "round %d", round);
        }
    }
    for (int i = 0; i < BACKEND_SLOTS; i++) backend_release(&be, layers.buffers[i].data);
    for (int i = 0; i < STEPS; i++) backend_host_release(&be, layers.host[i]);
    backend_release(&be, layers.out[0].data);
    backend_release(&be, layers.out[1].data);
}

/* Host state that several operations change in place before it is read. */
Test(traffic, operations_reach_memory_of_the_host) {
    enum { ROUNDS = 3 };
    struct tensor state = {on_host(), DTYPE_F32, 1, {COUNT}}, lower = on_device(DTYPE_BF16);
    float values[COUNT];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < COUNT; i++) values[i] = (float)(round + 1) + 0x1p-9f * (float)(i % 4);
        backend_upload(&be, state.data, values, sizeof values);
        OP(&be, cast, .out = &lower, .in = &state);
        OP(&be, cast, .out = &state, .in = &lower);
        backend_download(&be, values, state.data, sizeof values);
        for (int i = 0; i < COUNT; i++)
            cr_assert_eq(values[i], (float)(round + 1) + (round == 0 && i % 4 == 3 ? 0x1p-7f : 0),
                         "round %d, %d: %a", round, i, (double)values[i]);
    }
    backend_host_release(&be, state.data);
    backend_release(&be, lower.data);
}
