/* Tests of the engine of several ranks (kernels/comm/mpi.c). Ranks are threads of this process, see
 * test/ranks_world.h. Under ThreadSanitizer:
 *
 *   cc -std=gnu11 -D_GNU_SOURCE -g -O1 -fsanitize=thread -I. -Itest/plain_criterion -o tests \
 *     test/kernels/test_mpi.c test/plain_criterion/runner.c kernels/comm/{cores,mpi,ranks}.c \
 *     kernels/dtype.c data/util/{error,random}.c -lm && ./tests */
#include "kernels/comm/mpi.h"

#include <criterion/criterion.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "kernels/collectives.h"
#include "kernels/comm/cores.h"
#include "test/ranks_world.h"

TestSuite(mpi, .timeout = 120);

static const size_t one_chunk = 0 /* the default: 8 MiB */, many_chunks = 1;

static const struct mpi_arithmetic plain = {dtype_widen, dtype_store};

/* ---- sums and gathers, against a plain reference */

struct sums {
    enum dtype dtype;
    int64_t count;
    uint64_t seed;
    char *expected; /* [count] */
};

static void fill(void *data, const struct sums *sums, int rank) {
    for (int64_t i = 0; i < sums->count; i++) {
        float value = (float)random_uniform(sums->seed, (uint64_t)rank, (uint64_t)i) - 0.5f;
        dtype_store(data, sums->dtype, (size_t)i, &value, 1);
    }
}

static void add_in_order_of_ranks(struct sums *sums, int size) {
    size_t bytes = (size_t)sums->count * dtype_bytes(sums->dtype);
    char *values = malloc(bytes + 1);
    float *total = calloc((size_t)sums->count + 1, sizeof *total), buffer;
    sums->expected = malloc(bytes + 1);
    for (int rank = 0; rank < size; rank++) {
        fill(values, sums, rank);
        for (int64_t i = 0; i < sums->count; i++) {
            float value = *dtype_widen(&buffer, values, sums->dtype, (size_t)i, 1);
            total[i] = rank == 0 ? value : total[i] + value;
        }
    }
    dtype_store(sums->expected, sums->dtype, 0, total, (size_t)sums->count);
    free(values);
    free(total);
}

static void sum_and_gather(const struct ranks *ranks, void *argument) {
    const struct sums *sums = argument;
    const struct collectives *c = mpi_collectives(ranks, &plain);
    size_t element = dtype_bytes(sums->dtype);
    char *data = malloc((size_t)sums->count * element + 1);
    fill(data, sums, ranks->rank);
    collectives_wait(c, collectives_reduce_scatter(c, data, sums->dtype, sums->count));
    struct rank_part own = ranks_part(sums->count, ranks->size, ranks->rank);
    size_t first = (size_t)own.first * element, bytes = (size_t)own.count * element;
    world_requires(memcmp(data + first, sums->expected + first, bytes) == 0, "a part is wrong");
    collectives_wait(c, collectives_all_gather(c, data, element, sums->count));
    bytes = (size_t)sums->count * element;
    world_requires(memcmp(data, sums->expected, bytes) == 0, "what all have is wrong");
    free(data);
    c->functions->close(c);
}

static void check_sums(int size, enum dtype dtype, int64_t count, size_t staging_bytes,
                       bool delays) {
    struct sums sums = {dtype, count, (uint64_t)count, NULL};
    add_in_order_of_ranks(&sums, size);
    world_run(size, staging_bytes, delays, sum_and_gather, &sums);
    free(sums.expected);
}

/* Counts with no whole chunk for any rank, with one for some, and with a remainder. */
Test(mpi, parts_of_any_size) {
    static const int64_t counts[] = {0, 1, 127, 128, 129, 255, 256, 383, 640, 641, 10007};
    for (int size = 1; size <= 5; size++)
        for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
                check_sums(size, (enum dtype)dtype, counts[i], one_chunk, true);
}

/* The result has the same bits however many chunks a part is cut into, and however long they
 * take. */
Test(mpi, chunks_and_timing_do_not_change_bits) {
    static const size_t staging[] = {many_chunks, 30011, 1 << 20, one_chunk};
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        for (size_t i = 0; i < sizeof staging / sizeof *staging; i++) {
            check_sums(3, (enum dtype)dtype, 100003, staging[i], false);
            check_sums(4, (enum dtype)dtype, 100003, staging[i], true);
        }
}

Test(mpi, more_than_a_chunk) {
    for (int size = 2; size <= 5; size++) check_sums(size, DTYPE_F32, 1000003, 1 << 16, false);
    check_sums(2, DTYPE_F32, 5000011, one_chunk, false);
    check_sums(3, DTYPE_BF16, 5000011, one_chunk, false);
}

/* ---- host traffic */

