#include "kernels/cpu/level.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

/* From the lowest to the highest. */
#ifdef __x86_64__
#define CPU_LEVELS(X)                                \
    X(2, v2, "x86-64-v2", "SSE4.2 and POPCNT")       \
    X(3, v3, "x86-64-v3", "AVX2, FMA, F16C and BMI") \
    X(4, v4, "x86-64-v4", "AVX-512 F, BW, CD, DQ and VL")
#else
#define CPU_LEVELS(X) X(0, base, "base", "")
#endif

#define X(number, level, ...) extern const struct cpu_operations cpu_operations_##level;
CPU_LEVELS(X)
#undef X

static const struct cpu_level levels[] = {
#define X(number, level, full_name, instructions) \
    {number, #level, full_name, instructions, &cpu_operations_##level},
    CPU_LEVELS(X)
#undef X
};

enum { LEVELS = sizeof levels / sizeof *levels };

#ifdef __x86_64__
/* Bits of CPUID, and of XCR0, which lists the registers that the system saves. */
struct features {
    unsigned leaf1_c, leaf7_b, extended_c, system;
};

/* x86-64 psABI 1.0, table 3.1; each level includes those before. */
static const struct features needs[] = {
    {.leaf1_c = bit_SSE3 | bit_SSSE3 | bit_CMPXCHG16B | bit_SSE4_1 | bit_SSE4_2 | bit_POPCNT,
     .extended_c = bit_LAHF_LM},
    {.leaf1_c = bit_FMA | bit_MOVBE | bit_OSXSAVE | bit_AVX | bit_F16C,
     .leaf7_b = bit_BMI | bit_AVX2 | bit_BMI2,
     .extended_c = bit_LZCNT,
     .system = 0x06}, /* registers of SSE and AVX */
    {.leaf7_b = bit_AVX512F | bit_AVX512DQ | bit_AVX512CD | bit_AVX512BW | bit_AVX512VL,
     .system = 0xe0}, /* masks, and the rest of the registers of AVX-512 */
};

static struct features find_features(void) {
    struct features has = {0};
    unsigned a, b, c, d;
    if (__get_cpuid(1, &a, &b, &c, &d)) has.leaf1_c = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) has.leaf7_b = b;
    if (__get_cpuid(0x80000001, &a, &b, &c, &d)) has.extended_c = c;
    if (has.leaf1_c & bit_OSXSAVE) {
        __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
        has.system = a;
    }
    return has;
}

bool cpu_bf16_at_half_rate(void) {
    enum { AVX512_FP16 = 1 << 23 }; /* in leaf 7, d: since Sapphire Rapids */
    unsigned a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d) || b != signature_INTEL_ebx) return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d & AVX512_FP16;
}

static int supported_levels(void) {
    struct features has = find_features();
    int count = 0;
    while (count < LEVELS) {
        const struct features *need = &needs[count];
        if (need->leaf1_c & ~has.leaf1_c || need->leaf7_b & ~has.leaf7_b ||
            need->extended_c & ~has.extended_c || need->system & ~has.system)
            break;
        count++;
    }
    return count;
}
#else
bool cpu_bf16_at_half_rate(void) {
    return false;
}

static int supported_levels(void) {
    return LEVELS;
}
#endif

void cpu_level_names(char *text, size_t size) {
    text[0] = 0;
    for (int i = 0; i < LEVELS; i++) {
        size_t used = strlen(text);
        snprintf(text + used, size - used, "%s%s", i ? ", " : "", levels[i].name);
    }
}

void cpu_describe(char *text, size_t size) {
    char line[512], model[192] = "";
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && !model[0] && fgets(line, sizeof line, file))
        if (sscanf(line, "model name : %191[^\n]", model) != 1) model[0] = 0;
    if (file) fclose(file);
    snprintf(text, size, "%s", model[0] ? model : "CPU");
}

/* Returns the index of the level of this name, long or short, or LEVELS. */
static int level_named(const char *name) {
    int i = 0;
    while (i < LEVELS && strcmp(name, levels[i].name) != 0 &&
           strcmp(name, levels[i].full_name) != 0)
        i++;
    return i;
}

const struct cpu_level *cpu_level_pick(int supported, const char *requested, struct error *error) {
    char names[64], processor[192];
    cpu_describe(processor, sizeof processor);
    if (supported == 0) {
        fail(error, "this processor (%s) lacks instructions that mantissa needs: %s, the level %s",
             processor, levels[0].instructions, levels[0].full_name);
        return NULL;
    }
    if (!requested) return &levels[supported - 1];
    int level = level_named(requested);
    if (level < supported) return &levels[level];
    if (level == LEVELS) {
        cpu_level_names(names, sizeof names);
        fail(error, "MANTISSA_CPU=%.80s is no level: take one of %s, or leave it unset", requested,
             names);
    } else {
        fail(error,
             "MANTISSA_CPU=%s needs %s, and this processor (%s) lacks some of that: take %s%s, "
             "or leave it unset",
             requested, levels[level].instructions, processor, levels[supported - 1].name,
             supported > 1 ? " or lower" : "");
    }
    return NULL;
}

const struct cpu_level *cpu_level_choose(bool *forced, struct error *error) {
    const char *requested = getenv("MANTISSA_CPU");
    if (requested && !requested[0]) requested = NULL;
    if (forced) *forced = requested != NULL;
    return cpu_level_pick(supported_levels(), requested, error);
}
