#include "data/base/error.h"

#include <stdarg.h>
#include <stdio.h>

int fail(char *error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, ERROR_MAX, format, arguments);
    va_end(arguments);
    return -1;
}
