/* Text of loss scales. */
#include <criterion/criterion.h>
#include <math.h>

#include "model/lab/compare/comparison_tables.h"

Test(comparison_tables, scale_text) {
    static const struct {
        double scale;
        const char *text;
    } cases[] = {
        {65536, "2^16"}, {4294967300.0, "2^32"}, /* nine digits of 2^32 */
        {1, "2^0"},      {6.10351562e-05, "2^-14"}, {1000, "1000"}, {65535, "65535"},
        {0.3, "0.3"},    {(double)NAN, "-"},
    };
    char text[SCALE_TEXT_MAX];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_str_eq(scale_text(text, cases[i].scale), cases[i].text, "%g: %s", cases[i].scale,
                         text);
}
