/* A model as a GGUF file: names, order and types of tensors, and metadata, as llama.cpp's loader
 * expects them (gguf-py's constants and tensor mapping, src/models of ggml-org/llama.cpp).
 *
 *   gpt2         GPT-2; matrices transposed from [in, out] to [out, in]
 *   qwen3        with qk_norm
 *   qwen2        with biases of q, k and v alone
 *   gemma2       Gemma 2, and
 *   gemma3       Gemma 3: 1 is added to the weights of norms, which llama.cpp takes as factors
 *   smollm3      SmolLM3, with rows of q and k as in llama
 *   olmo2        OLMo 2 and 3
 *   exaone4      EXAONE 4
 *   llama        Llama, Mistral, and any of that family that the others cannot express; llama.cpp
 *                rotates neighbours there, so rows of q and k are reordered
 *
 * Vectors and learned positions are F32, as llama.cpp's converter stores them. In a file of Q4_0
 * the matrix of the logits is Q8_0, and a matrix with rows that are not whole blocks is F16. */
#pragma once

#include <stdio.h>

#include "data/tokenize/tokenizer.h"
#include "model/architecture/parameters.h"
#include "model/io/gguf_types.h"
#include "model/io/huggingface.h"

struct gguf_model {
    const char *name; /* general.name */
    struct model_shape shape;
    const struct parameter *list;      /* stb_ds array */
    const struct tokenizer *tokenizer; /* NULL: none */
    const struct huggingface_tokens *tokens;
    const char *chat_template; /* NULL: none */
    /* Reads elements first .. first + count - 1 of a parameter as fp32. */
    int (*read)(void *context, float *values, const struct parameter *parameter, int64_t first,
                int64_t count);
    void *context;
    struct error *error; /* for messages of all functions, read's included */
};

/* Fails, with what to do, if llama.cpp has no architecture for the model. */
int gguf_check_shape(const struct model_shape *shape, struct error *error);

/* Writes the file durably. notes (note.h) get what differs from `type`, and what
 * llama.cpp will compute otherwise. Fails like gguf_check_shape, gguf_put_tokenizer and
 * gguf_write_begin, if read fails, and for values that the type cannot represent, which the message
 * names. Memory is that of the tokenizer, a row, and for a GPT-2 a matrix. */
int gguf_write_model(const char *path, enum gguf_type type, const struct gguf_model *model,
                     FILE *notes);
