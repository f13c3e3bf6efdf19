extern "C" {
#include "kernels/cuda/library_paths.h"
}

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 512 };

/* Appends what matches the folder, below the value of a variable if there is one, and the file. */
static void add(glob_t *paths, const char *variable, const char *folder, const char *file) {
    char pattern[PATH_BYTES];
    const char *root = variable ? getenv(variable) : "";
    if (!root || (variable && !root[0])) return;
    snprintf(pattern, sizeof pattern, "%s%s/%s", root, folder, file);
    glob(pattern, GLOB_APPEND, NULL, paths);
}

void cuda_library_paths(glob_t *paths, const char *file) {
    static const struct {
        const char *variable, *folder;
    } folders[] = {
        {"CUDA_HOME", "/lib64"},
        {"CUDA_HOME", "/lib"},
        {NULL, "/usr/local/cuda/lib64"},
        {NULL, "/usr/local/cuda/lib"},
        {"CONDA_PREFIX", "/lib"},
        {"VIRTUAL_ENV", "/lib/python3*/site-packages/nvidia/*/lib"},
        {"CONDA_PREFIX", "/lib/python3*/site-packages/nvidia/*/lib"},
        {"HOME", "/.local/lib/python3*/site-packages/nvidia/*/lib"},
        {NULL, "/usr/local/lib/python3*/*-packages/nvidia/*/lib"},
        {NULL, "/usr/lib/python3*/*-packages/nvidia/*/lib"},
    };
    char name[PATH_BYTES];
    const char *version = strstr(file, ".so.");
    glob(file, GLOB_NOCHECK, NULL, paths);
    snprintf(name, sizeof name, "%.*s.so", (int)(version - file), file);
    glob(name, GLOB_APPEND | GLOB_NOCHECK, NULL, paths);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        add(paths, folders[i].variable, folders[i].folder, file);
}
