#include "data/tokenize/unicode.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

/* Runs of characters of one class: its letter, in the order of enum unicode_atom, and their number
 * unless it is 1. */
static const char letters[] = ".UltmoMdnps_NPSW", class_runs[] =
#include "data/tokenize/unicode_classes.inc"
    ;

uint8_t *unicode_atoms(void) {
    uint8_t *atoms = NULL;
    arrsetcap(atoms, UNICODE_CODES);
    for (const char *run = class_runs; *run;) {
        const int atom = (int)(strchr(letters, *run) - letters);
        char *after;
        const size_t number = strtoul(run + 1, &after, 10), count = number > 0 ? number : 1;
        memset(arraddnptr(atoms, count), atom, count);
        run = after;
    }
    assert(arrlenu(atoms) == UNICODE_CODES);
    return atoms;
}
