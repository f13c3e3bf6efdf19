/* Text of reports with synthetic figures: report.json, of bf16 and
 * fp16, whose layer 1 is worse in all but the zeros, and report_fp8.json. */
#include "model/lab/audit/audit.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/util/files.h"
#include "data/util/json.h"
#include "test/scratch.h"

#define FOLDER "test/model/lab/audit/"

static char *printed(const cJSON *report) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    audit_print(out, report);
    fclose(out);
    return text;
}

static struct json_file read_report(const char *path) {
    struct json_file file;
    cr_assert_eq(json_file_open(&file, path, &error), 0, "%s", error.text);
    return file;
}

Test(audit_report, text) {
    static const char *const paths[][2] = {{FOLDER "report.json", FOLDER "report.txt"},
                                           {FOLDER "report_fp8.json", FOLDER "report_fp8.txt"}};
    for (int i = 0; i < 2; i++) {
        struct json_file file = read_report(paths[i][0]);
        char *text = printed(file.root), *expected;
        size_t size;
        if (getenv("UPDATE_EXPECTED")) {
            FILE *out = fopen(paths[i][1], "w");
            cr_assert(out && fputs(text, out) >= 0 && fclose(out) == 0);
        }
        cr_assert_eq(file_read_all(&expected, &size, paths[i][1], 1 << 20, &error), 0);
        cr_expect(strlen(text) == size && memcmp(text, expected, size) == 0, "%s: %s", paths[i][1],
                  text);
        free(text);
        free(expected);
        json_file_close(&file);
    }
}

/* Figures that are not finite are "inf" in a table. */
Test(audit_report, figures_that_are_not_finite) {
    struct json_file file = read_report(FOLDER "report_fp8.json");
    cJSON *trials = cJSON_GetObjectItem(file.root, "trials");
    cJSON_SetNumberValue(cJSON_GetObjectItem(trials->child, "gradient_error"), INFINITY);
    char *text = printed(file.root);
    cr_expect_not_null(strstr(text, "                 inf  0.9981\n"), "%s", text);
    free(text);
    json_file_close(&file);
}
