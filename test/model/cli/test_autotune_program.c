/* Autotune as ./train uses it: by default on GPUs, here the emulated one, and not on CPUs. */
#include "test/model/cli/program_fixture.h"

TestSuite(autotune_program, .init = set_up, .fini = remove_folder);

#define SHORT "--config|tiny.json|--set|train.steps=4|--set|checkpoint.every=2"
#define CPU   SHORT "|--device|cpu"

static const char *const timed_line = "  autotune   ";

Test(autotune_program, cpus_are_not_tuned_by_default) {
    expect_exit(CPU, 0);
    cr_expect_null(strstr(out_text, timed_line), "%s", out_text);
    cr_expect_not(exists("a/run/products.txt") || exists("cache"));
    expect_exit(CPU "|--set|name=on|--set|autotune=true", 0);
    cr_expect(exists("a/on/products.txt"));
    cr_expect_not(exists("cache"), "CPUs have no store");
}

#ifdef EMULATED
static void expect_same_weights(const char *a, const char *b) {
    char left[100], right[100];
    snprintf(left, sizeof left, "a/%s/checkpoints/step-00000004/model.safetensors", a);
    snprintf(right, sizeof right, "a/%s/checkpoints/step-00000004/model.safetensors", b);
    expect_same_file(left, right);
}

Test(autotune_program, gpus_are_tuned_once) {
    expect_exit(SHORT, 0);
    cr_expect(strstr(out_text, timed_line) && strstr(out_text, " matmuls timed in "), "%s",
              out_text);
    cr_expect_null(strstr(out_text, "left to the library"), "%s", out_text);
    cr_expect(exists("a/run/products.txt"));
    cr_expect_eq(strlen(names_in("cache/mantissa", "products")) > 0, 1);
    expect_exit(SHORT "|--set|name=second", 0);
    cr_expect_null(strstr(out_text, timed_line), "%s", out_text);
    expect_same_weights("run", "second");
    expect_exit(SHORT "|--set|name=off|--set|autotune=false", 0);
    cr_expect_null(strstr(out_text, timed_line), "%s", out_text);
    cr_expect_not(exists("a/off/products.txt"));
}

Test(autotune_program, without_time_a_line_says_so) {
    expect_exit(SHORT "|--set|autotune_seconds=0|--set|name=none", 0);
    cr_expect(strstr(out_text, "0 matmuls timed in 0.0 s, ") &&
                  strstr(out_text, " left to the library (autotune_seconds is 0)"),
              "%s", out_text);
    cr_expect_str_eq(names_in("cache/mantissa", "products"), "");
    expect_exit(SHORT "|--set|autotune=off|--set|name=off", 0);
    expect_same_weights("none", "off");
}

Test(autotune_program, a_store_that_cannot_be_written_gives_a_note) {
    write_file("cache", "a file");
    expect_exit(SHORT, 0);
    const char *note = strstr(error_text, "note: cannot create the directory");
    cr_expect(note && !strstr(note + 1, "note: cannot"), "%s", error_text);
    cr_expect_not_null(strstr(out_text, timed_line));
}

/* The run's own file gives the bits of the run without a pause, also after the store is lost. */
Test(autotune_program, resumed_runs_repeat_their_choices) {
    expect_exit(SHORT, 0);
    expect_exit(SHORT "|--set|name=parts|--set|train.minutes=1e-6", 0);
    cr_assert_eq(directory_remove(in_folder("cache"), &error), 0);
    expect_exit(SHORT "|--set|name=parts|--resume", 0);
    cr_expect_null(strstr(out_text, timed_line), "%s", out_text);
    expect_same_weights("run", "parts");
}

/* The algorithms of the other device are ignored, not an error. */
Test(autotune_program, runs_resume_on_the_other_device) {
    expect_exit(CPU "|--set|autotune=true|--set|train.minutes=1e-6", 0);
    expect_exit(SHORT "|--resume", 0);
    cr_expect_not_null(strstr(out_text, timed_line), "%s", out_text);
    expect_exit(SHORT "|--set|name=gpu|--set|train.minutes=1e-6", 0);
    expect_exit(CPU "|--set|name=gpu|--set|autotune=true|--resume", 0);
    cr_expect(exists("a/gpu/checkpoints/step-00000004/model.safetensors"));
}
#endif
