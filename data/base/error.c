#include "data/base/error.h"

#include <stdarg.h>
#include <stdio.h>

int fail(struct error *error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return -1;
}
