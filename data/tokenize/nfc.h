/* Unicode's normalization form C (The Unicode Standard, section 3.11): letters and the marks behind
 * them are written as one character where there is one. The tables are made by
 * scripts/unicode_tables.py; they are those of Hugging Face's tokenizers, of Unicode 9, which
 * newer marks are nothing special to.
 *
 * Bytes that are no characters of UTF-8 stay as they are. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct nfc_pair;

/* Read-only once open; zeros where it is not. */
struct nfc {
    uint16_t *marks;        /* [UNICODE_CODES]: what has to be looked at, 0 for most */
    struct nfc_pair *pairs; /* those that compose, by first and second */
    size_t pair_count;
};

/* Returns -1 when memory is short; then there is nothing to close, though closing is harmless. */
int nfc_open(struct nfc *nfc);
void nfc_close(struct nfc *nfc);

/* Appends the text's normal form to *out, an stb_ds array. */
void nfc_apply(const struct nfc *nfc, uint8_t **out, const uint8_t *text, size_t size);
