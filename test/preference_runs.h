/* The objectives of the fixtures of preference tuning: RUNS of test/golden/preference_losses.py. */
#pragma once

#include "kernels/preference_args.h"

static const struct preference_run {
    const char *name;
    struct preference_rule rule;
} preference_runs[] = {
    {"dpo", {PREFERENCE_DPO, .beta = 0.12f}},
    {"dpo_nll", {PREFERENCE_DPO, .beta = 0.15f, .nll_weight = 0.5f}},
    {"dpo_smoothed", {PREFERENCE_DPO, .beta = 0.12f, .label_smoothing = 0.15f}},
    {"ipo", {PREFERENCE_IPO, .beta = 0.2f}},
    {"orpo", {PREFERENCE_ORPO, .beta = 0.25f, .nll_weight = 1}},
    {"simpo", {PREFERENCE_SIMPO, .beta = 2.2f, .gamma = 0.7f}},
    {"simpo_nll",
     {PREFERENCE_SIMPO, .beta = 1.25f, .gamma = 0.4f, .nll_weight = 1, .label_smoothing = 0.05f}},
    {"kto",
     {PREFERENCE_KTO, .beta = 0.13f, .desirable_weight = 1.25f, .undesirable_weight = 0.75f,
      .nll_weight = 3 /* which KTO does not read */}},
};
enum { PREFERENCE_RUNS = sizeof preference_runs / sizeof *preference_runs };
