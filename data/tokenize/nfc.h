/* Unicode's normalization form C (The Unicode Standard, section 3.11): a letter and the marks after
 * it are composed into one character where one exists. scripts/unicode_tables.py makes the tables.
 * They match Hugging Face's tokenizers, which use Unicode 9, so marks added later are ordinary
 * characters.
 *
 * Bytes that are not valid UTF-8 are copied unchanged. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct nfc_pair;

/* Tables for nfc_apply: stb_ds arrays. Read-only once open; all zeros when closed. */
struct nfc {
    uint16_t *marks;            /* [UNICODE_CODES]: class and flags of a character, mostly 0 */
    struct nfc_pair *canonical; /* all decompositions, sorted by code */
    struct nfc_pair *composing; /* pairs that compose again, sorted by first and second */
};

void nfc_open(struct nfc *nfc);
void nfc_close(struct nfc *nfc);

/* Appends the text's normal form to *out, an stb_ds array. */
void nfc_apply(const struct nfc *nfc, uint8_t **out, const uint8_t *text, size_t size);
