#include "model/lab/audit/audit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "model/lab/audit/audit_muon.h"

static const enum dtype dtypes[] = {[AUDIT_BF16] = DTYPE_BF16, [AUDIT_FP16] = DTYPE_F16};

const char *audit_name(int format) {
    return dtype_name(dtypes[format]);
}

static float rounded(float value, int format) {
    return format == AUDIT_BF16 ? f32_from_bf16(bf16_from_f32(value))
                                : f32_from_f16(f16_from_f32(value));
}

void update_add(struct update *update, const float *before, const float *after, size_t count) {
    for (size_t i = 0; i < count; i++) {
        double change = (double)after[i] - (double)before[i];
        if (change == 0) continue;
        update->changed++;
        update->signal += change * change;
        for (int format = 0; format < AUDIT_FORMATS; format++) {
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

/* Takes one step of the reference. */
static int run_update(struct audit_update *update, struct subject *subject,
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

/* Runs the fp32 reference pass, and one training step of it. */
static int run_reference(struct audit *audit, struct trainer *trainer, struct error *error) {
    struct subject *subject = &audit->subject;
    int status = audit_pass_run(&audit->reference, subject, trainer, NULL, PASS_TRACED, error);
    if (status == 0 && !audit->reference.finite)
        return fail(error,
                    "in fp32 too the loss (%g) or its gradients are not finite: there is nothing "
                    "to audit\nname an earlier checkpoint with --from",
                    audit->reference.loss);
    if (status == 0 && *subject->stop) status = RESULT_STOPPED;
    if (status == 0) status = run_update(&audit->update, subject, trainer, error);
    if (status == 0 && subject->config.optimizer.name == CONFIG_OPTIMIZER_MUON)
        status = audit_muon(&audit->muon, trainer, error);
    return status;
}

int audit_run(struct audit *audit, const struct config *config, const char *from,
              const bool wanted[AUDIT_FORMATS], int repetitions, const volatile sig_atomic_t *stop,
              struct error *error) {
    struct trainer trainer;
    memset(audit, 0, sizeof *audit);
    audit->subject.stop = stop;
    audit->subject.repetitions = repetitions;
    if (subject_open(&audit->subject, &trainer, config, from, error)) return -1;
    int status = run_reference(audit, &trainer, error);
    trainer_close(&trainer);
    for (int i = 0; status == 0 && i < AUDIT_FORMATS; i++)
        if (wanted[i])
            status = audit_format_run(&audit->formats[i], dtypes[i], &audit->subject,
                                      &audit->reference, error);
    return status;
}

void audit_free(struct audit *audit) {
    for (int i = 0; i < AUDIT_FORMATS; i++) audit_format_free(&audit->formats[i]);
    audit_pass_free(&audit->reference);
    free(audit->update.parameters);
    cJSON_Delete(audit->muon);
    subject_close(&audit->subject);
}
