/* bench_lua.c - `mascon bench lua [MODEL]`: what policies cost.
 *
 * Without MODEL: the hooks at 1, 64 and 256 sequences, a reload, a runaway, memory, in
 * this process (lua/host/bench.c). With it a server is started beside this process, on a
 * port of its own, and asked over HTTP: the share of a decode step that planning takes
 * with 64 streams, events a second that C pumps and that Lua writes, a reload while they
 * stream. OWNS the server and its directory until it returns. THREAD: main. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/cli/bench.h"
#include "core/cli/client.h"
#include "core/cli/lua_half.h"
#include "core/cli/scratch.h"

enum { STREAMS = 64, TOKENS = 128, EVENTS = 20000, START_S = 600, ANSWER_S = 300 };

struct rig {
    struct mc_report *report;
    char dir[MC_SCRATCH_PATH], socket[MC_SCRATCH_PATH + 8],
        port_file[MC_SCRATCH_PATH + 8];
    pid_t pid;
    int port;
    double plan_us_64; /* by mc_lua_bench */
};

/* ---- the server -------------------------------------------------------------------- */

static int put(const struct rig *r, const char *name, const char *text,
               struct mc_err *err)
{
    char path[MC_SCRATCH_PATH + 32];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", r->dir, name);
    f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f) || chmod(path, 0644))
        return mc_fail(err, MC_EIO, "%s: %s", path, strerror(errno));
    return 0;
}

static void run_server(const struct rig *r, const char *model)
{
    char *const argv[] = {"mascon", "serve", (char *)(uintptr_t)model, "--port", "0",
                          "--port-file", (char *)(uintptr_t)r->port_file, "--socket",
                          (char *)(uintptr_t)r->socket, "--policies",
                          (char *)(uintptr_t)r->dir, "--no-watch", NULL};
    int null = open("/dev/null", O_RDWR);

    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    execv("/proc/self/exe", argv);
    _exit(127);
}

static int start(struct rig *r, const char *model, struct mc_err *err)
{
    double until = mc_now() + START_S;
    char path[MC_SCRATCH_PATH + 8];
    FILE *f = NULL;
    int rc = mc_scratch_new(r->dir, err);

    if (rc < 0)
        return rc;
    snprintf(r->socket, sizeof r->socket, "%s/sock", r->dir);
    snprintf(r->port_file, sizeof r->port_file, "%s/port", r->dir);
    snprintf(path, sizeof path, "%s/routes", r->dir);
    mkdir(path, 0755);
    rc = put(r, "init.lua", "return { routes = { 'openai', 'events' } }\n", err);
    if (rc == 0)
        rc = put(r, "routes/events.lua",
                 "return { api = 1, kind = 'routes', ['GET /events/{n}'] = function(req, "
                 "res)\n"
                 "  for i = 1, tonumber(req.params.n) do\n"
                 "    res:event { id = 'x', index = i, delta = { content = ' token' } }\n"
                 "  end\n"
                 "end }\n",
                 err);
    if (rc < 0)
        return rc;
    r->pid = fork();
    if (r->pid == 0)
        run_server(r, model);
    while (!f && mc_now() < until && waitpid(r->pid, NULL, WNOHANG) == 0) {
        usleep(20000);
        f = fopen(r->port_file, "r");
    }
    if (!f || fscanf(f, "%d", &r->port) != 1)
        rc = mc_fail(err, MC_EIO, "a server of %s did not start", model);
    if (f)
        fclose(f);
    return rc;
}

static void stop(struct rig *r)
{
    if (r->pid > 0) {
        kill(r->pid, SIGTERM);
        waitpid(r->pid, NULL, 0);
    }
    if (*r->dir)
        mc_scratch_remove(r->dir);
}

/* ---- asking ------------------------------------------------------------------------ */

struct stream {
    int fd;
    size_t n_events, n_bytes;
    char last[16]; /* the end of what was read: events are cut anywhere */
    char *body;    /* kept when wanted */
};

static int dial(const struct rig *r, const char *request, struct mc_err *err)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)r->port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t n = strlen(request);

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) < 0 ||
        write(fd, request, n) != (ssize_t)n) {
        mc_fail(err, MC_EIO, "port %d: %s", r->port, strerror(errno));
        if (fd >= 0)
            close(fd);
        return -1;
    }
    return fd;
}

