/* Changes of texts that lm-evaluation-harness makes for some rows (data/corpus/question_rows.h).
 * Texts are valid UTF-8 and end with a NUL. */
#pragma once

/* Removes white space (data/util/utf8.h) at both ends, in place. Returns text. */
char *question_strip(char *text);

/* Cleans a text of HellaSwag, in place (lm_eval/tasks/hellaswag/utils.py): strips it, turns
 * " [title]" into ". ", removes brackets with what is between them on one line, and makes one space
 * of each two. Returns text. */
char *question_clean(char *text);

/* Returns a copy with a capital as its first character and small letters after it, an stb_ds array
 * that the caller frees. It equals str.capitalize of Python for the letters of Latin-1, Latin
 * Extended-A, Vietnamese, modern Greek and Cyrillic, but for a few that have no counterpart of one
 * character there or two of them (such as the sharp s and the final sigma). Others are unchanged.
 */
char *question_capitalize(const char *text);
