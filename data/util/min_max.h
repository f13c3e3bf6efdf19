/* The smaller and the larger of two values of one type. Arguments are evaluated twice. */
#pragma once

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
