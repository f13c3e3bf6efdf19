/* The weights of a model: fp32 master weights of what is trained, frozen weights, and the 16-bit
 * weights that low precision operations read, stored in one of four forms.
 *
 *     DIRECT   | fp32 |                 operations read the master weights directly
 *     SPLIT    | bf16 | remainder |     operations read the upper half (kernels/rounding.h)
 *     KEPT     | fp32 | 16-bit copy |   an update writes the copy too
 *     CAST     | fp32 |                 a pass casts each matrix to scratch before it multiplies it
 *
 * Training gives the same bits in all forms. precision->masters is the form of matrices that are
 * read in 16 bit. Other matrices are DIRECT; vectors, about 0.1 % of all elements, are KEPT.
 * Adjacent parameters of one form are a group with contiguous arrays, so an update is a pass over
 * each group.
 *
 * Frozen matrices are stored as precision->frozen and frozen_format say, in fp32, 16 bit or a
 * format of kernels/weight_format.h, instead of fp32. They are DIRECT where operations read that
 * dtype, and CAST elsewhere: then each is cast or dequantized. A quantized matrix is a group of its
 * own.
 *
 * The matrices of the layers may be streamed: what operations read of them is in host memory, where
 * an update writes it, and a pass copies each layer to one of BACKEND_SLOTS buffers while the layer
 * before it runs. Each layer then has groups of its own. KEPT matrices are not streamed. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/arena.h"
#include "kernels/backend.h"
#include "model/architecture/parameters.h"
#include "model/core/layer_stream.h"
#include "model/core/precision.h"

struct master_group {
    int64_t first, count; /* range of elements in the flat arrays */
    enum master_form form;
    enum weight_format format; /* WEIGHT_PLAIN, unless frozen */
    bool offloaded;            /* the remainders are in host memory */
    bool streamed;             /* master or quantized are in host memory */
    struct tensor master;      /* [count] fp32; bf16 if SPLIT; 16 bit if frozen so; or no data */
    int16_t *remainder;        /* [count] if SPLIT, else NULL */
    struct tensor copy;        /* [count] if KEPT */
    const struct parameter *parameter; /* the first, whose group all have; alone if quantized */
    struct quantized_weight quantized; /* unless the format is WEIGHT_PLAIN, instead of master */
    struct {
        struct tensor master;
        struct quantized_weight quantized;
    } buffered; /* if streamed: the same in a buffer of the device, where operations read it */
};

struct masters {
    const struct precision *precision;
    const struct parameter *list;
    struct master_group *groups; /* stb_ds array, in order */
    size_t scratch_bytes;
    void *scratch; /* copies of the matrices of one linear layer as operations read them, if CAST */
    float *staging; /* between masters_upload_begin and _end: values of a quantized parameter */
    struct layer_stream stream;
    int64_t requantized; /* weights that were read from codes with other scales than they have */
};

/* State in host memory. */
struct masters_offload {
    bool remainders; /* except those that the embedding reads */
    bool layers;     /* matrices of layers are streamed */
};

/* Groups the parameters of a list. The caller keeps owning list and precision. */
void masters_open(struct masters *masters, const struct parameter *list,
                  const struct precision *precision, struct masters_offload offload);
void masters_close(struct masters *masters);

/* Drops the frozen groups and streams none, for a copy of the rest on the host. */
void masters_drop_frozen(struct masters *masters);

/* Lays out the master weights and frozen weights, with offloaded and streamed ones in `host`.
 * Called once to measure and once to assign addresses. */
void masters_layout(struct masters *masters, struct arena *arena, struct arena *host);

/* The same for the 16-bit copies. */
void masters_layout_copies(struct masters *masters, struct arena *arena);

/* Returns the tensor that operations read for a parameter, with rows of padding. */
struct tensor masters_read_tensor(const struct masters *masters, const struct parameter *parameter);

/* Returns the master weights of a parameter, with rows of padding: in fp32, or if they are split
 * their upper halves, with *remainder set to the lower ones (else NULL). Frozen weights may be in
 * 16 bit. */
struct tensor masters_tensor(const struct masters *masters, const struct parameter *parameter,
                             int16_t **remainder);

/* Copy elements first .. first + count of the flat order to or from fp32 on the host. Call
 * masters_refresh after uploads, before operations read the weights. be is NULL to download master
 * weights that are in host memory. A parameter is uploaded whole, or in pieces, by several threads
 * for a CPU, between masters_upload_begin and _end; this is needed only for quantized ones, whose
 * pieces are collected on the host. These fail if there is no memory for one parameter in fp32.
 * scales: optional, those that the values are stored with, masters_scales of them. */
void masters_download(const struct masters *masters, struct backend *be, float *values,
                      int64_t first, int64_t count);
void masters_upload(const struct masters *masters, struct backend *be, const float *values,
                    int64_t first, int64_t count);
int masters_upload_begin(struct masters *masters, const struct parameter *parameter,
                         struct error *error);
void masters_upload_end(struct masters *masters, struct backend *be,
                        const struct parameter *parameter, const float *scales);

/* Returns the number of scales of a parameter that is stored with one level of them, each of *block
 * elements; 0 for others. */
int64_t masters_scales(const struct masters *masters, const struct parameter *parameter,
                       int64_t *block);

/* Updates the 16-bit copies of KEPT groups from the master weights. */
void masters_refresh(const struct masters *masters, struct backend *be);

/* Called before operations read the matrices of a layer: waits on the device for a streamed layer,
 * and begins to copy layer `next` if it is streamed. The layer is valid until the next call. Every
 * `next` must be the layer of the next call; one that does not exist is ignored. */
void masters_ready(struct masters *masters, struct backend *be, int64_t layer, int64_t next);

/* Copies the CAST matrices that a site of a ready layer (-1: of the model) reads to scratch, until
 * the next call. All linear layers share that memory, so it stays in caches. */
void masters_cast(const struct masters *masters, struct backend *be, int64_t layer,
                  enum autocast_site site);

/* Lists the quantized matrices that masters_cast would dequantize; false if there are none. */
bool masters_stored(const struct masters *masters, struct stored_matrices *stored, int64_t layer,
                    enum autocast_site site);
