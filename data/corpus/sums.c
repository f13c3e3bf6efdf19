#include "data/corpus/sums.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "data/corpus/prompts.h"
#include "data/util/printed.h"
#include "data/util/random.h"

enum { NUMBERS = 100, SUMS = NUMBERS * NUMBERS, VALIDATION = SUMS / 10, SEED = 1 };

static const char NAME[] = "sums", VALIDATION_NAME[] = "sums (validation)";

/* Returns the result of sum i, or in texts often a number beside it. */
static int result_of(uint64_t i, int sum, bool is_careless) {
    static const int errors[] = {0, 0, 1, -1, 10, -10};
    const int count = sizeof errors / sizeof *errors;
    return is_careless ? abs(sum + errors[random_bits(SEED, 1, i) % (uint64_t)count]) : sum;
}

/* Prints the sums of a part. */
static int print_sums(struct printed *printed, bool is_validation, bool is_careless,
                      const char *format, struct error *error) {
    const uint64_t first = is_validation ? SUMS - VALIDATION : 0;
    if (printed_open(printed)) return fail_memory(error, "sums");
    for (uint64_t i = first; i < (is_validation ? SUMS : SUMS - VALIDATION); i++) {
        const uint64_t sum = random_permute(SEED, 0, i, SUMS);
        const int a = (int)(sum / NUMBERS), b = (int)(sum % NUMBERS);
        fprintf(printed->out, format, a, b, result_of(i, a + b, is_careless));
    }
    return printed_close(printed) ? fail_memory(error, "sums") : 0;
}

int sums_prompts(struct tokens *tokens, bool is_validation, struct error *error) {
    struct printed rows;
    static const char format[] = "{\"prompt\": \"%d plus %d is\", \"answer\": \"%d\"}\n";
    *tokens = (struct tokens){0};
    if (print_sums(&rows, is_validation, false, format, error)) return -1;
    return prompts_from_memory(tokens, rows.text, rows.size, is_validation ? VALIDATION_NAME : NAME,
                               error);
}

int sums_texts(struct tokens *tokens, bool is_validation, struct error *error) {
    struct printed text;
    *tokens = (struct tokens){0};
    if (print_sums(&text, is_validation, true, "%d plus %d is %d\n", error)) return -1;
    int32_t *owned = malloc(text.size * sizeof *owned);
    uint8_t *marks = malloc(text.size);
    bool begins = true, counts = false;
    for (size_t i = 0; owned && marks && i < text.size; i++) {
        owned[i] = (unsigned char)text.text[i];
        counts = !begins && (counts || (i > 2 && memcmp(text.text + i - 2, "is", 2) == 0));
        marks[i] = (begins ? TOKEN_BEGINS : 0) | (counts ? TOKEN_COUNTS : 0);
        begins = text.text[i] == '\n';
        counts = counts && !begins;
    }
    const int status =
        owned && marks ? tokens_from_memory_marked(tokens, owned, marks, text.size,
                                                   is_validation ? VALIDATION_NAME : NAME, error)
                       : fail_memory(error, "sums");
    if (!marks) free(owned);
    free(text.text);
    free(marks);
    return status;
}
