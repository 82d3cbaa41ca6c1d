/* edit.c - libedit behind edit.h.
 *
 * Bytes are read here and handed to libedit one character at a time; what arrives in bulk
 * (a paste, bracketed or not) goes around it, since libedit redraws for each character
 * and a pasted block is one thing. OWNS the editor. THREAD: main. Always true: bytes [at,
 * n) of `buf` were read and not used yet. */
#define _GNU_SOURCE
#include "core/cli/edit.h"

#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "core/base/utf8.h"
#include "core/cli/term.h"

enum {
    BULK = 256,
    PAUSE_MS = 20,
    LINE_PAUSE_MS = 300,
    HISTORY = 1000,
    HISTORY_LINE = 4096,
    CTRL_D = 4
};

struct mc_edit {
    EditLine *el;
    History *hist;
    volatile sig_atomic_t *interrupt;
    struct termios before;
    bool changed; /* the terminal's mode, from before */
    char history_file[512];
    char **(*complete)(void *ctx, const char *text);
    void *ctx;
    const char *prompt;
    char buf[64 << 10];
    size_t at, n;
    char *pasted; /* what went around libedit in this line */
    size_t n_pasted;
    bool eof, interrupted, whole; /* whole: a paste ended with a newline */
    int last; /* the character before */
    char *line;
};

static const char *prompt_of(EditLine *el)
{
    struct mc_edit *e = NULL;

    el_get(el, EL_CLIENTDATA, &e);
    return e->prompt;
}

/* ---- reading ----------------------------------------------------------------------- */

/* At least one unused byte; false at the end or when Ctrl-C came. */
static bool fill(struct mc_edit *e)
{
    ssize_t got;

    if (e->at < e->n)
        return true;
    e->interrupted = !mc_term_wait(STDIN_FILENO, e->interrupt);
    got = e->interrupted ? 0 : read(STDIN_FILENO, e->buf, sizeof e->buf);
    e->eof = got <= 0 && !e->interrupted;
    e->at = 0;
    e->n = got > 0 ? (size_t)got : 0;
    return got > 0;
}

static void keep_pasted(struct mc_edit *e, const char *s, size_t n)
{
    char *more = realloc(e->pasted, e->n_pasted + n + 1);
    size_t i;

    if (!more)
        return;
    e->pasted = more;
    for (i = 0; i < n; i++)
        more[e->n_pasted++] = s[i] == '\r' ? '\n' : s[i];
}

/* Shows pasted text where it would have been typed. */
static void echo(const struct mc_edit *e, size_t from)
{
    size_t i;

    for (i = from; i < e->n_pasted; i++) {
        unsigned char c = (unsigned char)e->pasted[i];

        if (c == '\n')
            putchar('\n');
        else if (c >= 32 || c == '\t')
            putchar(c);
    }
    fflush(stdout);
}

static bool starts(const struct mc_edit *e, const char *s)
{
    return e->n - e->at >= strlen(s) && memcmp(e->buf + e->at, s, strlen(s)) == 0;
}

/* Bytes up to the end mark of a bracketed paste. */
static void take_bracketed(struct mc_edit *e)
{
    static const char end[] = "\x1b[201~";
    size_t from = e->n_pasted;

    e->at += 6;
    while (fill(e)) {
        if (starts(e, end)) {
            e->at += sizeof end - 1;
            break;
        }
        if (e->buf[e->at] == '\x1b' && e->n - e->at < sizeof end - 1) {
            memmove(e->buf, e->buf + e->at,
                    e->n - e->at); /* the mark may be cut in two */
            e->n -= e->at;
            e->at = 0;
            if (e->n < sizeof end - 1) {
                ssize_t got = read(STDIN_FILENO, e->buf + e->n, sizeof end - 1 - e->n);

                if (got <= 0)
                    break;
                e->n += (size_t)got;
                continue;
            }
        }
        keep_pasted(e, e->buf + e->at, 1);
        e->at++;
    }
    echo(e, from);
}

static bool ends_line(const struct mc_edit *e)
{
    return e->n_pasted && e->pasted[e->n_pasted - 1] == '\n';
}

/* All that arrives without a pause; in the middle of a line a longer one is no end. */
static void take_bulk(struct mc_edit *e)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    size_t from = e->n_pasted;

    do {
        keep_pasted(e, e->buf + e->at, e->n - e->at);
        e->at = e->n;
    } while (poll(&p, 1, ends_line(e) ? PAUSE_MS : LINE_PAUSE_MS) > 0 && fill(e));
    echo(e, from);
}

