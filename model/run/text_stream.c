#include "model/run/text_stream.h"

#include <stdbool.h>

#include "data/base/utf8.h"

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* Whether more bytes could make a character of these, which are none. */
static bool may_become_character(const uint8_t *bytes, size_t size) {
    size_t wanted = bytes[0] >= 0xf0 ? 4 : bytes[0] >= 0xe0 ? 3 : 2;
    if (bytes[0] < 0xc2 || bytes[0] > 0xf4 || size >= wanted) return false;
    for (size_t i = 1; i < size; i++)
        if ((bytes[i] & 0xc0) != 0x80) return false;
    return true;
}

static bool is_control(const uint8_t *bytes, size_t size) {
    if (size == 2) return bytes[0] == 0xc2 && bytes[1] < 0xa0;
    return size == 1 &&
           ((bytes[0] < 32 && bytes[0] != '\n' && bytes[0] != '\t') || bytes[0] == 127);
}

/* One more byte: holds at most the beginning of one character. */
static void put_byte(struct text_stream *stream, uint8_t byte) {
    stream->held[stream->held_size++] = byte;
    while (stream->held_size > 0) {
        size_t size = utf8_character(stream->held, stream->held_size);
        if (size == 0 && may_become_character(stream->held, stream->held_size)) return;
        if (size == 0 || is_control(stream->held, size)) fputs(replacement, stream->out);
        else fwrite(stream->held, 1, size, stream->out);
        if (size == 0) size = 1;
        stream->held_size -= size;
        for (size_t i = 0; i < stream->held_size; i++) stream->held[i] = stream->held[size + i];
    }
}

void text_stream_put(struct text_stream *stream, const void *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) put_byte(stream, ((const uint8_t *)bytes)[i]);
}

void text_stream_token(void *stream, int token) {
    struct text_stream *self = stream;
    size_t size;
    const uint8_t *bytes = tokenizer_bytes(self->tokenizer, token, &size);
    text_stream_put(self, bytes, size);
    fflush(self->out);
}

void text_stream_end(struct text_stream *stream) {
    for (; stream->held_size > 0; stream->held_size--) fputs(replacement, stream->out);
    fflush(stream->out);
}
