#include "model/config/config_check.h"
#include "model/config/config_keys.h"
#include "model/parameter_list.h"

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
    int64_t count, decayed, offset = 0, numbers = 0;
    struct gpt_shape shape = parameter_shape(&config);
    cr_expect_eq(shape.padded_vocab, 1024);
    struct parameter *list = parameter_list(&shape, &count, &decayed);
    cr_assert_eq(arrlen(list), 4 + 12 * 3);
    cr_expect_str_eq(list[0].name, "wte.weight");
    cr_expect_eq(list[0].rows, 1003, "files hold no padding");
    for (ptrdiff_t i = 0; i < arrlen(list); i++) {
        const struct parameter *p = &list[i];
        cr_expect_eq(p->offset, offset, "%s", p->name);
        cr_expect_eq(p->offset % PARAMETER_ALIGNMENT, 0);
        cr_expect_eq(p->decay, p->offset < decayed, "%s", p->name);
        cr_expect_eq(p->decay, p->columns > 0, "%s", p->name);
        offset += parameter_elements(i == 0 ? 1024 : p->rows, p->columns);
        numbers += p->rows * (p->columns ? p->columns : 1);
        for (ptrdiff_t k = 0; k < i; k++) cr_expect_str_neq(list[k].name, p->name);
    }
    cr_expect_eq(offset, count);
    cr_expect_eq(numbers, config_parameter_count(&config));
    arrfree(list);
}
