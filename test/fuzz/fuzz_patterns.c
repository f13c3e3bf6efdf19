/* Any bytes as a pattern, a line break, and a text, which is repeated up to TEXT_BYTES. Opening
 * and splitting must end within libFuzzer's time limit, with an error or with pieces that make
 * up the text. */
#include "data/tokenize/pretokenizer.h"
#include "data/tokenize/unicode.h"
#include "test/fuzz/fuzz.h"

enum { TEXT_BYTES = 8 << 10 };

static void cut(const struct pretokenizer_rule *rule, const uint8_t *text, size_t size) {
    struct pretokenizer pretokenizer;
    struct error error = {0};
    size_t begin, end, last = 0;
    pretokenizer_begin(&pretokenizer, rule, 1, text, size);
    while (pretokenizer_next(&pretokenizer, &begin, &end)) {
        require(begin == last && end > begin && end <= size);
        last = end;
    }
    if (!pretokenizer.failed) require(last == size);
    else require(split_pattern_fail(pretokenizer.failed, &error) && strstr(error.text, "too long"));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static uint8_t *atoms, text[TEXT_BYTES];
    const uint8_t *end = memchr(bytes, '\n', size);
    const size_t length = end ? (size_t)(end - bytes) : size;
    const size_t part = end ? size - length - 1 : 0, copies = part ? TEXT_BYTES / part : 0;
    char *pattern = strndup((const char *)bytes, length);
    if (!atoms) atoms = unicode_atoms();
    require(pattern && atoms);
    for (size_t i = 0; i < copies; i++) memcpy(text + i * part, end + 1, part);
    for (int dialect = SPLIT_TOKENIZERS; dialect <= SPLIT_TIKTOKEN; dialect++) {
        struct error error = {0};
        const struct pretokenizer_rule rule = {
            .pattern = split_pattern_open(pattern, (enum split_dialect)dialect, atoms, &error)};
        require(rule.pattern || *error.text);
        if (!rule.pattern) continue;
        pretokenizer_cuts_before(&rule, 1, atoms, ' ');
        cut(&rule, end ? end + 1 : bytes, part);
        cut(&rule, text, copies * part);
        split_pattern_close(rule.pattern);
    }
    free(pattern);
    return 0;
}
