/* Any bytes as normalizers, one a line, and a text after an empty line, which is repeated up to
 * TEXT_BYTES. A line is FROM, a tab and TO, or a text to prepend; N alone is NFC. The size of
 * the normal form must be in proportion to the text, or there is an error, within libFuzzer's
 * time and memory limits. */
#include "data/tokenize/subwords.h"
#include "test/fuzz/fuzz.h"

#include <stb/stb_ds.h>

enum { TEXT_BYTES = 64 << 10 };

static struct subwords_normalizer normalizer_of(const char *line, size_t length) {
    const char *tab = memchr(line, '\t', length);
    const size_t from = tab ? (size_t)(tab - line) : 0, to = tab ? from + 1 : 0;
    struct subwords_normalizer part = {.from = strndup(line, from),
                                       .to = strndup(line + to, length - to)};
    require(part.from && part.to);
    part.kind = *part.from ? SUBWORDS_REPLACE : SUBWORDS_PREPEND;
    if (length == 1 && *line == 'N') part.kind = SUBWORDS_NFC;
    return part;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static struct nfc nfc;
    static uint8_t text[TEXT_BYTES];
    struct subwords subwords = {0};
    struct error error = {0};
    uint8_t *forms[2] = {NULL, NULL};
    const uint8_t *at = bytes, *last = bytes + size, *end;
    if (!nfc.marks) nfc_open(&nfc);
    while (subwords.normalizer_count < SUBWORDS_NORMALIZERS_MAX &&
           (end = memchr(at, '\n', (size_t)(last - at))) && end > at) {
        subwords.normalizers[subwords.normalizer_count++] =
            normalizer_of((const char *)at, (size_t)(end - at));
        at = end + 1;
    }
    const size_t part = (size_t)(last - at), copies = part ? TEXT_BYTES / part : 0;
    for (size_t i = 0; i < copies; i++) memcpy(text + i * part, at, part);
    const uint8_t *form = text;
    size_t form_size = copies * part;
    subwords.nfc = nfc;
    if (subwords_normalize(&subwords, forms, &form, &form_size, &error))
        require(strstr(error.text, "normalizer") != NULL);
    else require(form_size <= 8 * copies * part + 64);
    for (int i = 0; i < 2; i++) arrfree(forms[i]);
    subwords.nfc = (struct nfc){0};
    subwords_free(&subwords);
    return 0;
}
