#include "model/lab/audit/audit_update.h"

#include <math.h>
#include <stdlib.h>

#include <stb/stb_ds.h>

static float rounded(float value, int format) {
    return format == MASTER_BF16 ? f32_from_bf16(bf16_from_f32(value))
                                 : f32_from_f16(f16_from_f32(value));
}

void update_add(struct update *update, const float *before, const float *after, size_t count) {
    for (size_t i = 0; i < count; i++) {
        double change = (double)after[i] - (double)before[i];
        if (change == 0) continue;
        update->changed++;
        update->signal += change * change;
        for (int format = 0; format < MASTER_FORMATS; format++) {
            float master = rounded(before[i], format);
            float moved = rounded((float)((double)master + change), format);
            double wrong = (double)moved - (double)master - change;
            update->lost[format] += moved == master;
            update->noise[format] += wrong * wrong;
        }
    }
}

double update_lost(const struct update *update, int format) {
    return update->changed ? (double)update->lost[format] / (double)update->changed : 0;
}

double update_decibel(const struct update *update, int format) {
    if (update->noise[format] == 0) return INFINITY;
    return 10 * log10(update->signal / update->noise[format]);
}

int audit_update_run(struct audit_update *update, struct subject *subject,
                     struct trainer *reference, struct error *error) {
    const struct gpt *gpt = &reference->gpt;
    struct step_report report;
    if (trainer_begin_step(reference, &subject->text.loader, error)) return -1;
    if (trainer_end_step(reference, &report, error)) return -1;
    *update = (struct audit_update){.step = report.step, .lr = report.lr};
    float *after = malloc((size_t)gpt->count * sizeof *after);
    update->parameters = calloc(arrlenu(gpt->list), sizeof *update->parameters);
    if (!after || !update->parameters) {
        free(after);
        return fail(error, "out of memory for the update of an audit");
    }
    masters_download(&gpt->masters, gpt->be, after, 0, gpt->count);
    update_add(&update->all, subject->masters, after, (size_t)gpt->count);
    for (size_t i = 0; i < arrlenu(gpt->list); i++) {
        int64_t first = gpt->list[i].offset, count = parameter_count(&gpt->list[i]);
        update_add(&update->parameters[i], subject->masters + first, after + first, (size_t)count);
    }
    free(after);
    return 0;
}

void audit_update_free(struct audit_update *update) {
    free(update->parameters);
}