static void talk(const struct ranks *ranks, void *argument) {
    (void)argument;
    enum { BYTES = 100003 };
    char *text = calloc(1, BYTES);
    if (ranks->rank == 0)
        for (int i = 0; i < BYTES; i++) text[i] = (char)(i * 7);
    ranks_broadcast(ranks, text, 0);
    ranks_broadcast(ranks, text, BYTES);
    for (int i = 0; i < BYTES; i++)
        world_requires(text[i] == (char)(i * 7), "a broadcast is wrong");
    free(text);

    int64_t own[3] = {ranks->rank, 10 * ranks->rank, -1}, all[WORLD_RANKS_MAX][3];
    ranks_gather(ranks, all, own, sizeof own);
    for (int rank = 0; rank < ranks->size; rank++)
        world_requires(all[rank][0] == rank && all[rank][1] == 10 * rank && all[rank][2] == -1,
                       "a gather is wrong");
    /* The rank's own bytes may be in their final place already. */
    memset(all, 0, sizeof all);
    memcpy(all[ranks->rank], own, sizeof own);
    ranks_gather(ranks, all, all[ranks->rank], sizeof own);
    world_requires(all[ranks->size - 1][1] == 10 * (ranks->size - 1), "a gather in place is wrong");
    world_requires(ranks_max(ranks, ranks->rank - 5) == ranks->size - 6, "the maximum is wrong");
}

Test(mpi, broadcast_gather_maximum) {
    for (int size = 1; size <= WORLD_RANKS_MAX; size++)
        world_run(size, one_chunk, true, talk, NULL);
}

static void gather_once(const struct ranks *ranks, void *argument) {
    (void)argument;
    ranks_barrier(ranks);
}

/* Each round sends a range of blocks to one rank, in two messages if the range goes past the last
 * block. The ranges of a round that do so are those of as many ranks as the range has blocks, less
 * the one that ends with the last. */
Test(mpi, a_gather_sends_few_messages) {
    for (int size = 1; size <= WORLD_RANKS_MAX; size++) {
        int expected = 0;
        for (int have = 1; have < size; have *= 2)
            expected += size + (have < size - have ? have : size - have) - 1;
        world_run(size, one_chunk, true, gather_once, NULL);
        cr_expect_eq(world.sent, expected, "%d ranks: %d messages, not %d", size, world.sent,
                     expected);
    }
}

/* The k-th message from one rank to another has 1 + 1000 k + from + 10 to bytes; the last one
 * takes the engine more than one piece. */
enum { MESSAGES = 3, LARGE = (16 << 20) + 5 };

static size_t message_bytes(int k, int from, int to) {
    return k == MESSAGES - 1 && from == 0 && to == 1 ? LARGE
                                                     : (size_t)(1 + 1000 * k + from + 10 * to);
}

static void swap(const struct ranks *ranks, void *argument) {
    (void)argument;
    struct rank_message out[MESSAGES * WORLD_RANKS_MAX], in[MESSAGES * WORLD_RANKS_MAX];
    int count = 0, own = ranks->rank;
    for (int k = 0; k < MESSAGES; k++)
        for (int rank = 0; rank < ranks->size; rank++) {
            if (rank == own) continue;
            size_t outgoing = message_bytes(k, own, rank), coming = message_bytes(k, rank, own);
            out[count] = (struct rank_message){rank, malloc(outgoing), outgoing};
            memset(out[count].data, 50 * k + own, outgoing);
            in[count++] = (struct rank_message){rank, malloc(coming), coming};
        }
    ranks_swap(ranks, out, count, in, count);
    for (int i = 0; i < count; i++) {
        const unsigned char *data = in[i].data;
        int expected = 50 * (i / (ranks->size - 1)) + in[i].rank;
        for (size_t j = 0; j < in[i].bytes; j++)
            world_requires(data[j] == expected, "a message is wrong");
        free(in[i].data);
        free(out[i].data);
    }
}

Test(mpi, swapped_messages) {
    for (int size = 2; size <= 4; size++) world_run(size, one_chunk, true, swap, NULL);
}

static void share_cores(const struct ranks *ranks, void *argument) {
    const cpu_set_t *all = argument;
    int cores = CPU_COUNT(all), expected = cores / ranks->size;
    world_requires(ranks_cores(ranks) == (expected ? expected : 1), "cores that none is bound to");
    /* One rank is bound to a core, which it still shares with the others. */
    if (ranks->rank == 0) {
        cpu_set_t first;
        CPU_ZERO(&first);
        for (size_t core = 0; CPU_COUNT(&first) == 0; core++)
            if (CPU_ISSET(core, all)) CPU_SET(core, &first);
        sched_setaffinity(0, sizeof first, &first);
    }
    int own = ranks_cores(ranks);
    if (ranks->rank == 0) expected = 1;
    else if (ranks->size > 1)
        expected = (int)((cores - 1) / (double)(ranks->size - 1) + 1.0 / ranks->size + 1e-6);
    world_requires(own == (expected ? expected : 1), "cores of which one is bound to");
}

Test(mpi, cores_are_shared) {
    cpu_set_t all;
    cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
    for (int size = 1; size <= 3; size++) world_run(size, one_chunk, false, share_cores, &all);
}

static atomic_int arrived;

static void meet(const struct ranks *ranks, void *argument) {
    (void)argument;
    for (int round = 1; round <= 20; round++) {
        usleep((useconds_t)(random_bits(1, (uint64_t)ranks->rank, (uint64_t)round) % 500));
        atomic_fetch_add(&arrived, 1);
        ranks_barrier(ranks);
        world_requires(atomic_load(&arrived) >= round * ranks->size, "a barrier was passed early");
        ranks_barrier(ranks);
    }
}

