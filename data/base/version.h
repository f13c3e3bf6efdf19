/* The version of all programs, and of what they write. */
#ifndef DATA_BASE_VERSION_H
#define DATA_BASE_VERSION_H

#define MANTISSA_VERSION "0.1.0"

#endif
