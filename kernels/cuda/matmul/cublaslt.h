/* Functions of cuBLASLt that we call, loaded at run time (library.h), so that its half a gigabyte
 * is mapped only on machines with a GPU. */
#pragma once

#include <cublasLt.h>

#include "kernels/cuda/plain_c.h"

#define CUBLASLT_FUNCTIONS(X)       \
    X(Create)                       \
    X(Destroy)                      \
    X(GetVersion)                   \
    X(GetStatusString)              \
    X(MatmulDescCreate)             \
    X(MatmulDescDestroy)            \
    X(MatmulDescSetAttribute)       \
    X(MatrixLayoutCreate)           \
    X(MatrixLayoutDestroy)          \
    X(MatmulPreferenceCreate)       \
    X(MatmulPreferenceDestroy)      \
    X(MatmulPreferenceSetAttribute) \
    X(MatmulAlgoGetHeuristic)       \
    X(MatmulAlgoCheck)              \
    X(Matmul)

struct cublaslt {
#define X(name) decltype(&cublasLt##name) name;
    CUBLASLT_FUNCTIONS(X)
#undef X
};

/* Fills the table. Returns -1 with a message. */
int cublaslt_load(struct cublaslt *lt, struct error *error);
