#include "model/plan/rank_text.h"

#include <inttypes.h>

#include "data/util/printed.h"
#include "model/config/config_keys.h"
#include "data/util/table.h"
#include "model/plan/memory_text.h"

static void print_memory(FILE *out, const struct rank_estimate *estimate) {
    static const char *const names[] = {"alone", "each rank"};
    const struct memory_plan plans[] = {estimate->alone, estimate->each};
    char heading[100];
    snprintf(heading, sizeof heading, "Memory of each of %d ranks, without what MPI and NCCL take",
             estimate->machine.ranks);
    memory_print_plans(out, heading, plans, names, 2, 0);
}

static void traffic_row(struct table *table, const char *name, double bytes, double sending,
                        double waiting) {
    table_cell(table, "%s", name);
    table_cell(table, "%.1f", bytes / 1e6);
    table_cell(table, "%.2f", 1e3 * sending);
    table_cell(table, "%.2f", 1e3 * waiting);
    table_cell(table, "%.1f %%", 100 * rank_hidden(sending, waiting));
}

static void print_traffic(FILE *out, const struct rank_times *times) {
    static const char *const names[RANK_TRAFFIC] = {
        [RANK_GRADIENTS] = "gradients", [RANK_SUMS] = "norm and loss", [RANK_WEIGHTS] = "weights"};
    struct table table = {0};
    double bytes = 0, sending = 0, waiting = 0;
    table_column(&table, "", TABLE_LEFT);
    table_columns(&table, TABLE_RIGHT, "MB sent", "ms", "ms waiting", "hidden", NULL);
    for (int i = 0; i < RANK_TRAFFIC; i++) {
        traffic_row(&table, names[i], times->bytes[i], times->sending[i], times->waiting[i]);
        bytes += times->bytes[i], sending += times->sending[i], waiting += times->waiting[i];
    }
    traffic_row(&table, "all", bytes, sending, waiting);
    fprintf(out,
            "\nData that each rank sends in a step, and the part hidden behind computation\n\n");
    table_print(out, &table);
}

static void print_speed(FILE *out, const struct rank_estimate *estimate) {
    const struct config *config = &estimate->config;
    const struct rank_machine *machine = &estimate->machine;
    const struct rank_times *times = &estimate->times;
    double tokens_per_s = estimate->step_tokens / times->step;
    char all[COUNT_TEXT_MAX], each[COUNT_TEXT_MAX];
    fprintf(out,
            "\n%d ranks x %" PRId64 " micro-batches x %" PRId64 " sequences x %" PRId64
            " tokens = %.0f tokens a step\n"
            "step: %.2f ms alone, %.2f ms with the others: efficiency %.1f %%\n"
            "%s tokens/s, %s per rank\n",
            machine->ranks, config->train.grad_accum_steps, config->train.micro_batch_size,
            config->data.seq_len, estimate->step_tokens, 1e3 * times->alone, 1e3 * times->step,
            100 * rank_efficiency(times), count_text(all, tokens_per_s),
            count_text(each, tokens_per_s / machine->ranks));
    fprintf(out,
            "assumed: %g TFLOPS a rank (--tflops), %g GB/s from rank to rank (--link-gbs),\n"
            "%g GB/s of memory for the update, %g us for each hop around the ring\n",
            machine->flops / 1e12, machine->link / 1e9, machine->memory / 1e9,
            1e6 * machine->latency);
}

int rank_print(FILE *out, const struct rank_request *request, struct error *error) {
    struct rank_estimate estimate;
    int status = rank_estimate_open(&estimate, request, error);
    if (status == 0) {
        fprintf(out, "\nOn %d ranks: an estimate, nothing of it is measured\n", request->ranks);
        print_memory(out, &estimate);
        print_traffic(out, &estimate.times);
        print_speed(out, &estimate);
    }
    rank_estimate_close(&estimate);
    return status;
}