static bool line_is_empty(EditLine *el)
{
    const LineInfo *li = el_line(el);

    return li->lastchar == li->buffer;
}

/* One character for libedit: 1, or 0 at the end of input, -1 when interrupted. A paste
 * ends the line that libedit edits; mc_edit_line puts the parts together. */
static int get_char(EditLine *el, wchar_t *c)
{
    struct mc_edit *e = NULL;
    size_t len;

    el_get(el, EL_CLIENTDATA, &e);
    if (!fill(e))
        return e->interrupted ? -1 : 0;
    if (starts(e, "\x1b[200~") || e->n - e->at >= BULK) {
        if (e->buf[e->at] == '\x1b')
            take_bracketed(e);
        else
            take_bulk(e);
        e->whole = ends_line(e);
        *c = L'\n';
        return 1;
    }
    if (e->buf[e->at] == CTRL_D && (line_is_empty(el) || e->last == CTRL_D)) {
        e->at++;
        e->eof = true;
        return 0;
    }
    e->last = e->buf[e->at];
    len = mc_utf8_len(e->buf[e->at]);
    while (e->n - e->at < len) {
        ssize_t got = read(STDIN_FILENO, e->buf + e->n, 1);

        if (got <= 0 || e->n + 1 >= sizeof e->buf)
            break;
        e->n += (size_t)got;
    }
    if (e->n - e->at < len || !mc_utf8_valid(e->buf + e->at, len)) {
        *c = (unsigned char)e->buf[e->at++];
        return 1;
    }
    *c = (wchar_t)mc_utf8_get(e->buf + e->at);
    e->at += len;
    return 1;
}

/* ---- completion -------------------------------------------------------------------- */

static size_t common_prefix(char **list)
{
    size_t n = strlen(list[0]), i;
    char **w;

    for (w = list + 1; *w; w++) {
        for (i = 0; i < n && (*w)[i] == list[0][i]; i++)
            ;
        n = i;
    }
    return n;
}

static bool word_char(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           c == '_';
}

static unsigned char on_tab(EditLine *el, int key)
{
    const LineInfo *li = el_line(el);
    struct mc_edit *e = NULL;
    unsigned char what = CC_ERROR;
    size_t n = (size_t)(li->cursor - li->buffer), word = 0, common;
    char *text = strndup(li->buffer, n), **list, **w;

    (void)key;
    el_get(el, EL_CLIENTDATA, &e);
    list = text && e->complete ? e->complete(e->ctx, text) : NULL;
    while (word < n && word_char(text[n - 1 - word]))
        word++;
    if (list && list[0]) {
        common = common_prefix(list);
        if (common > word) {
            char *rest = strndup(list[0] + word, common - word);

            el_insertstr(el, rest);
            free(rest);
            what = CC_REFRESH;
        } else if (list[1]) {
            printf("\n");
            for (w = list; *w; w++)
                printf("%s%s", *w, w[1] ? "  " : "\n");
            fflush(stdout);
            what = CC_REDISPLAY;
        }
    }
    for (w = list; w && *w; w++)
        free(*w);
    free(list);
    free(text);
    return what;
}

/* ---- lines ------------------------------------------------------------------------- */

enum mc_edit_end mc_edit_line(struct mc_edit *e, const char *prompt, const char **line,
                              size_t *n)
{
    size_t total = 0;

    e->prompt = prompt;
    e->n_pasted = 0;
    e->eof = e->interrupted = false;
    e->last = 0;
    do { /* once more after a paste that did not end its line */
        int len = 0;
        const char *typed;
        size_t before = e->n_pasted;
        char *more;

        e->whole = false;
        typed = el_gets(e->el, &len);
        if (e->interrupted || e->eof || !typed || len <= 0) {
            printf("\n");
            fflush(stdout);
            return e->eof || !e->interrupted ? MC_EDIT_EOF : MC_EDIT_INTERRUPT;
        }
        if (e->n_pasted > before) /* its newline was ours */
            len--;
        more = realloc(e->line, total + (size_t)len + (e->n_pasted - before) + 1);
        if (!more)
            return MC_EDIT_EOF;
        e->line = more;
        memcpy(more + total, typed, (size_t)len);
        total += (size_t)len;
        memcpy(more + total, e->pasted ? e->pasted + before : "", e->n_pasted - before);
        total += e->n_pasted - before;
        if (e->n_pasted == before)
            break;
        e->prompt = "";
    } while (!e->whole);
    *line = e->line;
    *n = total;
    return MC_EDIT_LINE;
}

