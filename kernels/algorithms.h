/* Algorithms that autotune chose for matmuls, by timing. Two algorithms add in different orders, so
 * a resumed run must reuse its algorithms to give the same bits: a file in the run's directory has
 * those in use. A store in the user's cache saves later runs the trials. Rank 0 reads the
 * files and runs the trials. The other ranks receive its algorithms.
 *
 * A matmul and its algorithm are texts that the backend defines. A file has a title, the format and
 * everything that the algorithms depend on, and a line for each matmul. The first word of a title
 * is always the same:
 *
 *     mantissa algorithms, format 3, cublasLt 130100, NVIDIA H200
 *     a=bf16 b=bf16 out=bf16 m=1024 n=768 ... epilogue=bias algorithm=0000000000000042... */
#pragma once

#include "kernels/backend.h"

enum { ALGORITHM_MAX = 160, ALGORITHM_LINE_MAX = 512 };

/* Opens the table, and reads options->algorithms and the store: the file store_name, NULL for none,
 * in options->store. A file with another title, as of a run that resumes on another device, is
 * ignored, since all is timed again; so is a damaged store. Returns NULL with a message. */
struct algorithms *algorithms_open(const char *title, const char *store_name,
                                   const struct backend_options *options, struct error *error);
void algorithms_close(struct algorithms *algorithms);

/* Returns the algorithm of a matmul, or NULL. Stored ones are used only while planning, since the
 * run's file is written afterwards; one that is found becomes the run's and is in that file. The
 * result is valid until the next algorithms_add. */
const char *algorithms_find(struct algorithms *algorithms, const char *matmul, bool planning);

/* Sets the algorithm of a matmul. Only timed ones are stored for later runs. */
void algorithms_add(struct algorithms *algorithms, const char *matmul, const char *algorithm,
                    bool timed);

/* Returns true while the time for trials is not over, which begins with the first call. After each
 * trial, algorithms_trial_ended takes the time. */
bool algorithms_have_time(struct algorithms *algorithms);
void algorithms_trial_ended(struct algorithms *algorithms);
