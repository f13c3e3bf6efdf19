/* File of the algorithms chosen by timing: two algorithms add in different orders, so a resumed run
 * must reuse its algorithms to give the same bits.
 *
 *     mantissa algorithms, format 3, cublasLt 130100, NVIDIA H200
 *     a=bf16 b=bf16 out=bf16 m=1024 n=768 k=3072 transpose=00 accumulate=0 tf32=0 fast=0
 *         scales=none,none epilogue=bias algorithm=(128 digits, on the same line)
 *
 * If all digits are zero, the epilogue is faster as a pass of its own. */
#include "kernels/cuda/plain_c.h"
#include "kernels/cuda/products.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT = 3, LINE_BYTES = 512 };
enum { ALGORITHM_WORDS = sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t) };

static const char MAGIC[] = "mantissa algorithms, format ";
const char *const epilogue_names[EPILOGUES] = {"none", "bias", "gelu", "gelu_bias", "dgelu"};
const char *const product_scale_names[PRODUCT_SCALES] = {"none",  "tensor", "vec16",
                                                         "vec32", "vec128", "blk128"};

static struct product_choice *find_choice(const struct cuda_products *products,
                                          const struct product_key *key) {
    for (int i = 0; i < products->choice_count; i++)
        if (!memcmp(&products->choices[i].key, key, sizeof *key)) return &products->choices[i];
    return NULL;
}

const cublasLtMatmulAlgo_t *product_chosen(const struct cuda_products *products,
                                           const struct product_key *key) {
    const struct product_choice *choice = find_choice(products, key);
    return choice ? &choice->algorithm : NULL;
}

static void choose(struct cuda_products *products, const struct product_choice *chosen) {
    struct product_choice *entry = find_choice(products, &chosen->key);
    if (!entry) {
        if (products->choice_count == products->choice_capacity) {
            int capacity = products->choice_capacity ? 2 * products->choice_capacity : 32;
            void *grown = realloc(products->choices, (size_t)capacity * sizeof *chosen);
            if (!grown) return; /* not recorded: timed again the next time */
            products->choices = (struct product_choice *)grown;
            products->choice_capacity = capacity;
        }
        entry = &products->choices[products->choice_count++];
    }
    *entry = *chosen;
}

void product_choose(struct cuda_products *products, const struct cuda_product *product) {
    struct product_choice chosen = {product->key, product->algorithm};
    choose(products, &chosen);
}

/* ---- the file */

static void write_header(const struct cuda_products *products, char *line) {
    snprintf(line, LINE_BYTES, "%s%d, cublasLt %zu, %s\n", MAGIC, FORMAT, products->lt.GetVersion(),
             products->name);
}

static void write_choice(FILE *file, const struct product_choice *choice) {
    const struct product_key *key = &choice->key;
    fprintf(file,
            "a=%s b=%s out=%s m=%" PRId64 " n=%" PRId64 " k=%" PRId64
            " transpose=%d%d accumulate=%d tf32=%d fast=%d scales=%s,%s epilogue=%s algorithm=",
            dtype_name((enum dtype)key->a_in), dtype_name((enum dtype)key->b_in),
            dtype_name((enum dtype)key->out), key->m, key->n, key->k, key->transpose_a,
            key->transpose_b, key->accumulate, key->tf32, key->fast,
            product_scale_names[key->a_scale], product_scale_names[key->b_scale],
            epilogue_names[key->epilogue]);
    for (int i = 0; i < ALGORITHM_WORDS; i++)
        fprintf(file, "%016" PRIx64, choice->algorithm.data[i]);
    fputc('\n', file);
}

static void write_lines(FILE *file, const void *from) {
    const struct cuda_products *products = (const struct cuda_products *)from;
    char header[LINE_BYTES];
    write_header(products, header);
    fputs(header, file);
    for (int i = 0; i < products->choice_count; i++) write_choice(file, &products->choices[i]);
}

int cuda_products_write(const struct cuda_products *products, const char *path,
                        struct error *error) {
    return choices_write(path, write_lines, products, error);
}

