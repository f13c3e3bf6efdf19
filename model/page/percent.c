#include "model/page/percent.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>

struct percent percent(double share) {
    struct percent percent;
    double value = 100 * share, size = fabs(value);
    int digits = value == 0 || size >= 1e9 ? 0 : size < 0.1 ? 3 : size < 10 ? 2 : 1;
    bool inf = !isfinite(share), tiny = value != 0 && size < 0.001;
    if (inf || tiny) snprintf(percent.text, sizeof percent.text, inf ? "inf" : "<.001%%");
    else snprintf(percent.text, sizeof percent.text, "%.*f%%", digits, value);
    return percent;
}
