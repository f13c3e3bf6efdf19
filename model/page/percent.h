/* Short texts of fractions in percent. */
#pragma once

enum { PERCENT_MAX = 24 };

/* Writes 0.0123 as "1.23 %", with 1 to 3 decimals. Less than 0.001 % becomes "<0.001 %", a value
 * that is not finite "infinite". Returns text. */
const char *percent(char text[PERCENT_MAX], double share);

/* Writes the short form for tables: "1.23%", "<.001%", "inf". Up to 100 % it has at most 6
 * characters. Returns text. */
const char *percent_short(char text[PERCENT_MAX], double share);
