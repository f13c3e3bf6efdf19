#include "data/tokenize/unicode.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t class_runs[] = {
#include "data/tokenize/unicode_classes.inc"
};

uint8_t *unicode_atoms(void) {
    uint8_t *atoms = malloc(UNICODE_CODES);
    size_t at = 0;
    if (!atoms) return NULL;
    for (size_t i = 0; i < sizeof class_runs / sizeof *class_runs; i++) {
        const size_t count = class_runs[i] / UNICODE_ATOMS;
        memset(atoms + at, (int)(class_runs[i] % UNICODE_ATOMS), count);
        at += count;
    }
    assert(at == UNICODE_CODES);
    return atoms;
}