/* Several lines are kept as one where that means the same, so that one key brings them
 * back. */
void mc_edit_remember(struct mc_edit *e, const char *text, size_t n)
{
    char *one, *p;
    bool join;
    HistEvent ev;

    while (n && text[n - 1] == '\n')
        n--;
    if (n == 0 || n > HISTORY_LINE)
        return;
    one = strndup(text, n);
    if (!one)
        return;
    join = !strstr(one, "--") && !strstr(one, "[[");
    for (p = one; *p && join; p++)
        if (*p == '\n')
            *p = ' ';
    if (!strchr(one, '\n'))
        history(e->hist, &ev, H_ENTER, one);
    free(one);
}

/* ---- opening ----------------------------------------------------------------------- */

static void find_history(struct mc_edit *e)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char dir[400], *p;

    if (state && *state)
        snprintf(dir, sizeof dir, "%s", state);
    else if (home && *home)
        snprintf(dir, sizeof dir, "%s/.local/state", home);
    else
        return;
    if (strlen(dir) > sizeof dir - 16)
        return;
    strcat(dir, "/mascon/");
    for (p = strchr(dir + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = 0;
        mkdir(dir, 0700);
        *p = '/';
    }
    snprintf(e->history_file, sizeof e->history_file, "%shistory", dir);
}

/* Between lines too the terminal takes bytes as they come: in its line mode it would drop
 * what a paste has over 4,096 in a line. (libedit's mode for then is set by EL_SETTY.) */
static void set_terminal(struct mc_edit *e)
{
    struct termios t;

    e->changed = tcgetattr(STDIN_FILENO, &e->before) == 0;
    if (!e->changed)
        return;
    t = e->before;
    t.c_lflag &= (tcflag_t)~(ICANON | ECHO);
    t.c_cc[VMIN] = 1;
    t.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &t);
}

struct mc_edit *mc_edit_open(volatile sig_atomic_t *interrupt,
                             char **(*complete)(void *ctx, const char *text), void *ctx)
{
    struct mc_edit *e = calloc(1, sizeof *e);
    HistEvent ev;

    if (!e)
        return NULL;
    if (!setlocale(LC_CTYPE, "C.UTF-8"))
        setlocale(LC_CTYPE, "");
    e->interrupt = interrupt;
    e->complete = complete;
    e->ctx = ctx;
    e->prompt = "> ";
    set_terminal(e);
    e->el = el_init("mascon", stdin, stdout, stderr);
    e->hist = history_init();
    if (!e->el || !e->hist) {
        mc_edit_close(e);
        return NULL;
    }
    find_history(e);
    history(e->hist, &ev, H_SETSIZE, HISTORY);
    history(e->hist, &ev, H_SETUNIQUE, 1);
    if (*e->history_file)
        history(e->hist, &ev, H_LOAD, e->history_file);
    el_set(e->el, EL_CLIENTDATA, e);
    el_set(e->el, EL_PROMPT, prompt_of);
    el_set(e->el, EL_EDITOR, "emacs");
    el_set(e->el, EL_HIST, history, e->hist);
    el_set(e->el, EL_SIGNAL, 0);
    el_set(e->el, EL_SETTY, "-x", "-icanon", "-echo", NULL);
    el_set(e->el, EL_GETCFN, get_char);
    el_wset(e->el, EL_ADDFN, L"mc-complete", L"completes a name", on_tab);
    el_set(e->el, EL_BIND, "^I", "mc-complete", NULL);
    fputs("\x1b[?2004h", stdout); /* brackets around pastes */
    fflush(stdout);
    return e;
}

void mc_edit_close(struct mc_edit *e)
{
    HistEvent ev;

    if (!e)
        return;
    if (e->el) {
        fputs("\x1b[?2004l", stdout);
        fflush(stdout);
        el_end(e->el);
    }
    if (e->hist) {
        if (*e->history_file)
            history(e->hist, &ev, H_SAVE, e->history_file);
        history_end(e->hist);
    }
    if (e->changed)
        tcsetattr(STDIN_FILENO, TCSADRAIN, &e->before);
    free(e->pasted);
    free(e->line);
    free(e);
}
