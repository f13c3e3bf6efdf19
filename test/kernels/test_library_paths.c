#ifdef EMULATED
#include "kernels/cuda/library_paths.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "test/scratch.h"

TestSuite(library_paths, .init = make_folder, .fini = remove_folder);

static void make_file(const char *inside) {
    struct error message;
    char path[FILE_PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, inside);
    *strrchr(path, '/') = 0;
    cr_assert_eq(directory_create(path, &message), 0, "%s", message.text);
    fclose(fopen(in_folder("%s", inside), "w"));
}

static int index_of(const glob_t *paths, const char *path) {
    for (size_t i = 0; i < paths->gl_pathc; i++)
        if (strcmp(paths->gl_pathv[i], path) == 0) return (int)i;
    return -1;
}

Test(library_paths, environments_of_pip_and_conda_are_searched) {
    static const char *const files[] = {
        "cuda/lib64/libnccl.so.2",
        "conda/lib/libnccl.so.2",
        "venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
        "conda/lib/python3.11/site-packages/nvidia/cu13/lib/libnccl.so.2",
        "home/.local/lib/python3.13/site-packages/nvidia/nccl/lib/libnccl.so.2",
    };
    setenv("CUDA_HOME", in_folder("cuda"), 1);
    setenv("CONDA_PREFIX", in_folder("conda"), 1);
    setenv("VIRTUAL_ENV", in_folder("venv"), 1);
    setenv("HOME", in_folder("home"), 1);
    glob_t paths = {0};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) make_file(files[i]);
    make_file("venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.3");
    cuda_library_paths(&paths, "libnccl.so.2");
    cr_expect_str_eq(paths.gl_pathv[0], "libnccl.so.2", "the loader is asked first");
    cr_expect_str_eq(paths.gl_pathv[1], "libnccl.so");
    int before = 1;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int at = index_of(&paths, in_folder("%s", files[i]));
        cr_expect_gt(at, before, "%s", files[i]);
        before = at;
    }
    for (size_t i = 0; i < paths.gl_pathc; i++)
        cr_expect_null(strstr(paths.gl_pathv[i], ".so.3"), "another version");
    globfree(&paths);
}
#else
typedef int nothing_to_test;
#endif
