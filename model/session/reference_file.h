/* The log-probabilities of a reference model (model/task/reference.h) in a file of the run's
 * directory, reference_train.bin or reference_val.bin:
 *
 *     bytes 0 .. 7     "MREF", 2 as a little-endian uint32
 *     bytes 8 .. 15    the number of pairs, a little-endian uint64
 *     bytes 16 .. 207  three SHA-256 digests in hexadecimal: of the pairs' tokens, their mask and
 *                      the kind of reference, of that model (model_hash.h), and of the values
 *     bytes 208 ..     two fp32 values for each pair, of the chosen and the rejected answer;
 *                      NaN where a pass that was stopped has not computed them */
#pragma once

#include "data/util/error.h"
#include "model/session/session.h"

/* Provides the log-probabilities of the session's pairs if the objective reads them, from the files
 * or by computing and writing them. Call it before the next step. Only weights before step 0, or
 * those of a base without its adapters, can compute them: otherwise a run that has begun needs its
 * files, and it fails without them. Returns RESULT_STOPPED, and
 * keeps what it has computed, after a signal or at `deadline` (progress_clock(); 0: none). */
int session_open_reference(struct session *session, const char *directory, double deadline,
                           struct error *error);
