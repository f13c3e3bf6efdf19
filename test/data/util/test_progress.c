#include "data/util/progress.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void expect_line(int width, double done, double total, double seconds,
                        const char *expected) {
    char line[PROGRESS_LINE_MAX];
    progress_line(line, width, (uint64_t)done, (uint64_t)total, seconds);
    cr_expect_str_eq(line, expected);
}

Test(progress, the_line) {
    expect_line(52, 1.2e9, 3.5e9, 30, "##----- 34 % | 1.2 GB of 3.5 GB | 40 MB/s | 58s left");
    expect_line(79, 0, 20, 0,
                "-------------------- 0 % | 0 bytes of 20 bytes | 0 bytes/s | 0s left");
    expect_line(79, 2000, 2000, 1,
                "#################### 100 % | 2.0 kB of 2.0 kB | 2.0 kB/s | 0s left");
    expect_line(79, 3000, 2000, 1,
                "#################### 100 % | 3.0 kB of 2.0 kB | 3.0 kB/s | 0s left");
    expect_line(79, 1e9, 100e9, 100,
                "-------------------- 1 % | 1.0 GB of 100 GB | 10 MB/s | 2h 45m left");
    expect_line(79, 1e9, 1e13, 1000,
                "-------------------- 0 % | 1.0 GB of 10 TB | 1.0 MB/s | 115d 17h left");
}

Test(progress, the_length_may_be_unknown) {
    expect_line(79, 123456789, 0, 3, "123 MB | 41 MB/s");
    expect_line(79, 0, 0, 0, "0 bytes | 0 bytes/s");
}

Test(progress, a_line_is_never_too_wide) {
    char line[PROGRESS_LINE_MAX];
    for (int width = 20; width <= 300; width++)
        for (double total = 0; total < 1e19; total = total * 7 + 1)
            for (double done = 0; done < 1e19; done = done * 11 + 1) {
                progress_line(line, width, (uint64_t)done, (uint64_t)total, 1e-9);
                cr_assert_leq((int)strlen(line), width < 80 ? width : 80);
            }
}

Test(progress, sizes) {
    char text[16];
    cr_expect_str_eq(progress_bytes(text, 0), "0 bytes");
    cr_expect_str_eq(progress_bytes(text, 999), "999 bytes");
    cr_expect_str_eq(progress_bytes(text, 1000), "1.0 kB");
    cr_expect_str_eq(progress_bytes(text, 9960), "10 kB");
    cr_expect_str_eq(progress_bytes(text, 999600), "1.0 MB");
    cr_expect_str_eq(progress_bytes(text, 3.54e9), "3.5 GB");
    cr_expect_str_eq(progress_bytes(text, 1.8e19), "18000000 TB");
}

Test(progress, nothing_without_a_terminal) {
    FILE *file = tmpfile();
    struct progress progress;
    setenv("TERM", "xterm", 1);
    progress_open(&progress, file, 100);
    progress.drawn = 0;
    progress_show(&progress, 0);
    progress_erase(&progress);
    fflush(file);
    cr_assert_eq(ftell(file), 0);
    fclose(file);
}

/* A pseudoterminal, whose other end receives the output. */
Test(progress, is_redrawn_and_erased_on_a_terminal) {
    const int other = posix_openpt(O_RDWR | O_NOCTTY);
    if (other < 0 || grantpt(other) || unlockpt(other)) cr_skip("no terminals here");
    FILE *file = fopen(ptsname(other), "w");
    cr_assert_not_null(file);
    fcntl(other, F_SETFL, O_NONBLOCK);
    char text[4096] = "";
    struct progress progress;
    setenv("TERM", "dumb", 1);
    progress_open(&progress, file, 1000);
    progress.drawn -= 10;
    progress_show(&progress, 0);
    cr_expect_eq(read(other, text, sizeof text), -1, "a dumb terminal");

    setenv("TERM", "xterm", 1);
    progress_open(&progress, file, 1000);
    progress.read = 600;
    progress.finished = 200;
    progress_show(&progress, 0.5);
    cr_expect_eq(read(other, text, sizeof text), -1, "not at once");
    progress.drawn -= 10;
    for (int i = 0; i < 20; i++) progress_show(&progress, 0.5);
    ssize_t got = read(other, text, sizeof text - 1);
    cr_assert_gt(got, 0);
    text[got] = '\0';
    cr_expect_eq(text[0], '\r');
    cr_expect_not_null(strstr(text, "######------------ 40 % | 400 bytes of 1.0 kB | "), "%s",
                       text);
    cr_expect_null(strchr(text + 1, '\r'), "drawn once: %s", text);
    progress_erase(&progress);
    got = read(other, text, sizeof text - 1);
    cr_assert_gt(got, 0);
    text[got] = '\0';
    cr_expect_str_eq(text, "\r\033[K");
    progress_erase(&progress);
    cr_expect_eq(read(other, text, sizeof text), -1, "erased once");
    fclose(file);
    close(other);
}
