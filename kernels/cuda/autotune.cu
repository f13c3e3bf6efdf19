/* Files of the algorithms chosen by timing. Two algorithms add in different orders, so a resumed
 * run must reuse its algorithms to give the same bits: they are written to the run's directory. A
 * store in the user's cache, one file for each kind of GPU and version of the library, saves later
 * runs the trials. It never changes what the run's file holds.
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

static struct product_choice *find_choice(const struct product_choices *choices,
                                          const struct product_key *key) {
    for (int i = 0; i < choices->count; i++)
        if (!memcmp(&choices->items[i].key, key, sizeof *key)) return &choices->items[i];
    return NULL;
}

static void choose(struct product_choices *choices, const struct product_choice *chosen) {
    struct product_choice *entry = find_choice(choices, &chosen->key);
    if (!entry) {
        if (choices->count == choices->capacity) {
            int capacity = choices->capacity ? 2 * choices->capacity : 32;
            void *grown = realloc(choices->items, (size_t)capacity * sizeof *chosen);
            if (!grown) return; /* not recorded: timed again the next time */
            choices->items = (struct product_choice *)grown;
            choices->capacity = capacity;
        }
        entry = &choices->items[choices->count++];
    }
    *entry = *chosen;
}

const cublasLtMatmulAlgo_t *product_chosen(struct cuda_products *products,
                                           const struct product_key *key, bool planning) {
    const struct product_choice *choice = find_choice(&products->choices, key);
    if (!choice && planning) {
        choice = find_choice(&products->stored, key);
        if (choice) choose(&products->choices, choice);
    }
    return choice ? &choice->algorithm : NULL;
}

void product_choose(struct cuda_products *products, const struct cuda_product *product,
                    bool timed) {
    struct product_choice chosen = {product->key, product->algorithm,
                                    timed ? CHOICE_TIMED : CHOICE_UNTIMED};
    choose(&products->choices, &chosen);
}

void product_mark_untimed(struct cuda_products *products, const struct product_key *key) {
    struct product_choice *choice = find_choice(&products->choices, key);
    if (choice) choice->origin = CHOICE_UNTIMED;
}

struct tuning cuda_tuning(const struct backend *be) {
    const struct cuda_products *products = cuda_state(be)->products;
    struct tuning tuning = {products->autotune, 0, 0, 0};
    tuning.seconds = products->trials_ended - products->trials_began;
    for (int i = 0; i < products->choices.count; i++) {
        tuning.timed += products->choices.items[i].origin == CHOICE_TIMED;
        tuning.untimed += products->choices.items[i].origin == CHOICE_UNTIMED;
    }
    return tuning;
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

/* Choices to read or write, and the library and GPU that they are for. */
struct choice_lines {
    const struct cuda_products *products;
    struct product_choices *choices;
};

static void write_lines(FILE *file, const void *from) {
    const struct choice_lines *lines = (const struct choice_lines *)from;
    char header[LINE_BYTES];
    write_header(lines->products, header);
    fputs(header, file);
    for (int i = 0; i < lines->choices->count; i++) write_choice(file, &lines->choices->items[i]);
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
    choice->origin = CHOICE_READ;
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
    struct choice_lines *lines = (struct choice_lines *)into;
    char line[LINE_BYTES], header[LINE_BYTES];
    struct product_choice choice;
    if (!fgets(line, sizeof line, file) || strncmp(line, MAGIC, strlen(MAGIC))) return 1;
    write_header(lines->products, header);
    if (strcmp(line, header)) return 0;
    for (int number = 2; fgets(line, sizeof line, file); number++) {
        if (!read_choice(line, &choice)) return number;
        choose(lines->choices, &choice);
    }
    return 0;
}

int product_choices_read(struct cuda_products *products, const char *path, struct error *error) {
    struct choice_lines lines = {products, &products->choices};
    return choices_read(path, read_lines, &lines, error);
}

int cuda_write_choices(struct backend *be, const char *path, struct error *error) {
    struct cuda_products *products = cuda_state(be)->products;
    struct choice_lines lines = {products, &products->choices};
    return products->autotune ? choices_write(path, write_lines, &lines, error) : 0;
}

int cuda_share_choices(struct backend *be, const struct ranks *ranks, struct error *error) {
    struct cuda_products *products = cuda_state(be)->products;
    struct choice_lines lines = {products, &products->choices};
    return choices_share(ranks, write_lines, read_lines, &lines, error);
}

/* ---- the store */

enum { STORED_MAX = 10000 }; /* choices beyond which a store begins anew */

/* A file with an invalid line gives no choices, since the others may be wrong as well. */
static void read_store(const struct cuda_products *products, struct product_choices *stored) {
    struct choice_lines lines = {products, stored};
    struct error ignored;
    if (choices_read(products->store, read_lines, &lines, &ignored)) stored->count = 0;
}

void product_store_open(struct cuda_products *products, const char *directory,
                        const struct cuda_state *cuda) {
    char key[LINE_BYTES];
    snprintf(key, sizeof key, "products cublasLt %zu %.64s sm %d %d, %d multiprocessors, %zu MiB",
             products->lt.GetVersion(), products->name, cuda->major, cuda->minor,
             cuda->multiprocessors, products->workspace_max >> 20);
    products->store = choices_store_path(directory, key);
    if (products->store) read_store(products, &products->stored);
}

/* Reads the file again, to which other runs may have added choices since. */
int cuda_store_choices(struct backend *be, struct error *error) {
    const struct cuda_products *products = cuda_state(be)->products;
    struct product_choices stored = {};
    struct choice_lines lines = {products, &stored};
    if (!products->store || cuda_tuning(be).timed == 0) return 0;
    read_store(products, &stored);
    if (stored.count > STORED_MAX) stored.count = 0;
    for (int i = 0; i < products->choices.count; i++)
        if (products->choices.items[i].origin == CHOICE_TIMED)
            choose(&stored, &products->choices.items[i]);
    int status = choices_store(products->store, write_lines, &lines, error);
    free(stored.items);
    return status;
}