/* Returns the index of name among count names, or -1. */
static int index_of(const char *name, const char *const *names, int count) {
    for (int i = 0; i < count; i++)
        if (!strcmp(names[i], name)) return i;
    return -1;
}

static bool read_algorithm(const char *digits, cublasLtMatmulAlgo_t *algorithm) {
    if (strspn(digits, "0123456789abcdef") != 16 * ALGORITHM_WORDS) return false;
    for (int i = 0; i < ALGORITHM_WORDS; i++) {
        char word[17] = {0};
        memcpy(word, digits + 16 * i, 16);
        algorithm->data[i] = strtoull(word, NULL, 16);
    }
    return !strcmp(digits + 16 * ALGORITHM_WORDS, "\n");
}

/* Returns the dtype of this name, 8-bit dtypes included, or -1. */
static int16_t operand_dtype(const char *name) {
    for (int dtype = 0; dtype < DTYPE_ALL_COUNT; dtype++)
        if (!strcmp(name, dtype_name((enum dtype)dtype))) return (int16_t)dtype;
    return -1;
}

static bool are_flags(const int *numbers, int count) {
    for (int i = 0; i < count; i++)
        if ((unsigned)numbers[i] > 1) return false;
    return true;
}

static bool read_choice(const char *line, struct product_choice *choice) {
    enum { TRANSPOSE_A, TRANSPOSE_B, ACCUMULATE, TF32, FAST, FLAGS };
    char a_in[8], b_in[8], out[8], a_scale[8], b_scale[8], epilogue[16];
    int is[FLAGS], at = -1;
    struct product_key *key = &choice->key;
    int fields =
        sscanf(line,
               "a=%7s b=%7s out=%7s m=%" SCNd64 " n=%" SCNd64 " k=%" SCNd64
               " transpose=%1d%1d accumulate=%d tf32=%d fast=%d scales=%7[^,],%7s "
               "epilogue=%15s algorithm=%n",
               a_in, b_in, out, &key->m, &key->n, &key->k, &is[TRANSPOSE_A], &is[TRANSPOSE_B],
               &is[ACCUMULATE], &is[TF32], &is[FAST], a_scale, b_scale, epilogue, &at);
    if (fields != 14 || at < 0 || !read_algorithm(line + at, &choice->algorithm)) return false;
    key->a_in = operand_dtype(a_in);
    key->b_in = operand_dtype(b_in);
    key->out = (int16_t)dtype_named(out);
    key->epilogue = index_of(epilogue, epilogue_names, EPILOGUES);
    key->transpose_a = (int16_t)is[TRANSPOSE_A];
    key->transpose_b = (int16_t)is[TRANSPOSE_B];
    key->accumulate = (int16_t)is[ACCUMULATE];
    key->tf32 = (int16_t)is[TF32];
    key->fast = (int16_t)is[FAST];
    key->a_scale = (int16_t)index_of(a_scale, product_scale_names, PRODUCT_SCALES);
    key->b_scale = (int16_t)index_of(b_scale, product_scale_names, PRODUCT_SCALES);
    return are_flags(is, FLAGS) && key->a_in >= 0 && key->b_in >= 0 && key->out >= 0 &&
           key->a_scale >= 0 && key->b_scale >= 0 && key->epilogue >= 0;
}

/* A file of another GPU, library or format is no error: all algorithms are timed again. */
static int read_lines(FILE *file, void *into) {
    struct cuda_products *products = (struct cuda_products *)into;
    char line[LINE_BYTES], header[LINE_BYTES];
    struct product_choice choice;
    if (!fgets(line, sizeof line, file) || strncmp(line, MAGIC, strlen(MAGIC))) return 1;
    write_header(products, header);
    if (strcmp(line, header)) return 0;
    for (int number = 2; fgets(line, sizeof line, file); number++) {
        if (!read_choice(line, &choice)) return number;
        choose(products, &choice);
    }
    return 0;
}

int cuda_products_read(struct cuda_products *products, const char *path, struct error *error) {
    return choices_read(path, read_lines, products, error);
}