Test(mpi, barrier) {
    world_run(4, one_chunk, true, meet, NULL);
}

/* Ranks whose bit is set fail. */
static void agree(const struct ranks *ranks, void *argument) {
    const unsigned *failing = argument;
    struct error own = {""};
    int status = *failing >> ranks->rank & 1 ? fail(&own, "nothing works on %d", ranks->rank) : 0;
    char expected[64];
    int first = *failing & 1 ? 0 : *failing & 2 ? 1 : 2;
    snprintf(expected, sizeof expected,
             first ? "rank %d: nothing works on %d" : "nothing works on 0", first, first);
    int agreed = ranks_agree(ranks, status, &own);
    world_requires(agreed == (*failing ? -1 : 0), "an agreement is wrong");
    world_requires(!*failing || strcmp(own.text, expected) == 0, "its message is wrong");
}

Test(mpi, agreement_names_the_first) {
    for (unsigned failing = 0; failing < 8; failing++)
        world_run(3, one_chunk, true, agree, &failing);
}

/* ---- collectives and host traffic, with many jobs in flight */

enum { ARRAYS = 400, ELEMENTS = 1337 };

static float value_of(int array, int64_t i, int rank) {
    return (float)(array + i % 100 + 1000 * rank); /* sums are exact */
}

static void check_array(const struct ranks *ranks, const float *data, int array) {
    for (int64_t i = 0; i < ELEMENTS; i++) {
        float sum = 0;
        for (int rank = 0; rank < ranks->size; rank++) sum += value_of(array, i, rank);
        world_requires(data[i] == sum, "a sum among many is wrong");
    }
}

static void mix(const struct ranks *ranks, void *argument) {
    (void)argument;
    const struct collectives *c = mpi_collectives(ranks, &plain);
    float *data = malloc(sizeof(float) * ARRAYS * ELEMENTS);
    uint64_t before = 0, half = 0;
    for (int array = 0; array < ARRAYS; array++) {
        float *own = data + (size_t)array * ELEMENTS;
        for (int64_t i = 0; i < ELEMENTS; i++) own[i] = value_of(array, i, ranks->rank);
        collectives_reduce_scatter(c, own, DTYPE_F32, ELEMENTS);
        uint64_t ticket = collectives_all_gather(c, own, sizeof *own, ELEMENTS);
        world_requires(ticket > before, "tickets do not grow");
        before = ticket;
        if (array == ARRAYS / 2) half = ticket;
        if (array % 50 == 49)
            world_requires(ranks_max(ranks, array * ranks->rank) == array * (ranks->size - 1),
                           "the maximum among sums is wrong");
    }
    collectives_wait(c, half);
    for (int array = 0; array <= ARRAYS / 2; array++)
        check_array(ranks, data + (size_t)array * ELEMENTS, array);
    collectives_wait(c, before);
    for (int array = 0; array < ARRAYS; array++)
        check_array(ranks, data + (size_t)array * ELEMENTS, array);
    free(data);
    c->functions->close(c);
}

Test(mpi, many_jobs_and_traffic_of_the_host_between_them) {
    for (int size = 1; size <= 4; size++) {
        world_run(size, many_chunks, false, mix, NULL);
        world_run(size, one_chunk, true, mix, NULL);
    }
}

/* ---- shutdown */

/* Rank 2 never calls the sum. Rank 1 aborts, rank 0 waits for both. */
static void give_up(const struct ranks *ranks, void *argument) {
    (void)argument;
    static float data[3][1000];
    const struct collectives *c = mpi_collectives(ranks, &plain);
    if (ranks->rank == 2) sleep(30);
    uint64_t ticket = collectives_reduce_scatter(c, data[ranks->rank], DTYPE_F32, 1000);
    usleep(10000);
    if (ranks->rank == 1) ranks_abort(ranks, 7);
    collectives_wait(c, ticket);
}

static void give_up_idle(const struct ranks *ranks, void *argument) {
    (void)argument;
    usleep(10000);
    if (ranks->rank == 1) ranks_abort(ranks, 7);
    ranks_barrier(ranks);
}

static void expect_end(void (*body)(const struct ranks *ranks, void *argument)) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        world_run(3, one_chunk, false, body, NULL);
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 7, "status %x", (unsigned)status);
}

Test(mpi, abort_ends_all_with_its_status) {
    expect_end(give_up);
    expect_end(give_up_idle);
}

static int refuse_to_open(struct mpi_world *seen, char *reason, size_t size) {
    (void)seen;
    snprintf(reason, size, "not today");
    return -1;
}

Test(mpi, refusal_of_the_library_is_a_message) {
    struct ranks ranks;
    struct error failure;
    struct mpi_module module = world_module;
    module.open = refuse_to_open;
    cr_assert_eq(mpi_open(&ranks, &module, 0, &failure), -1);
    cr_assert_not_null(strstr(failure.text, "not today"), "%s", failure.text);
}
