/* Models of well-known sizes: shapes, and every number of their tables. */
#include "model/config/config_check.h"
#include "model/config/config_keys.h"
#include "model/io/config_file.h"
#include "test/model/plan/table_fixture.h"

#include "model/plan/memory_text.h"

TestSuite(memory_sizes, .fini = close_rig);

static char *print(double gib) {
    return print_with(memory_print_sizes, gib);
}

static struct config size_of(int size, enum memory_variant variant) {
    struct config config;
    memory_size_config(&config, memory_sizes[size], variant, &rig.config);
    return config;
}

static size_t total_of_size(int size, enum memory_variant variant) {
    struct config config = size_of(size, variant);
    return total_of(&config);
}

Test(memory_sizes, are_what_their_names_say) {
    static const double millions[MEMORY_SIZES] = {124.4,  354.8,  774.0,   1557.6, 1235.8,
                                                  6738.4, 8030.3, 13015.9, 68976.7};
    for (int i = 0; i < MEMORY_SIZES; i++) {
        struct error message = {0};
        rig_config(&rig.config, CONFIG_PRECISION_FP16);
        rig.config.data.seq_len = i % 2 ? 4096 : 512;
        struct config config = size_of(i, MEMORY_BF16);
        double count = (double)config_parameter_count(&config) / 1e6;
        cr_expect_lt(fabs(count / millions[i] - 1), i < 4 ? 0.01 : 1e-4, "%s: %g",
                     config_preset_name(memory_sizes[i]), count);
        cr_expect_eq(config_override(&config, "size", NULL, 0, &message), 0, "%s", message.text);
        cr_expect_eq(config.data.seq_len, i % 2 ? 4096 : 1024);
        cr_expect_eq(config.model.n_positions, config.data.seq_len);
        cr_expect_eq(config.train.micro_batch_size, 1);
    }
}

Test(memory_sizes, variants) {
    rig_config(&rig.config, CONFIG_PRECISION_FP16);
    for (int i = 0; i < MEMORY_VARIANTS; i++) {
        struct config config = size_of(0, (enum memory_variant)i);
        bool lower = i == MEMORY_LOWER || i == MEMORY_LAYER;
        cr_expect_eq(config.precision, i == MEMORY_FP32   ? CONFIG_PRECISION_FP32
                                       : i == MEMORY_FP16 ? CONFIG_PRECISION_FP16
                                                          : CONFIG_PRECISION_BF16);
        cr_expect_eq(config.gradients.dtype, lower ? CONFIG_DTYPE_LOWER : CONFIG_DTYPE_FLOAT32);
        cr_expect_eq(config.optimizer.moments,
                     lower ? CONFIG_MOMENTS_BFLOAT16 : CONFIG_MOMENTS_FLOAT32);
        cr_expect_eq(config.train.recompute,
                     i == MEMORY_LAYER ? CONFIG_RECOMPUTE_LAYER : CONFIG_RECOMPUTE_NONE);
    }
}

/* Planning allocates no memory for the model, even the largest. */
Test(memory_sizes, the_largest_takes_no_memory) {
    int64_t batch;
    open_run(CONFIG_PRECISION_BF16);
    struct config config = size_of(MEMORY_SIZES - 1, MEMORY_BF16);
    size_t before = backend_peak_bytes(&rig.be), total = total_of(&config);
    cr_expect_gt(total, (size_t)900 << 30);
    cr_assert_eq(
        memory_largest_batch(&batch, &config, &rig.be, total + ((size_t)64 << 30), &rig.error), 0);
    cr_expect_gt(batch, 1);
    cr_expect_lt(backend_peak_bytes(&rig.be), before + ((size_t)256 << 20));
}

/* Well-known figures: 16 bytes per parameter in fp32 and bf16, 18 in fp16, 10 for "lower". */
Test(memory_sizes, bytes_per_parameter) {
    static const struct {
        const char *part, *bytes[4];
    } rows[] = {
        {"weights", {"4.0", "4.0", "4.0", "4.0"}},   {"16-bit copy", {"0.0", "0.0", "2.0", "0.0"}},
        {"gradients", {"4.0", "4.0", "4.0", "2.0"}}, {"moments", {"8.0", "8.0", "8.0", "4.0"}},
        {"all", {"16.0", "16.0", "18.0", "10.0"}},
    };
    open_run(CONFIG_PRECISION_FP32);
    char *text = print(80);
    expect_match(text, "^\nBytes per parameter of a large model\n\n +fp32 +bf16 +fp16 +lower\n");
    for (size_t i = 0; i < COUNT(rows); i++)
        for (int column = 0; column < 4; column++)
            cr_expect_str_eq(cell(row(text, rows[i].part), column), rows[i].bytes[column], "%s",
                             rows[i].part);
}

