/* ./train with Hugging Face models and tokenizers. */
#include "data/util/files.h"
#include "test/model/cli/program_fixture.h"

#include "test/data/tokenize/byte_ranks.h"

TestSuite(program_models, .init = set_up, .fini = remove_folder);

static void expect_text(const char *text, const char *part) {
    cr_expect_not_null(strstr(text, part), "\"%s\" is not in: %s", part, text);
}

/* Returns the peak memory, in MB, of all programs started so far. */
static double children_mb(void) {
    struct rusage usage;
    cr_assert_eq(getrusage(RUSAGE_CHILDREN, &usage), 0);
    return (double)usage.ru_maxrss * 1024 / 1e6;
}

/* The memory of a model with a long context depends on the text, not on n_positions: keys and
 * values of all positions alone would take 300 MB. */
Test(program_models, a_long_context_costs_nothing_until_it_is_used) {
#define ROPE "--config|tiny.json|--set|model.positions=rope|--set|sample.every=0"
    static char text[PROGRAM_OUTPUT_MAX];
    expect_exit(ROPE "|--set|model.n_positions=100|--set|name=short", 0);
    expect_exit("--export|short|--dtype|fp32|--from|a/short", 0);
    expect_exit("--sample|the cat|--from|short|--tokens|70|--temperature|0", 0);
    snprintf(text, sizeof text, "%s", out_text);
    double before = children_mb();
    expect_exit(ROPE "|--set|model.n_positions=524288|--set|name=long", 0);
    expect_exit("--export|long|--dtype|fp32|--from|a/long", 0);
    expect_exit("--sample|the cat|--from|long|--tokens|70|--temperature|0", 0);
    cr_expect_str_eq(out_text, text);
    expect_exit("--eval|--data|tiny_train_*.bin|--from|long|--set|train.micro_batch_size=1", 0);
    expect_text(out_text, ": 6 sequences of 1024 tokens");
    cr_expect_lt(children_mb(), before + 30);
    /* A run of mantissa was trained on data.seq_len positions, which stay its context. */
    expect_exit("--sample|the cat|--from|a/long|--tokens|70|--temperature|0|--set|precision=fp32",
                0);
    snprintf(text, sizeof text, "%s", out_text);
    expect_exit("--sample|the cat|--from|long|--tokens|70|--temperature|0|--set|data.seq_len=32|"
                "--set|precision=fp32",
                0);
    cr_expect_str_eq(out_text, text);
}

/* Expects `part` in the file a/WORDnumberREST, or in WORDREST if number < 0. */
static void expect_in_file(const char *word, int number, const char *rest, const char *part) {
    char name[200];
    size_t size;
    if (number < 0) snprintf(name, sizeof name, "%s%s", word, rest);
    else snprintf(name, sizeof name, "a/%s%d%s", word, number, rest);
    char *text = read_whole(name, &size);
    expect_text(text, part);
    free(text);
}

