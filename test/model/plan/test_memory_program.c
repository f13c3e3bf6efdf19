/* The program ./train --dry-run with its memory options. */
#include "test/model/cli/program_fixture.h"

#include "test/match.h"

TestSuite(memory_program, .init = set_up, .fini = remove_folder);

#define TINY "--config|tiny.json"
/* Large enough that options make a difference; a dry run allocates nothing. */
#define LARGE                                                                                   \
    TINY "|--dry-run|--set|precision=bf16|--set|model.n_embd=1024|--set|model.n_head=16|--set|" \
         "model.n_layer=24|--set|train.micro_batch_size=64"

/* The table's total in the config's own precision is that of the banner. */
Test(memory_program, table_matches_the_banner) {
    double banner, fp32, bf16;
    expect_exit(LARGE "|--set|train.recompute=gelu", 0);
    const char *line = strstr(out_text, "\n  memory "), *table = strstr(out_text, "\ntotal ");
    cr_assert(line && table);
    cr_assert_eq(sscanf(line, "\n  memory %lf MiB", &banner), 1);
    cr_assert_eq(sscanf(table, "\ntotal %lf %lf", &fp32, &bf16), 2);
    cr_expect(bf16 > banner - 1 && bf16 < banner + 1, "%g, %g", banner, bf16);
    cr_expect_gt(fp32, bf16);
}

/* The run fits with the printed flags. */
Test(memory_program, its_advice_can_be_pasted) {
    char arguments[1000];
    expect_exit(LARGE "|--memory|6", 0);
    expect_match(out_text,
                 "\nThis run does not fit: it takes [0-9.]+ MiB, and there are 6144.0 MiB");
    const char *advice = strstr(out_text, "\n\n  --set ");
    cr_assert_not_null(advice, "%s", out_text);
    size_t used = (size_t)snprintf(arguments, sizeof arguments, LARGE "|--memory|6");
    for (const char *word = strstr(advice, "--set"); word; word = strstr(word + 1, "--set"))
        used += (size_t)snprintf(arguments + used, sizeof arguments - used, "|--set|%.*s",
                                 (int)strcspn(word + 6, " \n"), word + 6);
    expect_exit(arguments, 0);
    expect_match(out_text, "\nThis run fits: it takes [0-9.]+ MiB of 6144.0 MiB\\.\n$");
}

/* A plan for a terabyte takes little time and memory. */
Test(memory_program, sizes_are_quick_and_take_no_memory) {
    expect_exit(TINY "|--dry-run|--sizes|--memory|2000", 0);
    expect_match(out_text, "\nllama-2-70b +69.0 G( +[0-9.]+){7}\n");
    expect_match(out_text, "\nllama-2-70b +[1-9][0-9]* +[1-9][0-9]* +[1-9][0-9]* +[1-9][0-9]*\n");
    expect_match(out_text, "\ngpt2 +124 M ");
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    cr_expect_lt(usage.ru_maxrss, 400 << 10, "%ld KiB", usage.ru_maxrss);
    cr_expect_lt(usage.ru_utime.tv_sec, 10);
#endif
}

/* --fit prints only its answer; its exit status is 0 if there is one. */
Test(memory_program, fit) {
    expect_exit(LARGE "|--fit=5", 0);
    expect_match(out_text, "^This run does not fit: it takes [^\n]*\nWith these it takes ");
    expect_exit(LARGE "|--fit|0.1", 1);
    expect_match(out_text, "^This run does not fit: [^\n]*\nNo option makes it fit");
    cr_expect_str_eq(error_text, "");
    expect_exit(TINY "|--dry-run|--fit|--sizes", 0);
    expect_match(out_text, "^This run fits: [^\n]* \\(free here\\)\\.\n\nBytes per parameter");
    expect_match(out_text, "\nTheir largest micro-batch in [^\n]* \\(free here\\)\n");
}

/* Micro-batches of 2 M tokens in a deep and narrow model need terabytes; smaller ones fit. */
#define DEEP                                                                                      \
    TINY "|--set|precision=bf16|--set|model.n_embd=64|--set|model.n_layer=256|--set|train.micro_" \
         "batch_size=65536|--set|model.n_head=1"

/* A run without enough memory names the flags with which it fits, or reports that none help. */
Test(memory_program, a_run_too_large_names_options) {
    static const char *const commands[] = {DEEP, DEEP "|--profile"};
    for (int i = 0; i < 2; i++) {
        expect_error(commands[i], 1, "train: not enough memory: ");
        expect_match(error_text, " MiB available\nWith these it takes [0-9.]+ [GM]iB, "
                                 "[^\n]*:\n --set train.recompute=layer");
        expect_match(error_text, " --set [a-z_.]+=[a-z0-9]+\n$");
    }
    expect_error(TINY "|--set|model.n_layer=96|--set|model.n_head=96|--set|model.n_embd=24576", 1,
                 "not enough memory");
    expect_match(error_text, "\nNo option makes it fit: the least is [0-9.]+ GiB, ");
}