static const enum memory_variant compared[] = {MEMORY_FP32, MEMORY_BF16, MEMORY_LOWER,
                                               MEMORY_LAYER};

/* Columns: parameters with their unit, fp32, then each other variant with its saving. */
Test(memory_sizes, totals_and_savings) {
    open_run(CONFIG_PRECISION_FP32);
    rig.config.train.recompute = CONFIG_RECOMPUTE_LAYER; /* ignored: sizes have their own options */
    rig.config.gradients.dtype = CONFIG_DTYPE_LOWER;
    char *text = print(80);
    cr_expect_not_null(strstr(text, "one sequence of 1024\ntokens"));
    const char *table = strstr(text, "\nModels from 124M to 70B");
    cr_assert_not_null(table);
    for (int size = 0; size < MEMORY_SIZES; size++) {
        const char *line = row(table, config_preset_name(memory_sizes[size]));
        double fp32 = (double)total_of_size(size, MEMORY_FP32);
        cr_expect_str_eq(cell(line, 2), gib((size_t)fp32));
        for (int i = 1; i < 4; i++) {
            size_t total = total_of_size(size, compared[i]);
            cr_expect_str_eq(cell(line, 1 + 2 * i), gib(total));
            cr_expect_str_eq(cell(line, 2 + 2 * i), figure(100 * (1 - (double)total / fp32), 1));
        }
    }
}

Test(memory_sizes, largest_micro_batches) {
    const double memory = 300;
    open_run(CONFIG_PRECISION_FP32);
    char *text = print(memory);
    const char *batches = strstr(text, "\nTheir largest micro-batch in 300.00 GiB");
    cr_assert_not_null(batches);
    int numbers = 0, dashes = 0;
    for (int size = 0; size < MEMORY_SIZES; size++)
        for (int column = 0; column < 4; column++) {
            struct config config = size_of(size, compared[column]);
            const char *given = cell(row(batches, config_preset_name(memory_sizes[size])), column);
            cr_expect_str_eq(given, largest(&config, memory), "%s, column %d",
                             config_preset_name(memory_sizes[size]), column);
            numbers += given[0] != '-';
            dashes += given[0] == '-';
        }
    cr_expect_gt(numbers, 20);
    cr_expect_gt(dashes, 3);
}

/* In every size mixed precision uses less memory than fp32, and each further variant still less,
 * even on a CPU without bf16 matmuls that widens their operands. */
Test(memory_sizes, mixed_precision_is_below_fp32) {
    static const int64_t lengths[] = {32, 2048};
    for (size_t i = 0; i < COUNT(lengths); i++)
        for (int size = 0; size < MEMORY_SIZES; size++) {
            open_run(CONFIG_PRECISION_FP32);
            rig.config.data.seq_len = lengths[i];
            for (int v = 1; v < 4; v++) {
                struct config less = size_of(size, compared[v]),
                              more = size_of(size, compared[v - 1]);
                cr_expect_lt(total_of(&less), total_of(&more), "%s, %d",
                             config_preset_name(memory_sizes[size]), v);
                for (size_t gibs = 8; gibs <= 2048; gibs *= 16) {
                    int64_t larger, smaller;
                    size_t memory = gibs << 30;
                    cr_assert_eq(memory_largest_batch(&larger, &less, &rig.be, memory, &rig.error),
                                 0);
                    cr_assert_eq(memory_largest_batch(&smaller, &more, &rig.be, memory, &rig.error),
                                 0);
                    cr_expect(smaller > 0 ? larger > smaller : larger >= smaller, "%s, %d in %zu",
                              config_preset_name(memory_sizes[size]), v, gibs);
                }
            }
        }
}

/* With 16-bit gradients and moments 7 B parameters fit one GPU of 80 GiB. */
Test(memory_sizes, a_7b_fits_80_gib) {
    open_run(CONFIG_PRECISION_FP32);
    rig.config.data.seq_len = 2048;
    cr_assert_eq(memory_sizes[5], CONFIG_PRESET_LLAMA_2_7B);
    cr_expect_lt(total_of_size(5, MEMORY_LAYER), (size_t)80 << 30);
    cr_expect_gt(total_of_size(5, MEMORY_BF16), (size_t)80 << 30);
}

/* A device without bf16 has dashes in that column. */
Test(memory_sizes, without_bf16) {
    open_run(CONFIG_PRECISION_FP16);
    rig.be.device.computes[DTYPE_BF16] = false;
    char *text = print(30);
    expect_match(text, "\nall +16.0 +- +18.0 +-\n");
    expect_match(text, "\ngpt2 +124 M +[0-9.]+ +- +- +- +- +- +-\n");
    expect_match(text, "\ngpt2 +[0-9]+ +- +- +-\n");
}