/* Counts the "data: " that begin events; false at the end. */
static bool read_some(struct stream *s, char **kept, size_t *n_kept)
{
    static const char mark[] = "\ndata: ";
    char buf[65536 + sizeof s->last];
    size_t held = strlen(s->last);
    ssize_t got = read(s->fd, buf + held, 65536);
    size_t n;
    char *p;

    if (got <= 0)
        return false;
    memcpy(buf, s->last, held);
    n = held + (size_t)got;
    for (p = buf; (p = memmem(p, (size_t)(buf + n - p), mark, sizeof mark - 1)); p++)
        s->n_events++;
    s->n_bytes += (size_t)got;
    if (kept) {
        p = realloc(*kept, *n_kept + (size_t)got + 1);
        if (!p)
            return false;
        *kept = p;
        memcpy(*kept + *n_kept, buf + held, (size_t)got);
        *n_kept += (size_t)got;
        (*kept)[*n_kept] = 0;
    }
    held = n < sizeof mark - 2 ? n : sizeof mark - 2;
    memcpy(s->last, buf + n - held, held);
    s->last[held] = 0;
    return true;
}

/* n requests at once, to their ends: events in all, seconds from the first to the last.
 */
static int ask(const struct rig *r, const char *request, int n, size_t *events,
               double *took, char **kept, struct mc_err *err)
{
    struct stream s[STREAMS] = {{0}};
    struct pollfd fds[STREAMS];
    size_t n_kept = 0;
    int open = 0, rc = 0;
    double t0 = mc_now();

    *events = 0;
    for (; open < n && rc == 0; open++) {
        s[open].fd = dial(r, request, err);
        fds[open] = (struct pollfd){.fd = s[open].fd, .events = POLLIN};
        rc = s[open].fd < 0 ? MC_EIO : 0;
    }
    for (int left = open; rc == 0 && left > 0;) {
        if (poll(fds, (nfds_t)open, ANSWER_S * 1000) <= 0)
            rc = mc_fail(err, MC_ETIMEOUT, "no answer in %d s", ANSWER_S);
        for (int i = 0; i < open; i++)
            if (fds[i].revents && !read_some(&s[i], kept, &n_kept)) {
                fds[i].fd = -1;
                left--;
            }
    }
    *took = mc_now() - t0;
    for (int i = 0; i < open; i++) {
        *events += s[i].n_events;
        if (s[i].fd >= 0)
            close(s[i].fd);
    }
    return rc;
}

static int get(const struct rig *r, const char *path, char **body, struct mc_err *err)
{
    char request[128];
    size_t events;
    double took;

    snprintf(request, sizeof request,
             "GET %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", path);
    *body = NULL;
    return ask(r, request, 1, &events, &took, body, err);
}

