/* The files of the model that a run begins with, or that is exported, beside its weights. What
 * training does not change goes into every checkpoint and export as it is:
 *
 *     config.json             byte for byte, except the dtype, sizes that the run's config sets
 *                             otherwise, eos_token_id, two spellings of rope that may disagree,
 *                             quantization_config, which becomes null, and members that it
 *                             lacks, which some readers need
 *     generation_config.json  byte for byte, except eos_token_id
 *     tokenizer_config.json special_tokens_map.json added_tokens.json chat_template.jinja
 *     tokenizer.json vocab.json merges.txt tokenizer.model ...
 *                             byte for byte, except a tokenizer_class of transformers 5 alone
 *
 * eos_token_id has, in both files, the tokens at which --sample stops: those of both files, those
 * that end the answers of the training text, and if there are none, those of the tokenizer.
 *
 * A model that begins with random weights has no base: its files are printed by
 * model/io/huggingface.h, but those of its tokenizer's folder are kept, with another
 * model_max_length. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "data/corpus/tokens.h"
#include "data/tokenize/tokenizer.h"
#include "data/util/error.h"
#include "data/util/json.h"
#include "kernels/dtype.h"
#include "model/config/config.h"
#include "model/io/huggingface.h"
#include "model/io/tensor_files.h"

enum { BASE_TOKENIZER_FILES = 9 };

struct base_files {
    struct json_file config, generation; /* root NULL: there is none */
    bool same_shape;                     /* the run's model has the sizes and parts of config */
    bool is_new;                         /* there is no folder of a model */
    const struct larger_model *left_out; /* the model of which only the text's part is used */
    bool leaves_out_mtp; /* the model has layers that predict several tokens, which are not used */
    struct {
        char *bytes; /* [size]; NULL: there is none */
        size_t size;
    } tokenizer[BASE_TOKENIZER_FILES];
    struct huggingface_tokens tokens; /* the model's, with the ends of answers */
    const char *chat_template;        /* a built-in one that goes with the model, or NULL */
};

/* Reads DIRECTORY/NAME of a model folder, which may be untrusted, to copy it unchanged. Returns
 * RESULT_NONE if there is none. A link that leads out of the directory is an error, since it could
 * copy a file of the user that was never meant for others; links of the cache of Hugging Face, to
 * blobs beside its snapshots, may leave it. A file NAME.json must hold one JSON object. The caller
 * frees *bytes. */
int copied_file_read(char **bytes, size_t *size, const char *directory, const char *name,
                     struct error *error);

/* Reads the files of the model in the directory `model` and of the tokenizer in the directory
 * `tokenizer_directory`; NULL, or a model without config.json: there is none. tokenizer (optional)
 * is the open one of that directory, whose own files need not be read again. The rules of
 * copied_file_read hold for all files. On failure nothing is left to close. */
int base_files_open(struct base_files *base, const struct config *config,
                    const struct tokenizer *tokenizer, const char *model,
                    const char *tokenizer_directory, struct error *error);
void base_files_close(struct base_files *base);

/* Notes the parts of a larger model that are not used. */
void base_files_note_left_out(const struct base_files *base, FILE *notes);

/* Adds the special tokens that end the answers of a training text to those that end a text. If they
 * end turns of a built-in chat template and the base has no template, that one goes with it. */
int base_files_add_answers(struct base_files *base, const struct tokens *text,
                           const struct tokenizer *tokenizer, struct error *error);

/* A directory that the files are written into. */
struct base_target {
    const struct base_files *base;
    const struct config *config;
    const struct tokenizer *tokenizer; /* as in base_files_open */
    enum dtype dtype;                  /* that of the weights */
    const char *directory;
};

/* Writes the files, and appends them to *written. Without is_model, for adapters alone, it leaves
 * config.json out. */
int base_files_write(const struct base_target *target, bool is_model, struct stored_file **written,
                     struct error *error);
