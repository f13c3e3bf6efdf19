/* Names of the programs and scripts in texts for users. The sources have those of a build
 * directory: ./train, ./prepare, ./compare, scripts/NAME. If this program was started by an
 * installed name ("mantissa-train"), they become mantissa-train and so on, and scripts/NAME gets
 * the path of the installed one. That is for literals only: paths of users stay as they are. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

enum { PROGRAM_TEXT_MAX = 8192 };

/* Prints a literal with the names. */
void help_print(FILE *out, const char *text);

/* Return a literal, or a format of printf, with the names: in `named` if they differ. */
const char *program_text(char named[PROGRAM_TEXT_MAX], const char *text);
const char *program_format(char named[PROGRAM_TEXT_MAX], const char *format)
    __attribute__((format_arg(2)));

/* True if a command begins at text, under either name: for example "./train --help", also after a
 * parenthesis or python3. */
bool program_begins_command(const char *text);

/* Stores the path of the running executable, or of its folder with the '/' at the end. Returns -1,
 * with errno set and the path "", if it is unknown. */
int program_path(char path[PATH_MAX]);
int program_folder(char folder[PATH_MAX]);