/* A sample of /metrics, summed over its label sets. */
static double sample(const char *page, const char *name)
{
    double sum = 0;
    size_t n = strlen(name);
    const char *line = page;

    while (line) {
        if (strncmp(line, name, n) == 0 && (line[n] == ' ' || line[n] == '{'))
            sum += strtod(strrchr(strndupa(line, strcspn(line, "\n")), ' '), NULL);
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    return sum;
}

static int wait_ready(const struct rig *r, struct mc_err *err)
{
    double until = mc_now() + START_S;
    bool ready = false;

    while (!ready && mc_now() < until) {
        char *body = NULL;

        if (get(r, "/ready", &body, err) == 0 && body)
            ready = strstr(body, " 200 ") != NULL;
        free(body);
        usleep(20000);
        if (waitpid(r->pid, NULL, WNOHANG) != 0)
            break;
    }
    return ready ? 0 : mc_fail(err, MC_EIO, "the server does not become ready");
}

/* ---- what is measured -------------------------------------------------------------- */

static int streams(struct rig *r, struct mc_err *err)
{
    static const char body[] = "{\"prompt\": \"Once upon a time\", \"stream\": true, "
                               "\"ignore_eos\": true, \"max_tokens\": 128}";
    char request[512], *before = NULL, *after = NULL;
    double took, steps, plan;
    size_t events;
    int rc = get(r, "/metrics", &before, err);

    snprintf(request, sizeof request, "POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
             "content-type: application/json\r\nconnection: close\r\n"
             "content-length: %zu\r\n\r\n%s", sizeof body - 1, body);
    if (rc == 0)
        rc = ask(r, request, STREAMS, &events, &took, NULL, err);
    if (rc == 0 && events < STREAMS * TOKENS / 2)
        rc = mc_fail(err, MC_EIO, "%zu events of %d streams", events, STREAMS);
    if (rc == 0)
        rc = get(r, "/metrics", &after, err);
    if (rc == 0) {
        steps = sample(after, "mascon_steps_total") -
                sample(before, "mascon_steps_total");
        plan = sample(after, "mascon_plan_seconds_sum") -
               sample(before, "mascon_plan_seconds_sum");
        mc_report_add(r->report, "step_us_64", took / steps * 1e6, "us", NULL);
        mc_report_add(r->report, "lua_share_64", r->plan_us_64 * 1e-6 * steps / took, "",
                      "0.01");
        mc_report_add(r->report, "plan_share_64", plan / took, "", NULL);
        mc_report_add(r->report, "sse_pumped_s", (double)events / took, "events/s",
                      "(as fast as 64 streams of this model)");
    }
    free(before);
    free(after);
    return rc;
}

static int written(struct rig *r, struct mc_err *err)
{
    char request[128];
    double took;
    size_t events;
    int rc;

    snprintf(request, sizeof request, "GET /events/%d HTTP/1.1\r\nhost: x\r\n"
             "connection: close\r\n\r\n", EVENTS);
    rc = ask(r, request, 4, &events, &took, NULL, err);
    if (rc == 0 && events != 4 * EVENTS)
        rc = mc_fail(err, MC_EIO, "%zu events came of %d", events, 4 * EVENTS);
    if (rc == 0)
        mc_report_add(r->report, "sse_lua_s", (double)events / took, "events/s", NULL);
    return rc;
}

static int reload(struct rig *r, struct mc_err *err)
{
    struct mc_client *c = NULL;
    json_t *out = NULL;
    double t0 = mc_now();
    int rc = mc_client_open(r->socket, &c, err);

    if (rc == 0)
        rc = mc_client_call(c, "reload", json_array(), &out, err);
    if (rc == 0)
        mc_report_add(r->report, "reload_served_ms", (mc_now() - t0) * 1e3, "ms", "1000");
    json_decref(out);
    mc_client_close(c);
    return rc;
}

/* ---- the command ------------------------------------------------------------------- */

static void add(void *ctx, const char *name, double value, const char *unit,
                const char *mark)
{
    struct rig *r = ctx;

    if (strcmp(name, "plan_us_64") == 0)
        r->plan_us_64 = value;
    mc_report_add(r->report, name, value, unit, mark);
}

int mc_bench_lua(int argc, char **argv, const struct mc_lua_half *lua)
{
    bool json = false;
    const struct mc_flag flags[] = {{"json", NULL, &json,
                                     "one JSON object instead of lines"},
                                    {0}};
    struct mc_args a = {.word = "bench lua", .usage = "[MODEL] [--json]", .flags = flags,
                        .max = 1};
    struct mc_report report;
    struct rig r = {.report = &report};
    struct mc_err err = {0};
    int rc = mc_args_parse(&a, argc, argv, lua);

    if (rc >= 0)
        return rc;
    mc_report_begin(&report, a.n_pos ? "mascon bench lua MODEL" : "mascon bench lua",
                    json);
    mc_log_set("policy", MC_LOG_OFF); /* reloads and runaways are on purpose */
    rc = lua->bench(add, &r, &err);
    if (rc == 0 && a.n_pos) {
        rc = start(&r, a.pos[0], &err);
        if (rc == 0)
            rc = wait_ready(&r, &err);
        if (rc == 0)
            rc = streams(&r, &err);
        if (rc == 0)
            rc = written(&r, &err);
        if (rc == 0)
            rc = reload(&r, &err);
        stop(&r);
    }
    if (rc == 0)
        mc_report_end(&report);
    return rc < 0 ? mc_cli_fail(&err) : 0;
}
