/* A config as JSON, and the option table as schema, help and reference. */
#pragma once

#include "model/config/config_keys.h"

/* The printers write to out; the caller checks ferror(out).
 *
 * config_print_json: every key with its resolved value; config_load() of that text gives the same
 * values, doubles to the last bit. A loss_scale block that was not given and has no effect is left
 * out, so that loading the dump of a bf16 run does not warn about it.
 * config_print_schema: JSON Schema, draft 7, for editors; configs/schema.json is this text.
 * config_print_help: the keys for --help-config, at most 80 columns; with `name`, only that key or
 *     the keys of that block, which must exist.
 * config_print_reference: the same as Markdown tables, for configs/README.md. */
void config_print_json(FILE *out, const struct config *config);
void config_print_schema(FILE *out);
void config_print_help(FILE *out, const char *name);
void config_print_reference(FILE *out);

/* Writes a value as JSON, followed by zeros. */
enum { CONFIG_VALUE_MAX = 4096 };
void config_value_text(char text[CONFIG_VALUE_MAX], const struct config *config,
                       const struct config_option *option);

/* Writes a description of the allowed values, such as "a whole number from 1 to 1024" or "true or
 * false". */
void config_describe_allowed(const struct config_option *option, char *text, size_t size);

/* Prints the value of a row as JSON. */
void config_print_value(FILE *out, const struct config *config, const struct config_option *option);

/* Returns the output of config_print_json, *size (optional) bytes and a NUL, which the caller
 * frees. NULL when out of memory. */
char *config_json_text(const struct config *config, size_t *size);
