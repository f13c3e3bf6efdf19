/* adapter_config.json of Hugging Face's PEFT, beside adapter_model.safetensors. Source: LoraConfig
 * of huggingface/peft. */
#pragma once

#include <stdio.h>

#include "data/util/error.h"
#include "model/config/config.h"

extern const char adapter_config_name[]; /* "adapter_config.json" */

/* Prints the file for the adapter of a struct config; the base is its model.init_from. The caller
 * checks ferror(out). The type is that of stored_file_print. */
void adapter_print_config(FILE *out, const void *context);

/* Fills rank, alpha, rslora and targets in config->adapter from DIRECTORY/adapter_config.json and
 * sets its type; keys that are given by --set stay. config->model must be complete, as
 * target_modules selects among its layers. Fails if the file is missing or malformed, or if the
 * adapter is of a kind that mantissa does not have; the message names the key. */
int adapter_read_config(struct config *config, const char *directory, struct error *error);

/* Stores the folder of the base that DIRECTORY/adapter_config.json names, of CONFIG_STRING_MAX
 * bytes. */
int adapter_read_base(char base[CONFIG_STRING_MAX], const char *directory, struct error *error);
