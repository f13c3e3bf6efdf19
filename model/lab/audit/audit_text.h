/* What an audit found: on the terminal, as JSON (audit_json.h) and as a page (audit_html.h). */
#ifndef MODEL_LAB_AUDIT_AUDIT_TEXT_H
#define MODEL_LAB_AUDIT_AUDIT_TEXT_H

#include <stdio.h>

#include "model/lab/audit/advice.h"

/* Tables with the worst layer of each kind, then the advice, within 80 columns. */
void audit_print_text(FILE *out, const struct audit *audit, const struct advice *advice);

#endif
