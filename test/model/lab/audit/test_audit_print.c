/* Tables of reports with synthetic figures: report.json, of bf16 and fp16, whose layer 1 is worse
 * in all but the zeros, and report_fp8.json. */
#include "model/lab/audit/audit.h"

#include <criterion/criterion.h>

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/util/json.h"
#include "data/util/printed.h"
#include "test/scratch.h"

#define FOLDER "test/model/lab/audit/"

/* Prints a report and expects these parts in it, in this order, with one space for each gap. */
static void expect_parts(const cJSON *report, const char *const *parts, int count) {
    struct printed printed;
    cr_assert_eq(printed_open(&printed), 0);
    audit_print(printed.out, report);
    cr_assert_eq(printed_close(&printed), 0);
    for (const char *line = printed.text; *line; line += strcspn(line, "\n") + 1)
        cr_expect_leq(strcspn(line, "\n"), 80, "%.90s", line);
    char *to = printed.text;
    for (const char *at = printed.text; *at; at++)
        if (!isspace((unsigned char)*at)) *to++ = *at;
        else if (to > printed.text && to[-1] != ' ') *to++ = ' ';
    *to = 0;
    const char *rest = printed.text;
    for (int i = 0; i < count; i++) {
        const char *found = strstr(rest, parts[i]);
        cr_expect_not_null(found, "no \"%s\" in: %s", parts[i], rest);
        if (found) rest = found + strlen(parts[i]);
    }
    free(printed.text);
}

static struct json_file read_report(const char *path) {
    struct json_file file;
    cr_assert_eq(json_file_open(&file, path, &error), 0, "%s", error.text);
    return file;
}

Test(audit_report, tables) {
    static const char *const parts[] = {
        "Precision audit of small: 4 micro-batches of 8 x 256 tokens from step 600 on",
        "weights runs/<small> device a device loss fp32 2.500000, bf16 2.501000, fp16 2.502000",
        "loss scale 3000, that of the fp16 run at this step; the figures are at 2^12",
        "forward bf16 fp16 zero subnormal room",
        "qkv 3.00% 0.30% 50.0% 20.0% 7.0",
        "backward bf16 fp16 zero scaled subnormal scaled room",
        "d(ln_f) 1.00% 0.10% 50.0% <.001% 25.0% 0% -2.5",
        "d(residual) 1.00% 0.10% - - - - -",
        "gradient of bf16 fp16 lost bf16 fp16 dB bf16 fp16",
        "w 2.00% 0.40% 50.0% 25.0% 20.0 0.2",
        "all 2.00% 0.20% 50.0% 25.0% 20.0 0.2",
        "one more bf16 removes fp16",
        "(none) 4.00% - 0.40%",
        "qkv 3.00% 25.0% -",
        "Advice Format: bf16.",
        "Config for bf16 { \"precision\": \"bf16\", \"autocast\": { \"float32\": [] } }"};
    struct json_file file = read_report(FOLDER "report.json");
    expect_parts(file.root, parts, sizeof parts / sizeof *parts);
    json_file_close(&file);
}

/* Figures that are not finite are "inf" in a table. */
Test(audit_report, tables_of_a_quantized_precision) {
    const char *parts[] = {
        "Precision audit of small, fp8: 1 micro-batch of 8 x 256 tokens from step 1 on",
        "device a device loss fp32 2.000000 Quantized operands",
        "operand format to zero saturated SNR worst layer",
        "qkv input e4m3 25.0% 0% 31.5 30.2 7",
        "computed in loss against fp32 error of gradients cosine",
        "fp8 row, hybrid 2.01000 0.50% 1.18% 0.9981",
        "Advice A few batches show how large errors are."};
    struct json_file file = read_report(FOLDER "report_fp8.json");
    expect_parts(file.root, parts, sizeof parts / sizeof *parts);
    cJSON *trials = cJSON_GetObjectItem(file.root, "trials");
    cJSON_SetNumberValue(cJSON_GetObjectItem(trials->child, "gradient_error"), INFINITY);
    parts[5] = "fp8 row, hybrid 2.01000 0.50% inf 0.9981";
    expect_parts(file.root, parts, sizeof parts / sizeof *parts);
    json_file_close(&file);
}
