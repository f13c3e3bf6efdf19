#include "kernels/open/backend_open.h"
#include "kernels/cpu/level.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEVELS = /* levels in one program */
#ifdef __x86_64__
    3
#else
    1
#endif
};

Test(level, highest_supported_level_is_the_default) {
    struct error error;
    for (int here = 1; here <= LEVELS; here++) {
        const struct cpu_level *level = cpu_level_pick(here, NULL, &error);
        cr_assert(level);
        cr_expect_eq(level->number, LEVELS == 1 ? 0 : here + 1);
    }
}

Test(level, each_level_has_two_names) {
    struct error error;
    for (int here = 1; here <= LEVELS; here++) {
        const struct cpu_level *level = cpu_level_pick(here, NULL, &error);
        cr_expect_eq(cpu_level_pick(LEVELS, level->name, &error), level);
        cr_expect_eq(cpu_level_pick(here, level->full_name, &error), level);
    }
}

Test(level, unknown_levels_are_an_error) {
    static const char *const wrong[] = {"v1", "v5", "", "V3", "avx2", "x86-64-v", "v3 "};
    struct error error;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_expect_null(cpu_level_pick(LEVELS, wrong[i], &error));
        cr_expect(strstr(error.text, "is no level"), "%s", error.text);
        cr_expect(strstr(error.text, cpu_level_pick(LEVELS, NULL, &(struct error){0})->name), "%s",
                  error.text);
        cr_expect_null(strchr(error.text, '\n'));
    }
}

Test(level, unsupported_levels_are_an_error) {
    struct error error;
    cr_expect_null(cpu_level_pick(0, NULL, &error));
    cr_expect(strstr(error.text, "this processor"), "%s", error.text);
#ifdef __x86_64__
    cr_expect(strstr(error.text, "SSE4.2"), "%s", error.text);
    cr_expect_null(cpu_level_pick(2, "v4", &error));
    cr_expect(strstr(error.text, "MANTISSA_CPU=v4 needs AVX-512"), "%s", error.text);
    cr_expect(strstr(error.text, "take v3 or lower"), "%s", error.text);
    cr_expect_null(cpu_level_pick(1, "x86-64-v3", &error));
    cr_expect(strstr(error.text, "take v2, or"), "%s", error.text);
#endif
}

/* The compiler's own detection of this processor. */
Test(level, agrees_with_the_compiler) {
#ifdef __x86_64__
    struct error error;
    bool forced;
    unsetenv("MANTISSA_CPU");
    const struct cpu_level *level = cpu_level_choose(&forced, &error);
    bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
    bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("bmi2");
    bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl");
    cr_assert(level);
    cr_expect_eq(level->number, v4 ? 4 : v3 ? 3 : 2);
    cr_expect_not(forced);
#endif
}

Test(level, the_environment_chooses) {
    struct backend be;
    struct error error = {0};
    const struct cpu_level *lowest = cpu_level_pick(1, NULL, &error);
    const struct backend_options options = {.device = DEVICE_CPU};
    setenv("MANTISSA_CPU", lowest->name, 1);
    /* oneDNN's own variables would override the level. */
    unsetenv("ONEDNN_MAX_CPU_ISA");
    unsetenv("DNNL_MAX_CPU_ISA");
    cr_assert_eq(backend_open(&be, &options, &error), 0, "%s", error.text);
    cr_expect_not_null(strstr(be.device.use, lowest->full_name), "%s", be.device.use);
    cr_expect_eq(be.run, &lowest->operations->run);
    cr_expect_eq(be.device.native[DTYPE_BF16], false, "beyond the level");
    backend_close(&be);
    setenv("MANTISSA_CPU", "none", 1);
    cr_expect_eq(backend_open(&be, &options, &error), -1);
    cr_expect(strstr(error.text, "MANTISSA_CPU=none"), "%s", error.text);
    setenv("MANTISSA_CPU", "", 1); /* treated as unset */
    cr_assert_eq(backend_open(&be, &options, &error), 0, "%s", error.text);
    backend_close(&be);
}
