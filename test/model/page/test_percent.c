#include "model/page/percent.h"

#include <criterion/criterion.h>

#include <math.h>

Test(percent, is_short) {
    static const struct {
        double share;
        const char *expected;
    } cases[] = {
        {0, "0%"},         {1, "100.0%"},        {0.123, "12.3%"},
        {0.0123, "1.23%"}, {0.000123, "0.012%"}, {1e-5, "0.001%"},
        {1e-7, "<.001%"},  {-0.05, "-5.00%"},    {INFINITY, "inf"},
        {NAN, "inf"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_str_eq(percent(cases[i].share).text, cases[i].expected);
}
