#include "model/plan/setup_trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/printed.h"
#include "model/io/run_setup.h"
#include "model/plan/memory_text.h"

/* Replaces error by its first line, which names the missing amount, and advice. The search uses a
 * second backend without trials, because planning on the trainer's may time matmuls. */
static void add_advice(const struct config *config, struct error *error) {
    struct backend be;
    struct memory_advice advice;
    struct printed message;
    struct error ignored;
    if (setup_backend(&be, config, NULL, NULL, &ignored)) return;
    int status = memory_advise(&advice, config, &be, backend_available(&be), &ignored);
    backend_close(&be);
    if (status < 0 || printed_open(&message)) return;
    fprintf(message.out, "%.*s\n", (int)strcspn(error->text, "\n"), error->text);
    memory_print_advice(message.out, &advice, status);
    if (printed_close(&message)) return;
    fail(error, "%.*s", (int)message.size - 1, message.text); /* without the last line break */
    free(message.text);
}

int setup_trainer(struct trainer *trainer, const struct config *config,
                  const struct precision *precision, struct backend *be, struct error *error) {
    if (trainer_open(trainer, config, precision, be, TRAINER_EMPTY, error) == 0) return 0;
    size_t needed = memory_total(&trainer->gpt.memory);
    trainer_close(trainer);
    if (needed > backend_available(be)) add_advice(config, error);
    return -1;
}
