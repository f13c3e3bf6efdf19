/* What an audit found: on the terminal, as JSON (audit_json.h) and as a page (audit_page.h). */
#ifndef MODEL_LAB_AUDIT_AUDIT_REPORT_H
#define MODEL_LAB_AUDIT_AUDIT_REPORT_H

#include <stdio.h>

#include "model/lab/audit/advice.h"

/* Tables with the worst layer of each kind, then the advice, within 80 columns. */
void audit_print(FILE *out, const struct audit *audit, const struct advice *advice);

/* Writes FOLDER/audit.json and FOLDER/audit.html; the folder must exist. */
int audit_write(const struct audit *audit, const struct advice *advice, const char *folder,
                char *error);

#endif
