/* Any rows of pairs or with labels: either refused with a message, a column and the row as it was,
 * or two documents a row, each with a prompt and an answer in UTF-8. Rows are freed as soon as they
 * have been read, so that sanitizers detect texts that should have been copied. */
#include <stb/stb_ds.h>

#include "data/corpus/rows.h"
#include "data/corpus/token_mask.h"
#include "data/util/utf8.h"
#include "test/fuzz/fuzz.h"

static const char *const FIELDS[] = {"prompt,chosen,rejected", "chosen,rejected",
                                     "prompt,completion,label"};

/* Bytes below 16 become parts of a row, which would rarely be found otherwise. */
static const char *const PARTS[] = {"{\"prompt\":",
                                    "\"",
                                    ",\"chosen\":",
                                    ",\"rejected\":",
                                    ",\"completion\":",
                                    ",\"label\":true}",
                                    ",\"label\":false}",
                                    "}",
                                    "[{\"role\":\"user\",\"content\":\"",
                                    "[{\"role\":\"assistant\",\"content\":\"",
                                    "\"},{\"content\":\"a\",\"role\":\"assistant\"}]",
                                    "\"}]",
                                    "[{\"text\":\"",
                                    "\",\"train\":false},{\"text\":\"",
                                    "\",\"train\":true}]",
                                    "{\"chosen\":\"a "};

static char *build(const uint8_t *bytes, size_t size) {
    char *row = NULL;
    for (size_t i = 0; i < size; i++) {
        const char *part = bytes[i] < 16 ? PARTS[bytes[i]] : (const char *)&bytes[i];
        const size_t length = bytes[i] < 16 ? strlen(part) : 1;
        memcpy(arraddnptr(row, length), part, length);
    }
    return row;
}

static void check_documents(const struct row_texts *texts, bool is_labelled) {
    const size_t count = arrlenu(texts->documents);
    require(count % 2 == 0 && count <= (is_labelled ? 4 : 2));
    for (size_t i = 0; i < count; i++) {
        const struct row_document *document = &texts->documents[i];
        const size_t end = i + 1 < count ? document[1].segment : arrlenu(texts->segments);
        bool prompt = false, answer = false;
        require(document->segment < end && (i > 0 || document->segment == 0));
        for (size_t j = document->segment; j < end; j++) {
            const struct segment *segment = &texts->segments[j];
            require(utf8_valid(segment->text, segment->size));
            prompt |= segment->size > 0 && !segment->in_loss && !answer;
            answer |= segment->size > 0 && segment->in_loss;
        }
        require(prompt && answer && document->marks & TOKEN_BEGINS);
        require(!(document->marks & TOKEN_REJECTED) == (i % 2 == 0));
        require(is_labelled ? i % 2 == 0 || document->marks & TOKEN_LABEL
                            : !(document->marks & TOKEN_LABEL));
    }
}

static void read_row(struct rows *rows, const char *built, size_t size) {
    struct error error = {0};
    size_t column = 0;
    const uint64_t labelled = rows->pairs.labelled;
    char *row = malloc(size + !size);
    require(row != NULL);
    if (size > 0) memcpy(row, built, size);
    const int status = rows_parse(rows, row, size, &column, &error);
    if (status == 0) {
        check_documents(&rows->texts, rows_are_labelled(rows));
        require((arrlenu(rows->texts.documents) == 0) == (rows_are_labelled(rows) && !labelled));
    } else {
        require(status == RESULT_NONE && error.text[0] && column >= 1 && column <= size + 1);
        require(size == 0 || memcmp(row, built, size) == 0);
        require(arrlenu(rows->texts.documents) == 0 && arrlenu(rows->texts.segments) == 0);
        require(rows->pairs.labelled == labelled);
    }
    free(row);
}

/* The first byte chooses the fields and the template; bytes of 255 separate rows. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct rows rows;
    struct error error = {0};
    if (size == 0) return 0;
    require(rows_open(&rows, FIELDS[bytes[0] % 3], NULL, &error) == 0);
    rows.chat = chat_template_at(bytes[0] / 3 % 3);
    for (size_t at = 1; at < size;) {
        const uint8_t *end = memchr(bytes + at, '\xff', size - at);
        const size_t length = end ? (size_t)(end - bytes) - at : size - at;
        char *row = build(bytes + at, length);
        read_row(&rows, row, arrlenu(row));
        arrfree(row);
        at += length + 1;
    }
    rows_close(&rows);
    return 0;
}
