/* Short texts of fractions in percent. */
#pragma once

struct percent {
    char text[16];
};

/* Returns 0.0123 as "1.23%", with 1 to 3 decimals, by value, for use among the arguments of printf.
 * Less than 0.001% becomes "<.001%", a value that is not finite "inf". Up to 100% there are at most
 * 6 characters. */
struct percent percent(double share);
