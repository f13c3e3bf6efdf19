/* Audit of Muon's iteration: how far its results are from orthogonal, and from those in fp32, for
 * each dtype in which its operands can be. */
#pragma once

#include "data/util/error.h"
#include "model/core/trainer.h"

struct cJSON;

/* Orthogonalizes the momentum of all matrices of the transformer blocks, after a step of a trainer
 * with Muon, in each dtype. Sets *rows to an array for the report (report.h), which the caller
 * deletes: {"name", "kind", "rows", "columns", then for each dtype {"defect", "difference"}}.
 * defect: |O O' - I| / |I|, where O has orthonormal rows if it is 0; difference: |O - O in fp32| /
 * |O in fp32|. Norms are roots of sums of squares. */
int audit_muon(struct cJSON **rows, struct trainer *trainer, struct error *error);
