#include "data/util/random.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

Test(random, is_a_pure_function_of_its_three_arguments) {
    uint64_t first = random_bits(1, 2, 3);
    for (uint64_t i = 0; i < 100; i++) random_bits(i, i, i);
    cr_assert_eq(random_bits(1, 2, 3), first);
    cr_assert_neq(random_bits(0, 2, 3), first);
    cr_assert_neq(random_bits(1, 0, 3), first);
    cr_assert_neq(random_bits(1, 2, 0), first);
}

/* Checkpoints and corpora depend on these values, so they must never change. */
Test(random, keeps_its_values) {
    cr_expect_eq(random_bits(0, 0, 0), UINT64_C(0x85c61a300ec70fa1), "%#llx",
                 (unsigned long long)random_bits(0, 0, 0));
    cr_expect_eq(random_bits(1, 2, 3), UINT64_C(0x6e614ef2ede4f168), "%#llx",
                 (unsigned long long)random_bits(1, 2, 3));
    cr_expect_eq(random_permute(5, 7, 11, 1000), 400, "%llu",
                 (unsigned long long)random_permute(5, 7, 11, 1000));
}

/* Flipping one bit of any argument should flip each of the 64 bits half of the time. */
Test(random, every_argument_bit_changes_half_of_the_result) {
    enum { TRIALS = 200 };
    for (int argument = 0; argument < 3; argument++)
        for (int bit = 0; bit < 64; bit += 3) {
            long flipped = 0;
            for (uint64_t i = 0; i < TRIALS; i++) {
                uint64_t of[3] = {i * 77, i * 13 + 1, i};
                uint64_t before = random_bits(of[0], of[1], of[2]);
                of[argument] ^= (uint64_t)1 << bit;
                flipped += __builtin_popcountll(before ^ random_bits(of[0], of[1], of[2]));
            }
            /* Binomial, 12800 coins: a standard deviation of 57, here six of them. */
            cr_assert_float_eq((double)flipped, 32.0 * TRIALS, 340, "argument %d, bit %d: %ld",
                               argument, bit, flipped);
        }
}

Test(random, uniform_fills_the_unit_interval_evenly) {
    enum { DRAWS = 100000, CELLS = 100 };
    int cells[CELLS] = {0};
    double sum = 0, lag = 0, previous = 0.5;
    for (uint64_t i = 0; i < DRAWS; i++) {
        double u = random_uniform(9, 1, i);
        cr_assert(u >= 0 && u < 1);
        cells[(int)(u * CELLS)]++;
        sum += u;
        lag += (u - 0.5) * (previous - 0.5);
        previous = u;
    }
    double chi_squared = 0;
    for (int i = 0; i < CELLS; i++)
        chi_squared +=
            (cells[i] - DRAWS / CELLS) * (double)(cells[i] - DRAWS / CELLS) / (DRAWS / CELLS);
    /* 99 degrees of freedom: mean 99, standard deviation 14; five of them either way. */
    cr_assert_float_eq(chi_squared, 99, 70, "%g", chi_squared);
    cr_assert_float_eq(sum / DRAWS, 0.5, 5 * sqrt(1.0 / 12 / DRAWS));
    cr_assert_float_eq(lag / DRAWS, 0, 5.0 / 12 / sqrt(DRAWS));
}

Test(random, normal_has_the_moments_of_the_normal_distribution) {
    enum { DRAWS = 100000 };
    double sums[5] = {0};
    int beyond_two = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        double x = random_normal(4, 2, i), power = 1;
        cr_assert(isfinite(x));
        for (int k = 0; k < 5; k++, power *= x) sums[k] += power / DRAWS;
        beyond_two += fabs(x) > 2;
    }
    /* Standard errors 1, sqrt(2), sqrt(15), sqrt(96) over sqrt(DRAWS); five of each. */
    cr_assert_float_eq(sums[1], 0, 5 * 0.0032);
    cr_assert_float_eq(sums[2], 1, 5 * 0.0045);
    cr_assert_float_eq(sums[3], 0, 5 * 0.0123);
    cr_assert_float_eq(sums[4], 3, 5 * 0.031);
    cr_assert_float_eq(beyond_two / (double)DRAWS, 0.0455, 5 * 0.00066);
}

/* Compares with long double arithmetic. */
Test(random, normal_is_within_its_stated_error) {
    const uint64_t seeds[] = {1, 7, UINT64_MAX};
    long double worst = 0;
    for (int s = 0; s < 3; s++)
        for (uint64_t i = 0; i < 40000; i += 2) {
            uint64_t first = random_bits(seeds[s], 5, i), second = random_bits(seeds[s], 5, i + 1);
            long double u = 1 - (long double)(first >> 12) * 0x1p-52L;
            long double radius = sqrtl(-2 * logl(u));
            long double angle = 6.283185307179586476925L * (long double)(second >> 10) * 0x1p-54L;
            long double even = fabsl(random_normal(seeds[s], 5, i) - radius * cosl(angle));
            long double odd = fabsl(random_normal(seeds[s], 5, i + 1) - radius * sinl(angle));
            worst = fmaxl(worst, fmaxl(even, odd));
        }
    cr_expect_lt((double)worst, 3e-14, "%Lg", worst);
}

