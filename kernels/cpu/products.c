#include "kernels/cpu/products.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "kernels/choices.h"
#include "kernels/cpu/autotune.h"

struct product_entry {
    struct product_shape key;
    struct cpu_product *value; /* NULL: widen */
};

struct cpu_products {
    struct product_library *library;
    struct product_entry *prepared; /* stb_ds map */
    bool autotune;
    bool times;                      /* with autotune, on rank 0: the others use its choices */
    struct autotune_choice *choices; /* stb_ds array */
    char machine[384];               /* text that identifies everything the choices depend on */
};

static const char *chosen(const struct cpu_products *products, const struct product_shape *shape) {
    for (ptrdiff_t i = 0; i < arrlen(products->choices); i++)
        if (memcmp(&products->choices[i].shape, shape, sizeof *shape) == 0)
            return products->choices[i].implementation;
    return NULL;
}

static void tune(struct cpu_products *products, const struct product_shape *shape) {
    char names[IMPLEMENTATIONS_MAX][IMPLEMENTATION_NAME_MAX];
    const char *name = autotune_fastest(names, products->library, shape);
    struct autotune_choice choice = {.shape = *shape};
    if (!name) return;
    snprintf(choice.implementation, sizeof choice.implementation, "%s", name);
    arrput(products->choices, choice);
}

static struct cpu_product *prepare(struct cpu_products *products, const struct product_shape *shape,
                                   bool planning) {
    /* Without instructions for bf16 the library emulates it with AVX-512, at a third of the speed
     * of fp32; with slow ones, at half of it. */
    if (shape->in == DTYPE_BF16 && !library_has_fast_bf16(products->library)) return NULL;
    if (products->times && planning && !chosen(products, shape)) tune(products, shape);
    const char *name = chosen(products, shape);
    struct cpu_product *product = library_prepare(products->library, shape, name);
    return product || !name ? product : library_prepare(products->library, shape, NULL);
}

struct cpu_product *cpu_products_find(struct cpu_products *products, struct product_shape shape,
                                      bool planning) {
    ptrdiff_t at = hmgeti(products->prepared, shape);
    if (at >= 0) return products->prepared[at].value;
    struct cpu_product *product = prepare(products, &shape, planning);
    hmput(products->prepared, shape, product);
    return product;
}

static int read_choices(FILE *file, void *into) {
    struct cpu_products *products = into;
    return autotune_read(&products->choices, products->machine, file);
}

struct cpu_products *cpu_products_open(struct backend_description *device,
                                       const struct cpu_level *level, bool keep_to_level,
                                       const struct backend_options *options, struct error *error) {
    struct cpu_products *products = calloc(1, sizeof *products);
    if (products) products->library = library_open(level, keep_to_level);
    if (!products || !products->library) {
        fail(error, "oneDNN cannot be started on this processor");
        free(products);
        return NULL;
    }
    library_describe(device->library, sizeof device->library);
    device->library_bytes = library_own_bytes(products->library, device->threads);
    snprintf(products->machine, sizeof products->machine, "%s, %s, %d threads, %s", device->library,
             level->full_name, device->threads, device->description);
    products->autotune = options->autotune == AUTOTUNE_ON;
    products->times = products->autotune && (!options->ranks || options->ranks->rank == 0);
    if (products->times && options->choices &&
        choices_read(options->choices, read_choices, products, error)) {
        cpu_products_close(products);
        return NULL;
    }
    struct product_shape probe = {64, 64, 64, DTYPE_BF16, DTYPE_BF16, -1, 0, 0, 0};
    device->native[DTYPE_BF16] = cpu_products_find(products, probe, false) != NULL;
    return products;
}

void cpu_products_close(struct cpu_products *products) {
    for (ptrdiff_t i = 0; i < hmlen(products->prepared); i++)
        library_discard(products->prepared[i].value);
    hmfree(products->prepared);
    arrfree(products->choices);
    library_close(products->library);
    free(products);
}

bool cpu_products_run(struct cpu_products *products, const struct cpu_product *product, void *out,
                      const void *a, const void *b, const void *bias, void *scratch) {
    return library_run(products->library, product, out, a, b, bias, scratch);
}

static void write_choices(FILE *file, const void *from) {
    const struct cpu_products *products = from;
    autotune_write(file, products->machine, products->choices, (int)arrlen(products->choices));
}

bool cpu_products_tuned(const struct cpu_products *products) {
    return products->autotune;
}

int cpu_products_write(const struct cpu_products *products, const char *path, struct error *error) {
    return products->autotune ? choices_write(path, write_choices, products, error) : 0;
}

int cpu_products_share(struct cpu_products *products, const struct ranks *ranks,
                       struct error *error) {
    return choices_share(ranks, write_choices, read_choices, products, error);
}
