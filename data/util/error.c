#include "data/util/error.h"

#include <stdarg.h>
#include <stdio.h>

#include "data/util/utf8.h"

int fail(struct error *error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    utf8_mask(error->text);
    return -1;
}
