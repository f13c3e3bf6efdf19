/* C headers that the CUDA sources include. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

extern "C" {
#include "data/util/error.h"
#include "data/util/note.h"
#include "data/util/progress.h"
#include "data/util/random.h"
#include "kernels/algorithms.h"
#include "kernels/arena.h"
#include "kernels/backend.h"
}
