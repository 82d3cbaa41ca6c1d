/* test.h - what every C test includes: cmocka and a main with a name filter.
 *
 *   build/test_kv                runs all
 *   build/test_kv 'kv_shared*'   runs those that match */
#ifndef MC_TEST_H
#define MC_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#define MC_TEST_MAIN(tests)                                        \
    int main(int argc, char **argv)                                \
    {                                                              \
        if (argc > 1)                                              \
            cmocka_set_test_filter(argv[1]);                       \
        return cmocka_run_group_tests_name(__FILE__, tests, NULL, NULL); \
    }

/* Fails with the error's text when rc is not 0. */
#define assert_ok(rc, err)                                         \
    do {                                                           \
        if ((rc) != 0)                                             \
            fail_msg("%s: %s", mc_code_name((err).code), (err).text); \
    } while (0)

#endif
