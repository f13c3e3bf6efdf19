/* audit.html: the same for reading, with the histograms of exponents (the picture of Micikevicius
 * et al. 2018) and every layer. */
#ifndef MODEL_LAB_AUDIT_AUDIT_HTML_H
#define MODEL_LAB_AUDIT_AUDIT_HTML_H

#include <stdio.h>

#include "model/lab/audit/advice.h"

void audit_print_html(FILE *out, const struct audit *audit, const struct advice *advice);

#endif
