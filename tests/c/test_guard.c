/* test_guard.c - files that shrink while they are mapped: an error, on any thread. */
#include "tests/c/test.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "core/base/thread.h"
#include "core/model/load.h"
#include "core/weights/guard.h"
#include "core/weights/weights.h"
#include "tests/c/tmpdir.h"

enum { PAGE = 4096, N = 8 * PAGE };

/* cmocka sets its own SIGBUS action before each test, the guard its only once. */
static struct sigaction guards;

static void put_back(void)
{
    mc_guard_drop(mc_guard_new(&guards, 1));
    if (!guards.sa_flags)
        sigaction(SIGBUS, NULL, &guards);
    sigaction(SIGBUS, &guards, NULL);
}

static const unsigned char *mapped(const char *dir, const char *name)
{
    unsigned char *all = malloc(N);
    void *p;
    int fd;

    assert_non_null(all);
    memset(all, 7, N);
    tmp_write(dir, name, all, N);
    free(all);
    fd = open(tmp_path(dir, name), O_RDONLY);
    p = mmap(NULL, N, PROT_READ, MAP_PRIVATE, fd, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    close(fd);
    return p;
}

static void *sum(void *p)
{
    const unsigned char *s = p;
    uintptr_t n = 0;

    for (int i = 0; i < N; i++)
        n += s[i];
    return (void *)n;
}

/* First, while this process has no guard yet. */
static void guard_other_faults_still_kill(void **state)
{
    char *dir = tmp_new();
    const unsigned char *p = mapped(dir, "a"), *q = mapped(dir, "b");
    int status = 0;
    pid_t pid;

    (void)state;
    assert_int_equal(truncate(tmp_path(dir, "a"), 0), 0);
    pid = fork();
    if (pid == 0) {
        close(STDERR_FILENO); /* a sanitizer's report */
        signal(SIGBUS, SIG_DFL);
        _exit(mc_guard_new(q, N) && sum((void *)(uintptr_t)p) ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    munmap((void *)(uintptr_t)p, N);
    munmap((void *)(uintptr_t)q, N);
    tmp_free(dir);
}

static void guard_a_shrunk_file_reads_as_zeros_on_every_thread(void **state)
{
    char *dir = tmp_new();
    const unsigned char *p = mapped(dir, "a"), *q = mapped(dir, "b");
    struct mc_guard *g = mc_guard_new(p, N), *h = mc_guard_new(q, N);
    pthread_t t[4];
    void *got;

    (void)state;
    put_back();
    assert_int_equal(truncate(tmp_path(dir, "a"), 3 * PAGE), 0);
    assert_false(mc_guard_broken(g));
    for (int i = 0; i < 4; i++)
        assert_int_equal(mc_thread_run(&t[i], sum, (void *)(uintptr_t)p), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], &got);
        assert_int_equal((uintptr_t)got, 7 * 3 * PAGE);
    }
    assert_true(mc_guard_broken(g));
    assert_false(mc_guard_broken(h));
    mc_guard_drop(g);
    mc_guard_drop(h);
    g = mc_guard_new(q, N); /* the old one's place, without its fault */
    assert_false(mc_guard_broken(g));
    mc_guard_drop(g);
    munmap((void *)(uintptr_t)p, N);
    munmap((void *)(uintptr_t)q, N);
    tmp_free(dir);
}

static void copy(const char *from, const char *dir, const char *name)
{
    char path[256];
    long n;
    char *all;
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", from, name);
    f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    n = ftell(f);
    rewind(f);
    all = malloc((size_t)n);
    assert_int_equal(fread(all, 1, (size_t)n, f), n);
    fclose(f);
    tmp_write(dir, name, all, (size_t)n);
    free(all);
}

static void guard_a_checkpoint_cut_short_as_it_loads_is_an_error(void **state)
{
    static const char model[] = "tests/models/tiny-llama";
    static const char *const backends[] = {"ref", "cpu"};
    const struct mc_backend_opts o = {.threads = 2, .ref_act = -1};
    char *dir = tmp_new();

    (void)state;
    put_back();
    copy(model, dir, "config.json");
    for (int i = 0; i < 2; i++) {
        struct mc_err err = {0};
        struct mc_backend *be;
        struct mc_model m;
        struct mc_config cfg;
        struct mc_ckpt *c;

        copy(model, dir, "model.safetensors");
        assert_int_equal(mc_backend_open(backends[i], &o, &be, &err), 0);
        assert_int_equal(mc_ckpt_open(dir, &c, &err), 0);
        assert_int_equal(mc_config_load(c, &cfg, &err), 0);
        assert_int_equal(mc_ckpt_intact(c, &err), 0);
        assert_int_equal(truncate(tmp_path(dir, "model.safetensors"), 1 << 20), 0);
        assert_int_equal(mc_model_open(be, c, &cfg, (struct mc_slice){0, 1}, cfg.vocab,
                                       &m, &err),
                         MC_EIO);
        assert_non_null(strstr(err.text, "model.safetensors was cut short"));
        mc_ckpt_close(c);
        be->close(be);
    }
    tmp_free(dir);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(guard_other_faults_still_kill),
    cmocka_unit_test(guard_a_shrunk_file_reads_as_zeros_on_every_thread),
    cmocka_unit_test(guard_a_checkpoint_cut_short_as_it_loads_is_an_error),
};

MC_TEST_MAIN(tests)
