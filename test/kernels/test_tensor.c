#include "kernels/tensor.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#include "kernels/arena.h"

Test(tensor, counts_and_bytes) {
    struct tensor tensor = {NULL, DTYPE_BF16, 3, {2, 13, 40}};
    cr_assert_eq(tensor_count(&tensor), 1040);
    cr_assert_eq(tensor_bytes(&tensor), 2080);
    cr_assert_eq(tensor_rows(&tensor), 26);
    cr_assert_eq(tensor_columns(&tensor), 40);
    tensor.dtype = DTYPE_F32;
    cr_assert_eq(tensor_bytes(&tensor), 4160);
    tensor.rank = 1; /* the entries of shape after it are unused */
    cr_assert_eq(tensor_count(&tensor), 2);
    cr_assert_eq(tensor_rows(&tensor), 1);
    cr_assert_eq(tensor_columns(&tensor), 2);
    tensor.rank = 0;
    cr_assert_eq(tensor_count(&tensor), 1);
}

Test(tensor, more_elements_than_32_bits) {
    struct tensor tensor = {NULL, DTYPE_F16, 2, {1 << 20, 1 << 13}};
    cr_assert_eq(tensor_count(&tensor), INT64_C(1) << 33);
    cr_assert_eq(tensor_bytes(&tensor), UINT64_C(1) << 34);
}

Test(tensor, slice_is_a_view) {
    uint16_t memory[6 * 5];
    struct tensor tensor = {memory, DTYPE_F16, 3, {2, 3, 5}};
    struct tensor slice = tensor_slice(&tensor, 4, 2);
    cr_assert_eq(slice.data, (void *)(memory + 20));
    cr_assert_eq(slice.dtype, DTYPE_F16);
    cr_assert_eq(slice.rank, 2);
    cr_assert_eq(slice.shape[0], 2);
    cr_assert_eq(slice.shape[1], 5);
    tensor.data = NULL; /* while measuring */
    cr_assert_null(tensor_slice(&tensor, 4, 2).data);
    cr_assert_eq(tensor_count(&(struct tensor){0}), 1);
}

Test(tensor, view_has_another_shape) {
    float memory[24];
    struct tensor tensor = {memory, DTYPE_F32, 1, {24}};
    struct tensor view = tensor_view(&tensor, 3, 7);
    cr_assert_eq(view.data, (void *)memory);
    cr_assert_eq(view.rank, 2);
    cr_assert_eq(tensor_rows(&view), 3);
    cr_assert_eq(tensor_columns(&view), 7);
}

/* The two passes over a layout function: the first measures what the second assigns. */
static void lay_out(struct arena *arena, struct tensor out[3]) {
    out[0] = arena_tensor(arena, DTYPE_F32, 3, 7);
    out[1] = arena_tensor(arena, DTYPE_BF16, 129, 0);
    out[2] = arena_tensor(arena, DTYPE_F16, 1, 128);
}

Test(arena, measures_what_it_hands_out) {
    struct tensor tensors[3];
    struct arena measure = {0};
    lay_out(&measure, tensors);
    cr_assert_eq(measure.used, 256 + 512 + 256);
    for (int i = 0; i < 3; i++) cr_assert_null(tensors[i].data);

    char *block = aligned_alloc(ARENA_ALIGNMENT, measure.used);
    struct arena arena = {block, 0, measure.used};
    lay_out(&arena, tensors);
    cr_assert_eq(arena.used, measure.used);
    cr_assert_eq(tensors[0].data, (void *)block);
    cr_assert_eq(tensors[1].data, (void *)(block + 256));
    cr_assert_eq(tensors[2].data, (void *)(block + 768));
    cr_assert_eq(tensors[1].rank, 1);
    cr_assert_eq(tensor_count(&tensors[1]), 129);
    cr_assert_eq(tensors[2].rank, 2);
    free(block);
}

Test(arena, takes_whole_alignments) {
    struct arena arena = {0};
    arena_take(&arena, 1);
    cr_assert_eq(arena.used, 256);
    arena_take(&arena, 256);
    cr_assert_eq(arena.used, 512);
    arena_take(&arena, 0);
    cr_assert_eq(arena.used, 512);
}
