#include "model/page/percent.h"

#include <math.h>
#include <stdio.h>

const char *percent(char text[PERCENT_MAX], double share) {
    double value = 100 * share, size = fabs(value);
    if (!isfinite(share)) snprintf(text, PERCENT_MAX, "inf");
    else if (value == 0) snprintf(text, PERCENT_MAX, "0%%");
    else if (size < 0.001) snprintf(text, PERCENT_MAX, "<.001%%");
    else snprintf(text, PERCENT_MAX, "%.*f%%", size < 0.1 ? 3 : size < 10 ? 2 : 1, value);
    return text;
}
