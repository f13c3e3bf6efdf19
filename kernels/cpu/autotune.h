/* Chooses the library's implementation of each product by timing, and records the choice: two
 * implementations add in different orders, so a resumed run must reuse its implementations to give
 * the same bits.
 *
 *     mantissa implementations, format 1, oneDNN 2.6.3, x86-64-v4, 2 threads, AMD EPYC
 *     in=fp32 out=fp32 bias=none m=1024 n=768 k=3072 transpose=00 accumulate=0 brg:avx512_core
 *         (on one line) */
#pragma once

#include <stdio.h>

#include "kernels/cpu/product_library.h"

struct autotune_choice {
    struct product_shape shape;
    char implementation[IMPLEMENTATION_NAME_MAX];
};

/* Returns the fastest implementation's name, timed on operands of its own, or NULL if there is no
 * memory for them or only one implementation. names is the storage of the result. */
const char *autotune_fastest(char names[IMPLEMENTATIONS_MAX][IMPLEMENTATION_NAME_MAX],
                             struct product_library *library, const struct product_shape *shape);

/* machine: description of everything that the choices depend on, a line without its end. */
void autotune_write(FILE *file, const char *machine, const struct autotune_choice *choices,
                    int count);

/* Appends the choices of the file to *choices, an stb_ds array; none if it is from another machine.
 * Returns the number of an invalid line, or 0. */
int autotune_read(struct autotune_choice **choices, const char *machine, FILE *file);
