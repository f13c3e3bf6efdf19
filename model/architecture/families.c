#include "model/architecture/families.h"

#define TOKENS(begin_, end_, pad_) .begin = begin_, .end = end_, .pad = pad_
#define PARTS(...) \
    { __VA_ARGS__ }

const struct family families[FAMILY_COUNT] = {
#define X(NAME, type_, class_, gguf_, tokens, window_, pattern, parts_, condition) \
    [FAMILY_##NAME] = {.type = type_,                                              \
                       .class = class_,                                            \
                       .gguf = gguf_,                                              \
                       tokens,                                                     \
                       .window = window_,                                          \
                       .window_pattern = pattern,                                  \
                       .parts = parts_},
    MODEL_FAMILIES(X)
#undef X
};

static bool has_parts(const struct model_shape *s, const struct model_shape *parts) {
#define FIXED(part)    s->part == parts->part &&
#define OPTIONAL(part) (s->part == 0 || parts->part != 0) &&
#define FREE(part)
#define X(type, part, in_a_family) in_a_family(part)
    return MODEL_PARTS(X) true;
#undef X
}

enum model_family shape_family(const struct model_shape *shape) {
    const struct model_shape *s = shape;
    const bool conditions[FAMILY_COUNT] = {
#define X(NAME, type, class, gguf, tokens, window, pattern, parts, condition) condition,
        MODEL_FAMILIES(X)
#undef X
    };
    enum model_family family = 0;
    while (family < FAMILY_COUNT && !(conditions[family] && has_parts(s, &families[family].parts)))
        family++;
    return family;
}
