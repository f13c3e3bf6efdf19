#include "model/cli/text_stream.h"

#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/min_max.h"
#include "data/util/utf8.h"

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* True if these bytes are an incomplete UTF-8 character that more bytes could complete. */
static bool may_become_character(const uint8_t *bytes, size_t size) {
    size_t wanted = bytes[0] >= 0xf0 ? 4 : bytes[0] >= 0xe0 ? 3 : 2;
    if (bytes[0] < 0xc2 || bytes[0] > 0xf4 || size >= wanted) return false;
    for (size_t i = 1; i < size; i++)
        if ((bytes[i] & 0xc0) != 0x80) return false;
    return true;
}

/* Adds a byte and prints the complete characters. An incomplete one stays pending. */
static void put_byte(struct text_stream *stream, uint8_t byte) {
    stream->pending[stream->pending_size++] = byte;
    while (stream->pending_size > 0) {
        size_t size = utf8_character(stream->pending, stream->pending_size);
        if (size == 0 && may_become_character(stream->pending, stream->pending_size)) return;
        const bool control = size > 0 && utf8_is_control(stream->pending, size);
        if (size == 0 || (control && !stream->keeps_controls)) fputs(replacement, stream->out);
        else fwrite(stream->pending, 1, size, stream->out);
        if (size == 0) size = 1;
        stream->pending_size -= size;
        for (size_t i = 0; i < stream->pending_size; i++)
            stream->pending[i] = stream->pending[size + i];
    }
}

void text_stream_put(struct text_stream *stream, const void *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) put_byte(stream, ((const uint8_t *)bytes)[i]);
}

/* Returns the offset of the first stop string in held[0..size), or size. */
static size_t find_stop(const struct text_stream *stream, size_t size) {
    size_t first = size;
    for (ptrdiff_t i = 0; i < arrlen(stream->stops); i++) {
        const char *at = memmem(stream->held, size, stream->stops[i], strlen(stream->stops[i]));
        if (at && (size_t)(at - stream->held) < first) first = (size_t)(at - stream->held);
    }
    return first;
}

/* Returns the length of the longest end of held[0..size) that a stop string begins with. */
static size_t beginning_length(const struct text_stream *stream, size_t size) {
    size_t longest = 0;
    for (ptrdiff_t i = 0; i < arrlen(stream->stops); i++) {
        size_t most = strlen(stream->stops[i]) - 1;
        for (size_t length = MIN(most, size); length > longest; length--)
            if (memcmp(stream->held + size - length, stream->stops[i], length) == 0)
                longest = length;
    }
    return longest;
}

/* Appends the run of byte_fallback to what is held. */
static void hold_run(struct text_stream *stream) {
    size_t size = arrlenu(stream->run);
    if (size == 0) return;
    if (utf8_valid(stream->run, size)) memcpy(arraddnptr(stream->held, size), stream->run, size);
    else
        for (size_t i = 0; i < size; i++)
            memcpy(arraddnptr(stream->held, sizeof replacement - 1), replacement,
                   sizeof replacement - 1);
    arrsetlen(stream->run, 0);
}

/* True if a stop string ends in the run. */
static bool run_stops(struct text_stream *stream) {
    size_t held = arrlenu(stream->held), size = arrlenu(stream->run);
    if (!stream->stops || !utf8_valid(stream->run, size)) return false;
    memcpy(arraddnptr(stream->held, size), stream->run, size);
    bool stops = find_stop(stream, held + size) < held + size;
    arrsetlen(stream->held, held);
    return stops;
}

bool text_stream_token(void *streams, int64_t text, int token) {
    struct text_stream *stream = (struct text_stream *)streams + text;
    size_t size;
    const uint8_t *bytes = tokenizer_bytes(stream->tokenizer, token, &size);
    stream->tokens++;
    stream->last = token;
    if (size == 0) return true;
    if (tokenizer_falls_back(stream->tokenizer, token)) {
        arrput(stream->run, (char)*bytes);
        if (!run_stops(stream)) return true;
        size = 0;
    }
    hold_run(stream);
    if (size > 0) memcpy(arraddnptr(stream->held, size), bytes, size);
    size_t held = arrlenu(stream->held), stop = find_stop(stream, held);
    stream->stopped = stop < held;
    size_t printed = stream->stopped ? stop : held - beginning_length(stream, held);
    text_stream_put(stream, stream->held, printed);
    arrdeln(stream->held, 0, stream->stopped ? held : printed);
    fflush(stream->out);
    return !stream->stopped;
}

void text_stream_end(struct text_stream *stream) {
    hold_run(stream);
    arrfree(stream->run);
    text_stream_put(stream, stream->held, arrlenu(stream->held));
    arrfree(stream->held);
    for (; stream->pending_size > 0; stream->pending_size--) fputs(replacement, stream->out);
    fflush(stream->out);
}
