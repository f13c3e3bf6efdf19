/* The log-probabilities of a reference model (model/core/reference.h) in a file of the run's
 * directory, reference_train.bin or reference_val.bin:
 *
 *     bytes 0 .. 7     "MREF", 1 as a little-endian uint32
 *     bytes 8 .. 15    the number of pairs, a little-endian uint64
 *     bytes 16 .. 207  three SHA-256 digests in hexadecimal: of the pairs' tokens, of the
 *                      reference model's files and the config, and of the values
 *     bytes 208 ..     two fp32 values for each pair, of the chosen and the rejected answer */
#pragma once

#include "data/util/error.h"
#include "model/session/session.h"

/* Provides the log-probabilities of the session's pairs if the objective reads them, from the files
 * or by computing and writing them. Call it before the next step. Only weights before step 0, or
 * adapters on an unchanged model, can compute them: later the files of the run are needed, and it
 * fails without them. Returns RESULT_STOPPED after a signal. */
int session_open_reference(struct session *session, const char *directory, struct error *error);
