/* The one place where the stb_ds growing arrays and hash maps are compiled. */
#define STB_DS_IMPLEMENTATION
#include <stb/stb_ds.h>
