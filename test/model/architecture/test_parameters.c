#include "model/config/config_check.h"
#include "model/config/config_keys.h"
#include "model/architecture/parameters.h"
#include "kernels/arena.h"

#include <criterion/criterion.h>

#include <string.h>

#include <stb/stb_ds.h>

/* Every place follows the one before, decayed ones first, and nothing is missing. */
Test(parameter_list, covers_the_flat_arrays) {
    struct config config;
    config_defaults(&config);
    config.model.n_layer = 3;
    config.model.n_embd = 36;
    config.model.vocab_size = 1003;
    int64_t count, offset = 0, numbers = 0;
    struct model_shape shape = config_shape(&config);
    cr_expect_eq(shape.padded_vocab, 1024);
    struct parameter *list = parameter_list(&shape, &count);
    cr_assert_eq(arrlen(list), 4 + 12 * 3);
    cr_expect_str_eq(list[0].name, "wte.weight");
    cr_expect_eq(list[0].extent.rows, 1003, "files hold no padding");
    for (ptrdiff_t i = 0; i < arrlen(list); i++) {
        const struct parameter *p = &list[i];
        cr_expect_eq(p->offset, offset, "%s", p->name);
        cr_expect_eq(p->offset % PARAMETER_ALIGNMENT, 0);
        cr_expect(i == 0 || list[i - 1].group <= p->group, "%s", p->name);
        cr_expect_eq(p->group == GROUP_DECAYED, p->extent.columns > 0, "%s", p->name);
        int64_t columns = p->extent.columns ? p->extent.columns : 1;
        int64_t rows = i == 0 ? 1024 : p->extent.rows;
        cr_expect_eq(p->extent.padded_rows, rows, "%s", p->name);
        cr_expect_eq(p->elements, round_up(rows * columns, PARAMETER_ALIGNMENT));
        offset += p->elements;
        numbers += p->extent.rows * columns;
        cr_expect_eq(parameter_count(p), p->extent.rows * columns);
        for (ptrdiff_t k = 0; k < i; k++) cr_expect_str_neq(list[k].name, p->name);
    }
    cr_expect_eq(offset, count);
    cr_expect_eq(numbers, (1003 + shape.n_positions) * 36 + 3 * (12 * 36 * 36 + 13 * 36) + 2 * 36);
    cr_expect_eq(numbers, config_parameter_count(&config));
    arrfree(list);
}

/* Twelve squares of the width in a layer: three for qkv, one, four, and four. */
Test(parameter_list, products_of_a_layer) {
    struct model_shape shape = {
        .n_layer = 2, .n_head = 3, .n_kv_head = 3, .head_dim = 12, .n_embd = 36, .n_inner = 144};
    cr_expect_eq(shape_layer_multiply_adds(&shape, AUTOCAST_SITE_COUNT), 12 * 36 * 36);
    cr_expect_eq(shape_layer_multiply_adds(&shape, SITE_QKV), 3 * 36 * 36);
    cr_expect_eq(shape_layer_multiply_adds(&shape, SITE_ATTENTION_PROJECTION), 36 * 36);
    cr_expect_eq(shape_layer_multiply_adds(&shape, SITE_ATTENTION), 0);
    cr_expect_eq(shape_layer_multiply_adds(&shape, SITE_LM_HEAD), 0, "it is no layer's");
}

/* q, k and v lie side by side, as gate and up do: operations read them as one. */
Test(parameter_list, joined_parameters_leave_no_gap) {
    struct config config;
    int64_t count, offset = 0, numbers = 0;
    config_defaults(&config);
    config.model.n_layer = 2;
    config.model.n_head = 9;
    config.model.n_kv_head = 3;
    config.model.head_dim = 7;
    config.model.n_embd = 72;
    config.model.n_inner = 201;
    config.model.norm = NORM_RMSNORM;
    config.model.positions = POSITIONS_ROPE;
    config.model.mlp = MLP_SWIGLU;
    config.model.bias = BIAS_QKV;
    config.model.tied_head = false;
    struct model_shape shape = config_shape(&config);
    struct parameter *list = parameter_list(&shape, &count);
    for (ptrdiff_t i = 0; i < arrlen(list); i++) {
        const struct parameter *p = &list[i];
        int64_t own = p->extent.padded_rows * (p->extent.columns ? p->extent.columns : 1);
        cr_expect_eq(p->offset, offset, "%s", p->name);
        cr_expect(p->fused_with_previous || p->offset % PARAMETER_ALIGNMENT == 0, "%s", p->name);
        if (i + 1 < arrlen(list) && p[1].fused_with_previous)
            cr_expect_eq(p->elements, own, "%s", p->name);
        offset += p->elements;
        numbers += parameter_count(p);
    }
    cr_expect_eq(offset, count);
    cr_expect_eq(numbers, config_parameter_count(&config));
    cr_expect_eq(numbers,
                 2 * 256 * 72 + 72 +
                     2 * (72 * (63 + 2 * 21) + 63 + 2 * 21 + 63 * 72 + 3 * 72 * 201 + 2 * 72));
    cr_expect_str_eq(parameter_wte(list)->name, "model.embed_tokens.weight");
    cr_expect_str_eq(parameter_head(list)->name, "lm_head.weight");
    arrfree(list);
}

/* Frozen parameters come last, so the trained ones are those before the first of them. */
Test(parameter_list, trained_ones_end_where_frozen_ones_begin) {
    struct config config;
    config_defaults(&config);
    int64_t count;
    struct model_shape shape = config_shape(&config);
    struct parameter *list = parameter_list(&shape, &count);
    cr_expect_eq(parameter_trained_count(list), arrlen(list));
    for (ptrdiff_t first = arrlen(list) - 1; first >= 0; first--) {
        list[first].group = GROUP_FROZEN;
        cr_expect_eq(parameter_trained_count(list), first);
    }
    arrfree(list);
}
