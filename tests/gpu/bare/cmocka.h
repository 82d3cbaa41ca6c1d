/* cmocka.h - as much of cmocka as the CUDA tests use, for a machine that has a compiler,
 * CUDA and libc only (make test-gpu). Memory that a test takes, its stack included, is
 * pinned memory of the backend under test, which a card reaches where it is. A skip is a
 * failure. Functions: bare.c. THREAD: the one that bare_run makes. */
#ifndef MC_BARE_CMOCKA_H
#define MC_BARE_CMOCKA_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};
#define cmocka_unit_test(f) {#f, f}
#define cmocka_set_test_filter(pattern) bare_filter(pattern)
#define cmocka_run_group_tests_name(name, tests, before, after) \
    bare_run(name, tests, (int)(sizeof(tests) / sizeof(tests)[0]))

void bare_filter(const char *pattern); /* the start of the names that run */
int bare_run(const char *name, const struct CMUnitTest *tests, int n);
void bare_fail(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4), noreturn));

#define fail_msg(...) bare_fail(__FILE__, __LINE__, __VA_ARGS__)
#define skip() fail_msg("skips are forbidden here")
#define print_message printf
#define bare_check(ok, text) ((ok) ? (void)0 : fail_msg("%s", text))
#define assert_true(x) bare_check(x, #x)
#define assert_false(x) bare_check(!(x), "not " #x)
#define assert_null(x) bare_check(!(x), #x " is not NULL")
#define assert_non_null(x) bare_check((x) != NULL, #x " is NULL")
#define assert_int_equal(a, b)                                  \
    do {                                                        \
        long long a_ = (long long)(a), b_ = (long long)(b);     \
        if (a_ != b_)                                           \
            fail_msg("%s is %lld, %s is %lld", #a, a_, #b, b_); \
    } while (0)
#define assert_in_range(x, lo, hi) bare_check((x) >= (lo) && (x) <= (hi), #x)
#define assert_memory_equal(a, b, n) bare_check(memcmp(a, b, n) == 0, #a " is not " #b)

void *bare_malloc(size_t n);
void *bare_calloc(size_t n, size_t each);
void *bare_realloc(void *p, size_t n);
void *bare_aligned_alloc(size_t align, size_t n);
void bare_free(void *p);
#define malloc bare_malloc
#define calloc bare_calloc
#define realloc bare_realloc
#define aligned_alloc bare_aligned_alloc
#define free bare_free

#endif
