/* Steps of a trainer compared with stored ones, by the tests of objectives. The source that
 * includes this defines struct setup, with family; prefix                 of the model; of names of
 * the run's tensors file, base                     fixtures of the run and of the initial weights
 *     be, trainer                    open, for upload_weights */
#pragma once

#include <stdio.h>

#include "test/model/core/golden_model.h"
#include "test/model/masters.h"

static const void *find(const struct setup *s, const char *name, enum safetensors_dtype dtype) {
    const void *data = data_in(&s->file, name, dtype);
    cr_assert(data, "no %s", name);
    return data;
}

/* Returns a tensor of the run, or NULL. */
static const float *result(const struct setup *s, const char *name) {
    char full[2 * NAME_MAX_BYTES];
    snprintf(full, sizeof full, "%s.%s", s->prefix, name);
    return data_in(&s->file, full, SAFETENSORS_F32);
}

static void expect_within(const struct setup *s, const char *what, double got, double bound) {
    if (verbose())
        fprintf(stderr, "%d %s %s: %.3g of %.3g\n", s->family, s->prefix, what, got, bound);
    cr_expect(got <= bound, "%d %s: %s differs by %g, allowed %g", s->family, s->prefix, what, got,
              bound);
}

static void upload_weights(struct setup *s) {
    struct model *model = &s->trainer.model;
    for (ptrdiff_t i = 0; i < arrlen(model->list); i++) {
        char name[NAME_MAX_BYTES];
        name_in_fixture(name, s->family, "initial", &model->list[i]);
        const float *values = data_in(&s->base, name, SAFETENSORS_F32);
        cr_assert(values, "no %s", name);
        masters_upload(&model->masters, &s->be, values, model->list[i].offset,
                       parameter_count(&model->list[i]));
    }
    masters_refresh(&model->masters, &s->be);
}
