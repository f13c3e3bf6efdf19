#include "data/tokenize/nfc.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/utf8.h"
#include "data/tokenize/unicode.h"

/* A character and its canonical decomposition; second is 0 if that is a single character. */
struct nfc_pair {
    uint32_t code, first, second;
};

/* For each second character: itself, 1 if its pairs compose (else 0), the number of pairs, and for
 * each pair the increments of code and first since the pair before. */
static const int32_t canonical_groups[] = {
#include "data/tokenize/unicode_canonical.inc"
};
static const uint32_t combining_runs[] = {
#include "data/tokenize/unicode_combining.inc"
};

/* Flags of nfc.marks above the combining class. DECOMPOSES: the character has a decomposition that
 * does not compose again. FOLLOWS: the character may compose with the one before it. */
enum { CLASS = 0xff, DECOMPOSES = 0x100, FOLLOWS = 0x200 };

/* Hangul syllables consist of two or three letters and are composed by arithmetic (section
 * 3.12). */
enum {
    SYLLABLES = 0xac00,
    LEADS = 0x1100,
    VOWELS = 0x1161,
    TAILS = 0x11a7,
    LEAD_COUNT = 19,
    VOWEL_COUNT = 21,
    TAIL_COUNT = 28,
    SYLLABLE_COUNT = LEAD_COUNT * VOWEL_COUNT * TAIL_COUNT
};

static int by_parts(const void *a, const void *b) {
    const struct nfc_pair *left = a, *right = b;
    if (left->first != right->first) return left->first < right->first ? -1 : 1;
    return (left->second > right->second) - (left->second < right->second);
}

static int by_code(const void *a, const void *b) {
    const struct nfc_pair *left = a, *right = b;
    return (left->code > right->code) - (left->code < right->code);
}

static void read_canonical(struct nfc *nfc) {
    const int32_t *end = canonical_groups + sizeof canonical_groups / sizeof *canonical_groups;
    for (const int32_t *at = canonical_groups; at < end;) {
        struct nfc_pair pair = {.second = (uint32_t)*at++};
        const bool composes = *at++;
        for (int32_t left = *at++; left > 0; left--) {
            pair.code += (uint32_t)*at++;
            pair.first += (uint32_t)*at++;
            arrput(nfc->canonical, pair);
            if (composes) arrput(nfc->composing, pair);
            nfc->marks[composes ? pair.second : pair.code] |= composes ? FOLLOWS : DECOMPOSES;
        }
    }
    qsort(nfc->canonical, arrlenu(nfc->canonical), sizeof *nfc->canonical, by_code);
    qsort(nfc->composing, arrlenu(nfc->composing), sizeof *nfc->composing, by_parts);
}

void nfc_open(struct nfc *nfc) {
    *nfc = (struct nfc){0};
    arrsetcap(nfc->marks, UNICODE_CODES);
    for (size_t i = 0; i < sizeof combining_runs / sizeof *combining_runs; i++)
        for (uint32_t count = combining_runs[i] >> 8; count > 0; count--)
            arrput(nfc->marks, combining_runs[i] & CLASS);
    read_canonical(nfc);
    for (int i = 0; i < VOWEL_COUNT; i++) nfc->marks[VOWELS + i] |= FOLLOWS;
    for (int i = 1; i < TAIL_COUNT; i++) nfc->marks[TAILS + i] |= FOLLOWS;
}

void nfc_close(struct nfc *nfc) {
    arrfree(nfc->marks);
    arrfree(nfc->canonical);
    arrfree(nfc->composing);
}

/* Appends the full decomposition of a character. */
static void decompose(const struct nfc *nfc, uint32_t **codes, uint32_t code) {
    if (code >= SYLLABLES && code < SYLLABLES + SYLLABLE_COUNT) {
        const uint32_t at = code - SYLLABLES;
        arrput(*codes, LEADS + at / (VOWEL_COUNT * TAIL_COUNT));
        arrput(*codes, VOWELS + at / TAIL_COUNT % VOWEL_COUNT);
        if (at % TAIL_COUNT) arrput(*codes, TAILS + at % TAIL_COUNT);
        return;
    }
    const struct nfc_pair key = {.code = code};
    const struct nfc_pair *pair =
        bsearch(&key, nfc->canonical, arrlenu(nfc->canonical), sizeof key, by_code);
    if (!pair) {
        arrput(*codes, code);
        return;
    }
    decompose(nfc, codes, pair->first);
    if (pair->second) decompose(nfc, codes, pair->second);
}

/* Sorts each run of marks by class, keeping the order within a class. It is a counting sort, since
 * a run may be as long as the text. */
