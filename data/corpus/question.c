#include "data/corpus/question.h"

#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/utf8.h"

void question_add(struct question_set *set, struct question *question, const char *context,
                  const char *delimiter, const char *choice) {
    const size_t before = strlen(context), between = strlen(delimiter), after = strlen(choice);
    const size_t kept = utf8_trim_end(context, before);
    char *text = NULL;
    memcpy(arraddnptr(text, before + between + after + 1), context, before);
    memcpy(text + before, delimiter, between);
    memcpy(text + before + between, choice, after + 1);
    arrput(set->texts, text);
    set->bytes += before + after;
    arrput(question->choices, ((struct choice){
                                  .context = text,
                                  .context_size = kept,
                                  .continuation = text + kept,
                                  .continuation_size = before + between + after - kept,
                                  .characters = utf8_count(choice, after),
                              }));
    question->count++;
}

void question_free(struct question *question) {
    arrfree(question->choices);
    *question = (struct question){0};
}

void questions_close(struct question_set *set) {
    for (size_t i = 0; i < arrlenu(set->questions); i++) question_free(&set->questions[i]);
    for (size_t i = 0; i < arrlenu(set->texts); i++) arrfree(set->texts[i]);
    arrfree(set->questions);
    arrfree(set->texts);
}
