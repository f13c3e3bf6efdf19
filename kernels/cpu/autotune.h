/* Choosing the library's implementation of each product by the clock, and remembering the choice:
 * two implementations add in different orders, so a run that is resumed must take those it began
 * with to give the same bits.
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

/* The fastest implementation's name, timed on operands of its own; NULL if there is no memory for
 * them or nothing to choose. names is the place for it. */
const char *autotune_fastest(char names[IMPLEMENTATIONS_MAX][IMPLEMENTATION_NAME_MAX],
                             struct product_library *library, const struct product_shape *shape);

/* machine: what the choices depend on, a line without its end. */
void autotune_write(FILE *file, const char *machine, const struct autotune_choice *choices,
                    int count);

/* Appends what the file holds to *choices, an stb_ds array; nothing if it is of another machine.
 * Returns the number of a line that autotune_write does not write, or 0. */
int autotune_read(struct autotune_choice **choices, const char *machine, FILE *file);
