/* test_crash.c - the report of a fatal signal, out of a process of its own. */
#include "tests/c/test.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/crash.h"
#include "core/base/thread.h"

static char report[1 << 16];

/* Runs fn in a child that has the handlers, on a thread of its own unless alone: its stderr,
 * and the signal that it died of. */
static int die_of(void *(*fn)(void *), bool alone)
{
    const struct rlimit none = {0, 0};
    pthread_t t;
    int out[2], status = 0;
    size_t n = 0;
    ssize_t got;
    pid_t pid;

    assert_int_equal(pipe(out), 0);
    pid = fork();
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &none);
        setenv("XDG_STATE_HOME", "/dev/null", 1); /* no file is left */
        unsetenv("STATE_DIRECTORY");
        dup2(out[1], STDERR_FILENO);
        mc_crash_install("0.1");
        if (alone)
            fn(NULL);
        else if (mc_thread_run(&t, fn, NULL) == 0)
            pthread_join(t, NULL);
        _exit(0);
    }
    close(out[1]);
    while ((got = read(out[0], report + n, sizeof report - 1 - n)) > 0)
        n += (size_t)got;
    report[n] = 0;
    close(out[0]);
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* More stack than there is; what it gives keeps the compiler from making a loop of it. */
static int deeper(const volatile char *above)
{
    volatile char here[512];

    here[0] = above ? *above : 1;
    return here[0] ? deeper(here) + here[0] : 0;
}

static void *overflow(void *arg)
{
    (void)arg;
    return deeper(NULL) ? report : NULL;
}

static void *write_nowhere(void *arg)
{
    static volatile uintptr_t nowhere = 16;

    (void)arg;
    *(volatile int *)nowhere = 1;
    return NULL;
}

static void crash_a_full_stack_leaves_a_report(void **state)
{
    (void)state;
#ifdef MC_SANITIZE
    print_message("sanitizers have their own report\n");
    skip();
#endif
    for (int alone = 0; alone < 2; alone++) {
        assert_int_equal(die_of(overflow, alone), SIGSEGV);
        assert_non_null(strstr(report, "mascon 0.1 crashed\n"));
        assert_non_null(strstr(report, "signal      SIGSEGV at 0x"));
        assert_non_null(strstr(report, ": the stack is full\n"));
        assert_non_null(strstr(report, "frames\n"));
    }
}

static void crash_another_fault_is_no_full_stack(void **state)
{
    (void)state;
#ifdef MC_SANITIZE
    print_message("sanitizers have their own report\n");
    skip();
#endif
    assert_int_equal(die_of(write_nowhere, false), SIGSEGV);
    assert_non_null(strstr(report, "signal      SIGSEGV at 0x10\n"));
    assert_null(strstr(report, "the stack is full"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(crash_a_full_stack_leaves_a_report),
    cmocka_unit_test(crash_another_fault_is_no_full_stack),
};

MC_TEST_MAIN(tests)