/* Values of a vectorized call equal those drawn one by one, from any counter. */
Test(random, normals_are_the_same_many_at_once) {
    enum { COUNT = 700 };
    float values[COUNT + 1];
    for (uint64_t first = 0; first < 5; first++)
        for (int64_t count = 0; count <= COUNT; count += 1 + count / 3) {
            values[count] = 77;
            random_normals(values, 0.02, 3, 9, first + (first == 4) * (UINT64_C(1) << 40), count);
            for (int64_t i = 0; i < count; i++) {
                uint64_t counter = first + (first == 4) * (UINT64_C(1) << 40) + (uint64_t)i;
                cr_assert_eq(values[i], (float)(0.02 * random_normal(3, 9, counter)));
            }
            cr_assert_eq(values[count], 77);
        }
}

/* Every machine has these bits, since they determine the initial weights. */
Test(random, normal_has_known_bits) {
    const struct {
        uint64_t seed, stream, counter, bits;
    } known[] = {{1u, 1, 0, 0xbfffe81268dc8bba},
                 {1u, 1, 1, 0xbff4f2d781ed809c},
                 {1337u, 12, 123456789, 0xbfec8590262312cb},
                 {1337u, 12, 123456790, 0xbfa3a14f4d2ee372},
                 {0u, 0, 4, 0x3f8ba3c56c4ce57c},
                 {9007199254740991u, 148, 38597375, 0xbf9a921d78e678d8}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        double value = random_normal(known[i].seed, known[i].stream, known[i].counter);
        uint64_t bits;
        memcpy(&bits, &value, sizeof bits);
        cr_expect_eq(bits, known[i].bits, "%zu: %a", i, value);
    }
}

static void check_bijection(uint64_t seed, uint64_t stream, uint64_t count) {
    char *seen = calloc(count, 1);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t place = random_permute(seed, stream, i, count);
        cr_assert_lt(place, count);
        cr_assert_not(seen[place], "count %d: %d appears twice", (int)count, (int)place);
        seen[place] = 1;
    }
    free(seen);
}

Test(random, permute_is_a_bijection_of_every_size) {
    for (uint64_t count = 1; count <= 300; count++) check_bijection(count * 31, count % 5, count);
    const uint64_t counts[] = {1023, 1024, 1025, 4097, 65535, 65536, 65537, 100003};
    for (int i = 0; i < 8; i++) check_bijection(3, 9, counts[i]);
}

Test(random, permute_handles_counts_beyond_32_bits) {
    const uint64_t counts[] = {UINT64_C(5000000000), UINT64_C(1) << 62, UINT64_MAX};
    for (int i = 0; i < 3; i++)
        for (uint64_t j = 0; j < 100; j++) {
            uint64_t place = random_permute(1, 0, counts[i] - 1 - j, counts[i]);
            cr_assert_lt(place, counts[i]);
        }
}

Test(random, permute_gives_another_order_for_another_seed_or_stream) {
    enum { COUNT = 1000 };
    int same_seed = 0, same_stream = 0, unmoved = 0;
    for (uint64_t i = 0; i < COUNT; i++) {
        uint64_t place = random_permute(1, 0, i, COUNT);
        same_seed += place == random_permute(2, 0, i, COUNT);
        same_stream += place == random_permute(1, 1, i, COUNT);
        unmoved += place == i;
    }
    /* One coincidence is expected of two random orders; Poisson makes ten all but impossible. */
    cr_assert_lt(same_seed, 10);
    cr_assert_lt(same_stream, 10);
    cr_assert_lt(unmoved, 10);
}

/* Four Feistel rounds are measurably uneven below a hundred or so elements (worst near ten: a place
 * is up to a quarter too frequent), which is harmless for an order of samples; not above. */
Test(random, permute_sends_each_index_everywhere) {
    enum { COUNT = 250, TRIALS = 50000 };
    for (uint64_t index = 0; index < COUNT; index += 83) {
        int cells[COUNT] = {0};
        for (uint64_t stream = 0; stream < TRIALS; stream++)
            cells[random_permute(8, stream, index, COUNT)]++;
        for (int i = 0; i < COUNT; i++)
            cr_assert_float_eq(cells[i], TRIALS / COUNT, 6 * sqrt(TRIALS / (double)COUNT),
                               "%d to %d: %d", (int)index, i, cells[i]);
    }
}
