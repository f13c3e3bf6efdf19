/* The seed of hash tables. */
#pragma once

#include <stdint.h>

/* An odd number that is random for each process, so that the author of a file cannot choose keys
 * that collide. stb_ds's maps are seeded likewise. No output may depend on the order of a table;
 * the elements of an stb_ds map are in the order of insertion. */
extern uint64_t hash_multiplier;
