#include "model/page/percent.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *percent(char text[PERCENT_MAX], double share) {
    double value = 100 * share, size = fabs(value);
    if (!isfinite(share)) snprintf(text, PERCENT_MAX, "infinite");
    else if (value == 0) snprintf(text, PERCENT_MAX, "0 %%");
    else if (size < 0.001) snprintf(text, PERCENT_MAX, "<0.001 %%");
    else snprintf(text, PERCENT_MAX, "%.*f %%", size < 0.1 ? 3 : size < 10 ? 2 : 1, value);
    return text;
}

const char *percent_short(char text[PERCENT_MAX], double share) {
    if (!isfinite(share)) return strcpy(text, "inf");
    if (share != 0 && fabs(share) < 1e-5) return strcpy(text, "<.001%");
    percent(text, share);
    strcpy(strchr(text, ' '), "%");
    return text;
}
