#include "test/kernels/leaks.h"

#ifndef __SANITIZE_ADDRESS__
int leaks_run(int (*framework)(int, char **), int argc, char **argv) {
    return framework(argc, argv);
}
#else
#include <sanitizer/lsan_interface.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int leaks_run(int (*framework)(int, char **), int argc, char **argv) {
    /* Criterion starts the program anew for each test, with this variable set. */
    bool in_test = getenv("BXFI_MAP") != NULL;
    int status = framework(argc, argv);
    if (in_test && __lsan_do_recoverable_leak_check()) abort();
    fflush(NULL);
    _exit(status);
}
#endif
