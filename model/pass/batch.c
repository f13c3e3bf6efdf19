#include "model/pass/batch.h"

#include <string.h>

#include "data/util/min_max.h"
#include "kernels/arena.h"

/* Lays out the arrays in memory, or only measures them. */
static struct batch_view layout(struct arena *arena, const struct batch_format *format) {
    const int64_t rows = format->batch * format->length;
    struct batch_view view = {
        .batch = format->batch, .length = format->length, .counted_unit = format->counted_unit};
    const struct {
        enum batch_array array;
        int32_t **address;
    } rows_of[] = {{BATCH_TARGETS, &view.targets},
                   {BATCH_FIRST_KEYS, &view.first_keys},
                   {BATCH_POSITIONS, &view.positions}};
    const size_t bytes = (size_t)rows * sizeof(int32_t);
    if (format->arrays & BATCH_INPUTS) view.inputs = arena_take(arena, sizeof *view.inputs);
    view.tokens = arena_take(arena, bytes);
    for (size_t i = 0; i < sizeof rows_of / sizeof *rows_of; i++)
        if (format->arrays & rows_of[i].array) *rows_of[i].address = arena_take(arena, bytes);
    if (format->arrays & BATCH_KEYS)
        view.keys = arena_take(arena, (size_t)rows * sizeof *view.keys);
    if (format->extra) view.extra = arena_take(arena, format->extra);
    if (format->counted_unit > 0) {
        view.counted_rows = arena_take(arena, bytes);
        view.counted_places = arena_take(arena, bytes);
    }
    return view;
}

static size_t bytes_of(const struct batch_format *format) {
    struct arena measure = {0};
    layout(&measure, format);
    return measure.used;
}

size_t batch_bytes(const struct backend *be, const struct batch_format *format) {
    return bytes_of(format) * (be->device.host_memory ? 2 : 1);
}

int batch_open(struct batch *batch, struct backend *be, const struct batch_format *format,
               struct error *error) {
    const size_t bytes = bytes_of(format);
    *batch = (struct batch){.be = be, .bytes = bytes};
    batch->host_memory = backend_host_allocate(be, bytes);
    batch->sent_memory = backend_allocate(be, bytes);
    if (!batch->host_memory || !batch->sent_memory)
        return fail_memory(error, "batches of %zu bytes", bytes);
    memset(batch->host_memory, 0, bytes);
    batch->host = layout(&(struct arena){batch->host_memory, 0, bytes}, format);
    batch->sent = layout(&(struct arena){batch->sent_memory, 0, bytes}, format);
    return 0;
}

void batch_close(struct batch *batch) {
    if (batch->host_memory) backend_host_release(batch->be, batch->host_memory);
    if (batch->sent_memory) backend_release(batch->be, batch->sent_memory);
    *batch = (struct batch){0};
}

int64_t batch_counted_unit(const struct backend *be, int64_t rows) {
    const int64_t units = be->device.host_memory ? 16 : BATCH_UNITS_RECORDED;
    return round_up((rows + units - 1) / units, 32);
}

void batch_count(struct batch *batch) {
    struct batch_view *host = &batch->host;
    const int64_t rows = host->batch * host->length, unit = host->counted_unit;
    int64_t counted = 0;
    if (unit == 0) return;
    for (int64_t row = 0; row < rows; row++) {
        host->counted_places[row] = host->targets[row] < 0 ? -1 : (int32_t)counted;
        if (host->targets[row] >= 0) host->counted_rows[counted++] = (int32_t)row;
    }
    for (int64_t i = counted; i < rows; i++) host->counted_rows[i] = -1;
    counted = round_up(counted > 0 ? counted : 1, unit);
    host->counted = batch->sent.counted = counted < rows ? counted : 0;
}

void batch_pad(const struct batch_view *host, int64_t sequence, int64_t given) {
    const int64_t first = sequence * host->length;
    for (int64_t t = 0; t < host->length; t++) {
        const bool pads = t >= given;
        if (pads) host->tokens[first + t] = host->tokens[first];
        if (host->positions) host->positions[first + t] = pads ? 0 : (int32_t)t;
        if (host->first_keys) host->first_keys[first + t] = pads ? (int32_t)t : 0;
    }
}

void batch_upload(const struct batch *batch) {
    backend_upload(batch->be, batch->sent_memory, batch->host_memory, batch->bytes);
}
