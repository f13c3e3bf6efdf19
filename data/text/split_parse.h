/* A regular expression to the nodes of data/text/split_program.h. */
#pragma once

#include "data/base/error.h"
#include "data/text/split_program.h"

/* Fills pattern->nodes and start from its text; pattern->atoms is set. Fails with the part that is
 * wrong or unknown; what there is then still has to be released. */
int split_parse(struct split_pattern *pattern, const char *text, enum split_edition edition,
                struct error *error);