static void order_marks(const struct nfc *nfc, uint32_t *codes, size_t count) {
    uint32_t *sorted = NULL;
    for (size_t begin = 0, end; begin < count; begin = end + 1) {
        end = begin;
        if (!(nfc->marks[codes[begin]] & CLASS)) continue;
        size_t starts[257] = {0};
        bool is_sorted = true;
        for (; end < count && (nfc->marks[codes[end]] & CLASS); end++) {
            starts[(nfc->marks[codes[end]] & CLASS) + 1]++;
            is_sorted = is_sorted && (end == begin || (nfc->marks[codes[end - 1]] & CLASS) <=
                                                          (nfc->marks[codes[end]] & CLASS));
        }
        if (is_sorted) continue;
        for (int i = 1; i < 257; i++) starts[i] += starts[i - 1];
        arrsetlen(sorted, end - begin);
        for (size_t i = begin; i < end; i++)
            sorted[starts[nfc->marks[codes[i]] & CLASS]++] = codes[i];
        memcpy(codes + begin, sorted, (end - begin) * sizeof *codes);
    }
    arrfree(sorted);
}

/* Returns the character that the two compose to, or 0. */
static uint32_t composed(const struct nfc *nfc, uint32_t first, uint32_t second) {
    if (first >= LEADS && first < LEADS + LEAD_COUNT && second >= VOWELS &&
        second < VOWELS + VOWEL_COUNT)
        return SYLLABLES + ((first - LEADS) * VOWEL_COUNT + second - VOWELS) * TAIL_COUNT;
    if (first >= SYLLABLES && first < SYLLABLES + SYLLABLE_COUNT &&
        (first - SYLLABLES) % TAIL_COUNT == 0 && second > TAILS && second < TAILS + TAIL_COUNT)
        return first + second - TAILS;
    if (!(nfc->marks[second] & FOLLOWS)) return 0;
    const struct nfc_pair key = {.first = first, .second = second};
    const struct nfc_pair *pair =
        bsearch(&key, nfc->composing, arrlenu(nfc->composing), sizeof key, by_parts);
    return pair ? pair->code : 0;
}

/* Composes in place and returns how many characters are left. A mark is blocked from the preceding
 * starter by a mark of its own class or a higher one in between. */
static size_t compose(const struct nfc *nfc, uint32_t *codes, size_t count) {
    size_t kept = 0, starter = SIZE_MAX;
    uint32_t last = 0; /* class of the character kept last, after the starter */
    for (size_t i = 0; i < count; i++) {
        const uint32_t class = nfc->marks[codes[i]] & CLASS;
        const bool is_next = starter != SIZE_MAX && kept == starter + 1;
        const bool is_free = starter != SIZE_MAX && (is_next || last < class);
        const uint32_t one = is_free ? composed(nfc, codes[starter], codes[i]) : 0;
        if (one) {
            codes[starter] = one;
            continue;
        }
        if (class == 0) starter = kept;
        last = class;
        codes[kept++] = codes[i];
    }
    return kept;
}

/* Normalizes a run of characters that begins with a starter, or at the beginning of the text. */
static void apply_to_part(const struct nfc *nfc, uint8_t **out, const uint8_t *text, size_t size) {
    uint32_t *codes = NULL;
    for (size_t at = 0, count; at < size; at += count) {
        count = utf8_character(text + at, size - at);
        decompose(nfc, &codes, utf8_code(text + at, count));
    }
    order_marks(nfc, codes, arrlenu(codes));
    const size_t kept = compose(nfc, codes, arrlenu(codes));
    for (size_t i = 0; i < kept; i++) {
        uint8_t character[4];
        const size_t count = utf8_write(character, codes[i]);
        memcpy(arraddnptr(*out, count), character, count);
    }
    arrfree(codes);
}

/* Returns the end of the run of characters from `at` on that NFC leaves unchanged; *last becomes
 * the beginning of the last of them. */
static size_t skip_plain(const struct nfc *nfc, const uint8_t *text, size_t size, size_t at,
                         size_t *last) {
    while (at < size) {
        size_t count = 1;
        if (text[at] >= 0x80) {
            count = utf8_character(text + at, size - at);
            if (count && nfc->marks[utf8_code(text + at, count)]) break;
            if (count == 0) count = 1; /* invalid bytes never compose */
        }
        *last = at;
        at += count;
    }
    return at;
}

void nfc_apply(const struct nfc *nfc, uint8_t **out, const uint8_t *text, size_t size) {
    for (size_t at = 0, last = 0; at < size;) {
        const size_t marked = skip_plain(nfc, text, size, at, &last);
        /* The plain character before the marks may compose with them. */
        const bool has_base = marked > at && utf8_character(text + last, size - last) > 0;
        const size_t plain = marked < size && has_base ? last : marked;
        if (plain > at) memcpy(arraddnptr(*out, plain - at), text + at, plain - at);
        size_t end = marked;
        for (size_t count; end < size; end += count) {
            count = utf8_character(text + end, size - end);
            if (count == 0 || !nfc->marks[utf8_code(text + end, count)]) break;
        }
        if (end > plain) apply_to_part(nfc, out, text + plain, end - plain);
        at = end;
    }
}
