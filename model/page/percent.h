/* Shares as percent, in few characters. */
#pragma once

enum { PERCENT_MAX = 24 };

/* 0.0123 as "1.23 %", as many places as matter; less than a thousandth of a percent as "<0.001 %";
 * what is not finite as "infinite". */
const char *percent(char text[PERCENT_MAX], double share);

/* For tables: "1.23%", "<.001%", "inf". At most 6 characters up to 100 %. */
const char *percent_short(char text[PERCENT_MAX], double share);
