/* The words of autocast.float32 as sets of bits, by enum autocast_site. */
#pragma once

#include "model/precision.h"

enum { WORDS_TEXT_MAX = 160 };

unsigned words_of_config(const struct config *config);
void words_set(struct config *config, unsigned words);

/* "mlp_fc", "qkv", in quotes and separated by commas. */
void words_text(char text[WORDS_TEXT_MAX], unsigned words);
