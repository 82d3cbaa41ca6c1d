/* driver.c - runs one fuzz target, mc_fuzz, over its seeds and over mutations of them.
 *
 *   build/fuzz_NAME [-n INPUTS] [-s SEED] [-i ONE] [FILE...]
 *
 * Seeds are the files of tests/fuzz/seeds/NAME; without any, mutation starts from nothing.
 * Input i depends on the seed and i alone: a crash names both, and -s SEED -i ONE makes the
 * same input again. An input that takes over TIMEOUT seconds dies too. FILEs are run as they
 * are. Prints TAP. THREAD: main; the signal handlers read `current`.
 *
 * A target returns 0; it must survive any bytes. They are a heap block of exactly that size,
 * so that AddressSanitizer sees a read past it. With -DMC_LIBFUZZER this file is only the
 * bridge to libFuzzer. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

int mc_fuzz(const uint8_t *data, size_t n);

#ifdef MC_LIBFUZZER

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    return mc_fuzz(data, n);
}

#else

enum { SEEDS = 256, INPUT_MAX = 1 << 16, TIMEOUT = 20 };

void __sanitizer_set_death_callback(void (*fn)(void)) __attribute__((weak));

struct input {
    uint8_t *p;
    size_t n;
};

static struct input seed[SEEDS];
static int n_seed;
static uint64_t rng, base_seed = 1;
static volatile uint64_t current;

static uint64_t rnd(void) /* splitmix64 */
{
    uint64_t z = rng += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static size_t below(size_t n)
{
    return n ? rnd() % n : 0;
}

static void died(void)
{
    char text[96];
    int n = snprintf(text, sizeof text, "not ok 1 - died on -s %llu -i %llu\n",
                     (unsigned long long)base_seed, (unsigned long long)current);

    if (write(1, text, (size_t)n) < 0)
        _exit(2);
}

static void on_signal(int sig)
{
    died();
    signal(sig, SIG_DFL);
    raise(sig);
}

static void on_second(int sig)
{
    static uint64_t last = UINT64_MAX;
    static int seconds;

    (void)sig;
    seconds = current == last ? seconds + 1 : 0;
    last = current;
    if (seconds >= TIMEOUT)
        abort();
}

static void watch(void)
{
    static const int fatal[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    const struct itimerval every = {{1, 0}, {1, 0}};

    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        signal(fatal[i], on_signal);
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(died);
    signal(SIGALRM, on_second);
    setitimer(ITIMER_REAL, &every, NULL);
}

static int read_file(const char *path, struct input *in)
{
    FILE *f = fopen(path, "rb");

    if (!f)
        return -1;
    in->p = malloc(INPUT_MAX);
    in->n = in->p ? fread(in->p, 1, INPUT_MAX, f) : 0;
    fclose(f);
    return in->p ? 0 : -1;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void read_seeds(const char *name)
{
    struct dirent **list;
    char dir[256], path[600];
    int i, n;

    snprintf(dir, sizeof dir, "tests/fuzz/seeds/%s", name);
    n = scandir(dir, &list, NULL, by_name);
    for (i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, list[i]->d_name);
        if (list[i]->d_name[0] != '.' && n_seed < SEEDS &&
            read_file(path, &seed[n_seed]) == 0)
            n_seed++;
        free(list[i]);
    }
    if (n >= 0)
        free(list);
}

/* Makes room for, or takes away, bytes at a place. */
static void resize_at(struct input *in, size_t at, size_t take, size_t give)
{
    if (in->n - take + give > INPUT_MAX)
        give = take;
    memmove(in->p + at + give, in->p + at + take, in->n - at - take);
    in->n = in->n - take + give;
}

/* Copies a stretch of a seed, or of the input itself, over or into the input. */
static void splice(struct input *in)
{
    const struct input *from = n_seed && below(2) ? &seed[below((size_t)n_seed)] : in;
    static uint8_t copy[INPUT_MAX];
    size_t start = below(from->n), len, at = below(in->n + 1);

    len = below(from->n - start + 1) >> below(8);
    memcpy(copy, from->p + start, len);
    if (in->n + len > INPUT_MAX)
        return;
    resize_at(in, at, 0, len);
    memcpy(in->p + at, copy, len);
}

static void put_number(struct input *in)
{
    static const char *const number[] = {
        "0", "-1", "255", "65536", "2147483647", "2147483648", "4294967295", "1e308",
        "9223372036854775807", "9223372036854775808", "18446744073709551616", "0.5",
    };
    const char *s = number[below(sizeof number / sizeof *number)];
    size_t at = below(in->n + 1), end;

    while (at < in->n && (in->p[at] < '0' || in->p[at] > '9'))
        at++;
    for (end = at; end < in->n && in->p[end] >= '0' && in->p[end] <= '9'; end++)
        continue;
    if (in->n - (end - at) + strlen(s) > INPUT_MAX)
        return;
    resize_at(in, at, end - at, strlen(s));
    memcpy(in->p + at, s, strlen(s));
}

/* Numbers at the borders where sizes overflow, in 1, 2, 4 or 8 little-endian bytes. */
static void put_binary(struct input *in)
{
    static const uint64_t border[] = {
        0, 1, 2, 8, 16, 32, 64, 128, 256, 32768, 65536, 1u << 31, 1ull << 32, 1ull << 40,
        1ull << 61, 1ull << 63,
    };
    uint64_t v = border[below(sizeof border / sizeof *border)] + below(3) - 1;
    size_t width = (size_t)1 << below(4);

    if (in->n >= width)
        memcpy(in->p + below(in->n - width + 1), &v, width);
}

/* Pieces of text formats, over or into the input. */
static void put_word(struct input *in)
{
    static const char *const word[] = {
        "\"", "{", "}", "[", "]", ":", ",", "null", "true", "\\u0000", "\\ud800", "\xC0\x80",
        "\xF4\x90\x80\x80", "\xED\xA0\x80", "\r\n", "[[[[[[[[", "{\"a\":{\"a\":", "\\", " ",
    };
    const char *s = word[below(sizeof word / sizeof *word)];
    size_t n = strlen(s), at = below(in->n + 1), over = below(2) ? n : 0;

    if (over > in->n - at || in->n + n > INPUT_MAX)
        return;
    resize_at(in, at, over, n);
    memcpy(in->p + at, s, n);
}

static void mutate(struct input *in)
{
    static const uint8_t telling[] = {0, 1, 0x20, 0x22, 0x5b, 0x7b, 0x7f, 0x80, 0xc0, 0xff};
    size_t at = below(in->n), len;

    switch (below(9)) {
    case 0:
        if (in->n)
            in->p[at] ^= (uint8_t)(1u << below(8));
        break;
    case 1:
        if (in->n)
            in->p[at] = telling[below(sizeof telling)];
        break;
    case 2:
        len = below(in->n - at + 1) >> below(8);
        resize_at(in, at, len, 0);
        break;
    case 3:
        if (in->n < INPUT_MAX) {
            resize_at(in, at, 0, 1);
            in->p[at] = (uint8_t)rnd();
        }
        break;
    case 4:
        in->n = below(16) ? in->n : at;
        break;
    case 5:
        put_number(in);
        break;
    case 6:
        put_binary(in);
        break;
    case 7:
        put_word(in);
        break;
    default:
        splice(in);
    }
}

static int run_exact(const struct input *in)
{
    uint8_t *exact = malloc(in->n + !in->n);
    int rc;

    if (!exact)
        return -1;
    memcpy(exact, in->p, in->n);
    rc = mc_fuzz(exact, in->n);
    free(exact);
    return rc;
}

static int run_one(uint64_t i)
{
    static uint8_t space[INPUT_MAX];
    struct input in = {space, 0};
    const struct input *from;
    size_t k;

    current = i;
    rng = base_seed * 0x100000001b3u + i;
    if (n_seed) {
        from = &seed[i < (uint64_t)n_seed ? i : below((size_t)n_seed)];
        memcpy(space, from->p, from->n);
        in.n = from->n;
    }
    if (i >= (uint64_t)n_seed)
        for (k = 1 + below(6); k > 0; k--)
            mutate(&in);
    return run_exact(&in);
}

static int run_file(const char *path)
{
    struct input in;
    int rc;

    if (read_file(path, &in) < 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 2;
    }
    rc = run_exact(&in);
    free(in.p);
    return rc;
}

int main(int argc, char **argv)
{
    const char *name = strstr(argv[0], "fuzz_");
    uint64_t n = 20000, i, only = UINT64_MAX;
    int opt, rc = 0;

    while ((opt = getopt(argc, argv, "n:s:i:")) != -1) {
        if (opt == 'n')
            n = strtoull(optarg, NULL, 0);
        else if (opt == 's')
            base_seed = strtoull(optarg, NULL, 0);
        else if (opt == 'i')
            only = strtoull(optarg, NULL, 0);
        else
            return 2;
    }
    if (optind < argc) {
        for (; optind < argc && rc == 0; optind++)
            rc = run_file(argv[optind]);
        return rc;
    }
    watch();
    read_seeds(name ? name + strlen("fuzz_") : "");
    printf("1..1\n");
    fflush(stdout);
    for (i = 0; i < n && rc == 0 && only == UINT64_MAX; i++)
        rc = run_one(i);
    if (only != UINT64_MAX)
        rc = run_one(only);
    printf("%sok 1 - %llu inputs, %d seeds, seed %llu\n", rc ? "not " : "",
           (unsigned long long)n, n_seed, (unsigned long long)base_seed);
    while (n_seed > 0)
        free(seed[--n_seed].p);
    return rc != 0;
}

#endif