/* The saved config names the kind of tokenizer that was found, not the name in the given config. */
Test(program_models, tokenizers_have_their_own_names) {
    static const char *const kinds[] = {"gpt2", "files"};
    const char *name = getenv("PREPARE") ? getenv("PREPARE") : "./prepare";
    char prepare[FILE_PATH_MAX], vocabulary[FILE_PATH_MAX], command[5 * FILE_PATH_MAX];
    char *ranks = bytes_and(usual_more);
    cr_assert_not_null(realpath(name, prepare), "no program %s: build it or set PREPARE", name);
    cr_assert_not_null(realpath("test/golden/tokenizer/small", vocabulary));
    cr_assert_eq(mkdir(in_folder("files"), 0755), 0);
    write_file("files/tiktoken.json", usual_json);
    write_file("files/ranks.tiktoken", ranks);
    free(ranks);
    snprintf(command, sizeof command,
             "cd %s && cp -r %s gpt2 && for k in gpt2 files; do cat gpt2/* gpt2/* | "
             "%s --tokenizer gpt2:$k --out $k -; done >out.txt 2>&1",
             folder, vocabulary, prepare);
    cr_assert_eq(system(command), 0, "%s", command);
    for (int i = 0; i < 4; i++) {
        char arguments[1000], wanted[40];
        const char *kind = kinds[i % 2];
        snprintf(
            arguments, sizeof arguments,
            "--config|tiny.json|--set|name=%s%d|--set|train.steps=2|--set|sample.every=0|--set|"
            "data.train=%s_train_*.bin|--set|data.val=|--set|eval.every=0|--set|"
            "data.tokenizer=%s|--set|model.vocab_size=1200",
            kind, i, kind, kinds[i / 2]);
        expect_exit(arguments, 0);
        snprintf(wanted, sizeof wanted, "\"tokenizer\": \"%s\"", kind);
        expect_in_file(kind, i, "/config.json", wanted);
        /* Resuming under the other name prints no message about the tokenizer. */
        size_t length = strlen(arguments);
        snprintf(arguments + length, sizeof arguments - length,
                 "|--resume|--set|train.steps=4|--set|data.tokenizer=%s", kinds[1 - i / 2]);
        expect_exit(arguments, 0);
        cr_expect_null(strstr(error_text, "tokenizer"), "%s", error_text);
        cr_expect_null(strstr(out_text, "tokenizer:"), "%s", out_text);
        snprintf(arguments, sizeof arguments, "--sample|the|--tokens|3|--from|a/%s%d", kind, i);
        expect_exit(arguments, 0);
        snprintf(wanted, sizeof wanted, "\"kind\": \"%s\"", kind);
        expect_in_file(kind, -1, "_tokenizer.json", wanted);
    }
}

/* A run names its newest checkpoint, in full training, for adapters and after it has moved. */
Test(program_models, a_run_as_the_model_to_begin_with) {
#define PLAIN "--config|plain.json|--set|eval.every=0|--set|train.steps=2|--set|model.init_from="
    write_file("plain.json", "{\"precision\": \"fp32\", \"run_dir\": \"a\", \"data\": {\"train\": "
                             "\"tiny_train_*.bin\", \"seq_len\": 32}}");
    expect_exit("--config|tiny.json|--set|sample.every=0", 0);
    expect_exit(PLAIN "a/run|--set|name=more", 0);
    expect_in_file("a/more", -1, "/config.json",
                   "\"init_from\": \"a/run/checkpoints/step-00000024\"");
    expect_exit(PLAIN "a/run|--set|name=lora|--set|adapter.type=lora", 0);
    expect_error(PLAIN "a/lora|--set|name=none", 2,
                 "model.init_from: a/lora/checkpoints/step-00000002 holds adapters, not a model\n"
                 "make a model of them: ./train --export DIR --merge --from a/lora/checkpoints/");
    expect_exit(PLAIN "a/run|--set|name=next|--set|adapter.init_from=a/lora", 0);
    expect_in_file("a/next", -1, "/config.json",
                   "\"init_from\": \"a/lora/checkpoints/step-00000002\"");
    cr_assert_eq(rename(in_folder("a/run"), in_folder("moved")), 0);
    expect_error("--export|m|--merge|--from|a/lora", 1, "name its folder by --base DIR");
    expect_error("--sample|x|--from|a/lora", 1, "name its folder by --base DIR");
    expect_exit("--export|m|--merge|--from|a/lora|--base|moved", 0);
    expect_exit("--sample|x|--tokens|3|--from|a/lora|--base|moved", 0);
    expect_exit(PLAIN "moved|--resume|--set|name=lora|--set|adapter.type=lora|--set|train.steps=3",
                0);
    /* Another model than the one that the adapters were trained on. */
    expect_error("--export|n|--merge|--from|a/lora|--base|a/more", 1, "is another model than");
    expect_error("--export|n|--from|a/lora|--set|seed=2", 2, "--export\ntakes --base DIR");
    expect_error("--sample|x|--from|a/lora|--base|a/more", 1, "name that one by --base DIR");
    cr_expect(!exists("n"));
    cr_assert_eq(mkdir(in_folder("a/empty"), 0755), 0);
    cr_assert_eq(mkdir(in_folder("a/empty/checkpoints"), 0755), 0);
    expect_error(PLAIN "a/empty|--set|name=none", 2, "model.init_from: a/empty has no complete");
    expect_error(PLAIN "moved|--set|name=none|--set|adapter.init_from=a/empty", 2,
                 "adapter.init_from: a/empty has no complete");
}
