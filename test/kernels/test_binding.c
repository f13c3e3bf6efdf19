#include "kernels/comm/binding.h"

#include <criterion/criterion.h>
#include <sched.h>

#include "test/scratch.h"

TestSuite(binding, .init = make_folder, .fini = remove_folder);

static cpu_set_t cores_now(void) {
    cpu_set_t cores;
    cr_assert_eq(sched_getaffinity(0, sizeof cores, &cores), 0);
    return cores;
}

static int first_core(void) {
    cpu_set_t cores = cores_now();
    int core = 0;
    while (!CPU_ISSET((size_t)core, &cores)) core++;
    return core;
}

/* Writes the list of cores beside the only device of a machine. */
static void make_machine(const char *list) {
    struct error message;
    cr_assert_eq(directory_create(in_folder("bus/pci/devices/0000:3b:00.0"), &message), 0, "%s",
                 message.text);
    FILE *file = fopen(in_folder("bus/pci/devices/0000:3b:00.0/local_cpulist"), "w");
    fputs(list, file);
    fclose(file);
}

Test(binding, takes_the_cores_beside_the_gpu) {
    char list[64];
    int core = first_core();
    snprintf(list, sizeof list, "%d-%d,100000\n", core, core);
    make_machine(list);
    cr_expect(binding_near("0000:3B:00.0", folder));
    cpu_set_t cores = cores_now();
    cr_expect_eq(CPU_COUNT(&cores), 1);
    cr_expect(CPU_ISSET((size_t)core, &cores));
}

/* A list of all cores leaves those that the launcher chose. */
Test(binding, keeps_to_the_launcher) {
    cpu_set_t one, before = cores_now();
    CPU_ZERO(&one);
    CPU_SET((size_t)first_core(), &one);
    cr_assert_eq(sched_setaffinity(0, sizeof one, &one), 0);
    make_machine("0-1023\n");
    cr_expect(binding_near("0000:3B:00.0", folder));
    cpu_set_t cores = cores_now();
    cr_expect(CPU_EQUAL(&cores, &one));
    sched_setaffinity(0, sizeof before, &before);
}

Test(binding, changes_nothing_without_topology_information) {
    static const char *const lists[] = {"\n", "", "1-\n", "a\n", "0;1\n", "100000\n"};
    cpu_set_t before = cores_now();
    cr_expect_not(binding_near("0000:3B:00.0", folder), "no such device");
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        make_machine(lists[i]);
        cr_expect_not(binding_near("0000:3B:00.0", folder), "\"%s\"", lists[i]);
        cpu_set_t cores = cores_now();
        cr_expect(CPU_EQUAL(&cores, &before), "\"%s\"", lists[i]);
    }
}
