#include "data/util/error.h"

#include <stdarg.h>
#include <stdio.h>

#include "data/util/program_names.h"
#include "data/util/utf8.h"

int fail(struct error *error, const char *format, ...) {
    char named[PROGRAM_TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, program_format(named, format), arguments);
    va_end(arguments);
    utf8_mask(error->text);
    return -1;
}

int fail_memory(struct error *error, const char *what, ...) {
    char text[ERROR_MAX - 60];
    va_list arguments;
    va_start(arguments, what);
    vsnprintf(text, sizeof text, what, arguments);
    va_end(arguments);
    return fail(error, "out of memory for %s\nfree memory and try again", text);
}
