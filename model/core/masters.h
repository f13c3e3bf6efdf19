/* The fp32 masters of a model, and the 16-bit values of them that lower operations read, in one of
 * several forms.
 *
 *     FLOAT32  | fp32 |                 operations read the masters as they are
 *     SPLIT    | bf16 | remainder |     operations read the upper half (kernels/rounding.h)
 *     KEPT     | fp32 | 16-bit copy |   an update writes the copy too
 *     CAST     | fp32 |                 a layer is copied to scratch when a pass comes to it
 *
 * Training gives the same bits in all of them. Matrices that are read in 16 bit have the form that
 * the precision says; other matrices are FLOAT32; vectors, a thousandth of all, are KEPT. Neighbors
 * of one form make a group, whose arrays are whole: an update is a pass over each group. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/arena.h"
#include "kernels/backend.h"
#include "model/architecture/parameters.h"
#include "model/core/precision.h"

struct master_group {
    int64_t first, count; /* elements, in the order of the flat arrays */
    bool decay;
    enum master_form form;
    bool offloaded;       /* the remainders are in memory of the host */
    struct tensor master; /* [count] fp32; bf16 if SPLIT */
    int16_t *remainder;   /* [count] if SPLIT, else NULL */
    struct tensor copy;   /* [count] if KEPT */
};

struct masters {
    const struct precision *precision;
    const struct parameter *list;
    struct master_group *groups; /* stb_ds array, in order */
    int64_t scratch_count;       /* elements of scratch */
    struct tensor scratch;       /* the copies of one layer, or of wte, if CAST */
};

/* Groups the parameters of a list; list and precision stay the caller's. With offload, remainders
 * are kept in memory of the host, but for those that the embedding reads. */
void masters_open(struct masters *masters, const struct parameter *list,
                  const struct precision *precision, bool offload);
void masters_close(struct masters *masters);

/* The layout: of the masters, what is offloaded in `host`; then of what there is in 16 bit beside
 * them. Each once on arenas to measure, and once to carve. */
void masters_layout(struct masters *masters, struct arena *arena, struct arena *host);
void masters_layout_copies(struct masters *masters, struct arena *arena);

/* Where operations read a parameter, and where its master is: fp32, or the upper half of a split
 * one, whose remainder is stored in *remainder, else NULL. Rows of padding are part of both. */
struct tensor masters_read_place(const struct masters *masters, const struct parameter *parameter);
struct tensor masters_place(const struct masters *masters, const struct parameter *parameter,
                            int16_t **remainder);

/* Elements first .. first + count of the flat order, as fp32 on the host. What is uploaded has to
 * be followed by masters_refresh before operations read it. Masters that are in memory of the host
 * are read with be NULL. */
void masters_download(const struct masters *masters, struct backend *be, float *values,
                      int64_t first, int64_t count);
void masters_upload(const struct masters *masters, struct backend *be, const float *values,
                    int64_t first, int64_t count);

/* Writes the copies that are kept anew. */
void masters_refresh(const struct masters *masters, struct backend *be);

/* Before operations read matrices of a layer (-1: of the model): copies them, if that is their
 * form. The copies hold until the next call. */
void masters_cast(const struct masters *masters, struct backend *be, int64_t layer);
