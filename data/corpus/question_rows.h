/* Rows of multiple-choice questions: our own, and the original ones of known benchmarks.
 *
 * The fields of a row decide its form. Other fields are ignored, whatever they hold.
 *
 *     {"context": TEXT, "choices": [TEXT, ...], "answer": INDEX}
 *
 * Here a space is put between context and choice, unless one of them has white space there or the
 * context is empty. A context that is the same for all choices is usual; for others, see
 * WinoGrande.
 *
 * The other forms become the texts of lm-evaluation-harness with zero examples; its files in
 * lm_eval/tasks are the source of each line. The delimiter is a space, and characters counts the
 * choice after any clean-up.
 *
 *     form         fields
 *     HellaSwag    ctx_a, endings, activity_label, label; ctx_b may be missing, which is ""
 *     ARC          question, choices {"text": [...], "label": [...]}, answerKey; or as in its
 *                  archive: question {"stem", "choices": [{"text", "label"}, ...]}, answerKey
 *     PIQA         goal, sol1, sol2, label
 *     WinoGrande   sentence (with "_"), option1, option2, answer (1 or 2)
 *     MMLU         question, subject, choices [4], answer (0 to 3)
 *
 *     form         context                                       choice
 *     HellaSwag    clean(activity_label + ": " + ctx_a + " "     clean(ending)
 *                  + capitalized(ctx_b))
 *     ARC          "Question: " question "\nAnswer:"             text
 *     PIQA         "Question: " goal "\nAnswer:"                 sol1, sol2
 *     WinoGrande   sentence before "_", then option1 or option2  stripped sentence after "_"
 *     MMLU         "The following are multiple choice questions  "A", "B", "C", "D"
 *                  (with answers) about " subject (its "_" as
 *                  spaces) ".\n\n" stripped question
 *                  "\nA. " ... "\nD. " choice "\nAnswer:"
 *
 * clean strips white space, turns " [title]" into ". ", removes brackets with their contents (on
 * one line), and then makes each two spaces one, once. capitalized makes the first letter a
 * capital and all others small, in Latin, Greek and Cyrillic. The choices of WinoGrande differ in
 * their contexts: characters is that of the context, though the harness reports acc alone.
 *
 * An index may be a number or a string of digits. */
#pragma once

#include "data/util/error.h"
#include "data/corpus/question.h"

/* Parses row[0 .. size), with a NUL after it, and adds its question to the set with this line. The
 * row is overwritten. Fails if it is not a JSON object of a known form (data/util/json.h), lacks
 * fields or has some of another type, has fewer than two choices or an empty one, or if the answer
 * is not one of them. name: the file, for messages. */
int question_row(struct question_set *set, char *row, size_t size, const char *name, size_t line,
                 struct error *error);
