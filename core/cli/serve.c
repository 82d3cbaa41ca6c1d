/* serve.c - `mascon serve`: puts a server together, runs it, takes it apart.
 *
 * The port and the socket listen at once; the model loads on a thread of its own meanwhile
 * (/ready says 503). The main thread waits for signals: the first SIGTERM or SIGINT drains,
 * the second ends at once; while loading the first ends at once. A failed engine ends the
 * process with status 1, for its supervisor.
 *
 * OWNS the struct mc_server and everything in it. THREAD: main; `boot` runs on the loading
 * thread until it writes its end to the wake fd. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/crash.h"
#include "core/base/log.h"
#include "core/base/notify.h"
#include "core/base/thread.h"
#include "core/cli/cli.h"
#include "core/cli/lua_half.h"
#include "core/cli/serve.h"
#include "core/cli/service.h"
#include "core/engine/record.h"
#include "core/serve/admin.h"
#include "core/serve/rpc.h"
#include "core/serve/proxies.h"
#include "core/serve/server.h"

enum { SHARED_BYTES = 16 << 20, TICK_MS = 100, FAIL_GRACE_S = 1, ACCEPTED_S = 1 };

struct serve {
    struct mc_settings set;
    const struct mc_lua_half *half;
    const char *path[MC_SERVED_MAX]; /* of each model */
    char host[256];
    struct mc_policy policy[MC_SERVED_MAX];
    struct mc_server server;
    struct mc_keys *keys;
    struct mc_proxies *proxies;
    struct mc_rpc *rpc, *admin;
    struct mc_lua *lua;
    struct mc_recorder *rec; /* with --record */
    int wake, signals; /* eventfd, signalfd */
    pthread_t boot;
    bool booting;
    atomic_int boot_rc; /* 1 while it runs */
    struct mc_err boot_err;
    atomic_bool drain_asked;
    double drain_s; /* by whoever asked, before drain_asked */
    double ends;    /* when draining: the latest end, */
    double not_before; /* and the earliest: what was accepted is on its way */
    struct mc_service service;
};

static void wake(struct serve *s)
{
    uint64_t one = 1;
    ssize_t n = write(s->wake, &one, sizeof one);

    (void)n; /* a full counter wakes as well */
}

/* ---- what the HTTP server and the verbs ask ---------------------------------------- */

static size_t on_metrics(void *self, char *buf, size_t cap)
{
    struct mc_server *m = &((struct serve *)self)->server;
    struct mc_metrics_model models[MC_SERVED_MAX];
    const struct mc_metrics_source src = {.metrics = m->metrics, .http = m->http,
                                          .models = models, .n_model = m->n_model,
                                          .version = MC_VERSION};

    for (int i = 0; i < m->n_model; i++)
        models[i] = (struct mc_metrics_model){
            atomic_load(&m->ready) ? m->model[i].engine : NULL, m->model[i].id};
    return mc_metrics_render(&src, buf, cap);
}

static int on_health(void *self)
{
    struct mc_server *m = &((struct serve *)self)->server;

    return atomic_load(&m->ready) ? mc_models_failed(m, NULL) : 0;
}

static int on_ready(void *self, struct mc_err *err)
{
    struct mc_server *m = &((struct serve *)self)->server;

    if (!atomic_load(&m->ready))
        return mc_fail(err, MC_ELOADING, "the model is still loading");
    if (atomic_load(&m->draining))
        return mc_fail(err, MC_EDRAIN, "the server is shutting down");
    return 0;
}

static void on_drain(void *self, double seconds)
{
    struct serve *s = self;

    s->drain_s = seconds;
    atomic_store(&s->drain_asked, true);
    wake(s);
}

static int set_engines(struct serve *s, int id, const struct mc_settings *c,
                       struct mc_err *err)
{
    int rc = 0;

    if (!atomic_load(&s->server.ready))
        return mc_fail(err, MC_ELOADING, "the model is still loading");
    if (id == MC_SETTING_kv_memory)
        return mc_models_resize(&s->server, c, err);
    for (int i = 0; i < s->server.n_model && rc == 0; i++)
        rc = mc_serve_weights(c, s->server.model[i].engine, s->keys, err);
    return rc;
}

/* The live settings are read where they are used, but for what engines keep. */
static int on_set(void *self, const char *key, const char *value, struct mc_err *err)
{
    struct serve *s = self;
    const char *near = NULL;
    struct mc_settings copy;
    int id = mc_setting_find(key, &near), rc;

    if (id < 0)
        return mc_fail_param(err, MC_EARG, "key", "no setting is called '%.40s'%s%s%s",
                             key, near ? "; did you mean '" : "", near ? near : "",
                             near ? "'?" : "; `mascon config --dump` lists them");
    if (!mc_setting_list[id].live)
        return mc_fail_param(err, MC_EUNSUP, "key",
                             "%s can't change while the server runs", key);
    mc_settings_init(&copy);
    rc = mc_settings_set(&copy, id, value, MC_FROM_FLAG, key, err);
    if (rc == 0 && id == MC_SETTING_drain)
        s->set.drain = copy.drain;
    else if (rc == 0 && (id == MC_SETTING_lane_weight || id == MC_SETTING_tenant_weight ||
                         id == MC_SETTING_kv_memory))
        rc = set_engines(s, id, &copy, err);
    else if (rc == 0 && id == MC_SETTING_tenant_rate)
        rc = mc_serve_rates(&copy, s->keys, err);
    else if (rc == 0)
        rc = mc_cli_logs(&copy, err);
    mc_settings_free(&copy);
    return rc;
}

/* ---- loading ----------------------------------------------------------------------- */

static int begin_record(struct serve *s, struct mc_err *err)
{
    const struct mc_recorder_opts o = {s->set.record, (uint64_t)s->set.record_size,
                                       s->set.record_tokens};
    int rc = mc_recorder_open(&o, &s->rec, err);

    return rc < 0 ? rc : mc_engine_record(s->server.model[0].engine, s->rec, err);
}

static int load(struct serve *s, struct mc_err *err)
{
    const struct mc_settings *c = &s->set;
    const struct mc_lua_opts lo = {.policies = *c->policies ? c->policies : NULL,
                                   .watch = c->watch, .edge_vms = (int)c->edge_vms};
    struct mc_server *m = &s->server;
    int rc = mc_models_open(m, c, s->path, s->keys, err);

    if (rc == 0 && *c->record)
        rc = begin_record(s, err);
    if (rc == 0)
        rc = s->half->open(m, &lo, &s->lua, err);
    for (int i = 0; i < m->n_model && rc == 0; i++) {
        s->policy[i] = s->half->policy(s->lua, i);
        mc_engine_set_policy(m->model[i].engine, &s->policy[i]);
        rc = mc_engine_start(m->model[i].engine, err);
    }
    if (rc == 0)
        mc_http_set_edge(m->http, s->half->edge, s->lua);
    return rc < 0 ? rc : mc_http_accept(m->http, err);
}

static void *boot(void *arg)
{
    struct serve *s = arg;
    int rc = load(s, &s->boot_err);

    atomic_store(&s->server.ready, rc == 0);
    atomic_store(&s->boot_rc, rc);
    wake(s);
    return NULL;
}

/* The box, on stdout: what serves, where, and a line to try. */
static void show(struct serve *s)
{
    struct mc_server *m = &s->server;
    struct mc_engine_status st;
    const char *host = *s->host ? s->host : "127.0.0.1";

    mc_engine_status(m->model[0].engine, &st);
    printf("mascon %s\n", MC_VERSION);
    mc_models_show(m);
    printf("  policies  generation %u%s%s\n"
           "  URL       http://%s:%u\n"
           "  try       curl -s http://%s:%u/v1/completions -H 'content-type: "
           "application/json' -d '{\"prompt\": \"Once upon\", \"max_tokens\": 16}'\n",
           st.generation, *s->set.policies ? " from " : " (built in)", s->set.policies,
           host, mc_http_port(m->http), host, mc_http_port(m->http));
    fflush(stdout);
}

/* ---- listening --------------------------------------------------------------------- */

struct address {
    char host[256];
    uint16_t port;
};

/* "host:port", "[::1]:8000", ":8000". flag: whose value it is. */
static int read_address(const char *flag, const char *text, struct address *out,
                        struct mc_err *err)
{
    const char *colon = strrchr(text, ':');
    char *end = NULL;
    long n = colon ? strtol(colon + 1, &end, 10) : -1;
    size_t len = colon ? (size_t)(colon - text) : 0;

    if (!colon || end == colon + 1 || *end || n < 0 || n > 65535 ||
        len >= sizeof out->host)
        return mc_fail_param(err, MC_EARG, flag, "--%s: '%.60s' is no HOST:PORT", flag,
                             text);
    if (len >= 2 && text[0] == '[' && text[len - 1] == ']') {
        text++;
        len -= 2;
    }
    snprintf(out->host, sizeof out->host, "%.*s", (int)len, text);
    out->port = (uint16_t)n;
    return 0;
}

/* Verbs by TCP: refused without keys, since who gets in commands this server. */
static int listen_admin(struct serve *s, struct mc_err *err)
{
    struct address at;
    int rc = read_address("admin-listen", s->set.admin_listen, &at, err);

    if (rc == 0 && (!*at.host || !*s->set.admin_key_file))
        rc = mc_fail_param(err, MC_EARG, *at.host ? "admin-key-file" : "admin-listen",
                           "--admin-listen needs %s", *at.host ?
                           "--admin-key-file: who gets in commands this server" :
                           "a HOST: it is on no address that was not named");
    if (rc == 0)
        rc = mc_keys_open(s->set.admin_key_file, &s->server.admin_keys, err);
    if (rc == 0)
        rc = mc_rpc_open_tcp(&s->server, at.host, at.port, s->server.admin_keys,
                             &s->admin, err);
    return rc;
}

static int write_port(const char *path, unsigned port, struct mc_err *err)
{
    char tmp[4096];
    FILE *f;

    snprintf(tmp, sizeof tmp, "%s.new", path);
    f = fopen(tmp, "w");
    if (!f || fprintf(f, "%u\n", port) < 0 || fclose(f) || rename(tmp, path))
        return mc_fail_param(err, MC_EIO, "port-file", "--port-file %s: %s", path,
                             strerror(errno));
    return 0;
}

static int listen_all(struct serve *s, struct mc_err *err)
{
    struct mc_server *m = &s->server;
    struct mc_http_opts o = {.host = s->host, .metrics = on_metrics, .health = on_health,
                             .ready = on_ready, .self = s, .given = mc_notify_socket(),
                             .cors = s->set.cors, .access_log = s->set.access_log};
    struct address at = {0};
    int rc = read_address("listen", s->set.listen, &at, err);

    snprintf(s->host, sizeof s->host, "%s", at.host);
    o.port = (uint16_t)(s->set.port >= 0 ? s->set.port : at.port);
    if (!*s->host)
        o.host = "0.0.0.0";
    if (rc == 0 && *s->set.api_key_file)
        rc = mc_keys_open(s->set.api_key_file, &s->keys, err);
    if (rc == 0)
        rc = mc_serve_rates(&s->set, s->keys, err);
    m->keys = s->keys;
    if (rc == 0 && *s->set.trusted_proxies)
        rc = mc_proxies_open(s->set.trusted_proxies, &s->proxies, err);
    o.proxies = s->proxies;
    if (rc == 0)
        rc = mc_metrics_open(&m->metrics, err);
    if (rc == 0)
        rc = mc_shared_open(SHARED_BYTES, &m->shared, err);
    if (rc == 0)
        rc = mc_rpc_open(m, s->set.socket, &s->rpc, err);
    if (rc == 0 && *s->set.admin_listen)
        rc = listen_admin(s, err);
    if (rc == 0)
        rc = mc_http_open(&o, &m->http, err);
    if (rc == 0 && *s->set.port_file)
        rc = write_port(s->set.port_file, mc_http_port(m->http), err);
    if (rc == 0)
        mc_info("http", "listening host=%s port=%u socket=%s", o.host,
                mc_http_port(m->http), mc_rpc_path(s->rpc));
    return rc;
}

/* ---- running ----------------------------------------------------------------------- */

static void begin_drain(struct serve *s, double seconds)
{
    if (seconds < 0)
        seconds = (double)s->set.drain;
    s->ends = mc_now() + seconds;
    atomic_store(&s->server.draining, true);
    s->not_before = mc_now() + (mc_notify_socket() > 0 ? ACCEPTED_S : 0);
    mc_service_stopping();
    mc_http_drain(s->server.http);
    mc_info("http", "draining open=%d seconds=%.0f",
            mc_http_open_requests(s->server.http), seconds);
}

/* 0: go on; 1: end with status 0; negative: end with status 1. */
static int on_signal(struct serve *s)
{
    struct signalfd_siginfo info;

    if (read(s->signals, &info, sizeof info) != sizeof info)
        return 0;
    if (info.ssi_signo == SIGHUP) {
        json_t *out = NULL;
        struct mc_err err;

        if (s->server.policies && mc_verb_run(&s->server, "reload", NULL, &out, &err) < 0)
            mc_error("lua", "reload: %s", err.text);
        json_decref(out);
        return 0;
    }
    if (s->booting || s->ends > 0)
        return 1;
    begin_drain(s, -1);
    return 0;
}

static int on_wake(struct serve *s, struct mc_err *err)
{
    uint64_t n;
    ssize_t got = read(s->wake, &n, sizeof n);

    (void)got;
    if (s->booting && atomic_load(&s->boot_rc) <= 0) {
        s->booting = false;
        pthread_join(s->boot, NULL);
        if (atomic_load(&s->boot_rc) < 0) {
            *err = s->boot_err;
            return err->code;
        }
        show(s);
        mc_service_ready(&s->service, s->server.model[0].id,
                         mc_http_port(s->server.http));
    }
    if (atomic_exchange(&s->drain_asked, false)) {
        if (s->booting)
            return 1;
        begin_drain(s, s->drain_s);
    }
    return 0;
}

static int on_tick(struct serve *s, struct mc_err *err)
{
    if (s->booting)
        return 0;
    if (mc_models_failed(&s->server, err) < 0) {
        sleep(FAIL_GRACE_S); /* clients get their errors, probes see it */
        return err->code;
    }
    mc_service_tick(&s->service, &s->server);
    return s->ends > 0 && mc_now() >= s->not_before &&
           (mc_http_open_requests(s->server.http) == 0 || mc_now() > s->ends);
}

static int run(struct serve *s, struct mc_err *err)
{
    struct pollfd fds[2] = {{.fd = s->signals, .events = POLLIN},
                            {.fd = s->wake, .events = POLLIN}};
    int rc;

    atomic_store(&s->boot_rc, 1);
    s->booting = true;
    if (mc_thread_run(&s->boot, boot, s))
        return mc_fail(err, MC_ENOMEM, "no thread to load the model");
    for (rc = 0; rc == 0;) {
        poll(fds, 2, TICK_MS);
        if (fds[0].revents)
            rc = on_signal(s);
        if (rc == 0 && fds[1].revents)
            rc = on_wake(s, err);
        if (rc == 0)
            rc = on_tick(s, err);
    }
    return rc;
}

/* The errors that ended what was open are on their way: a moment, so that clients read
 * "draining" and not a broken connection. */
static void let_answers_out(struct mc_http *h)
{
    double until = mc_now() + 0.5;

    if (!h)
        return;
    while (mc_http_open_requests(h) > 0 && mc_now() < until)
        usleep(5000);
    usleep(50000);
}

/* Who asks first, then who answers: sessions, handlers, streams, connections, the engine. */
static void close_all(struct serve *s)
{
    struct mc_server *m = &s->server;

    mc_rpc_close(s->rpc);
    mc_rpc_close(s->admin);
    if (s->lua)
        s->half->stop(s->lua);
    for (int i = 0; i < m->n_model; i++)
        mc_pump_close(m->model[i].pump);
    let_answers_out(m->http);
    mc_http_close(m->http);
    for (int i = 0; i < m->n_model; i++)
        if (m->model[i].engine)
            mc_engine_stop(m->model[i].engine);
    if (s->lua)
        s->half->close(s->lua);
    for (int i = 0; i < m->n_model; i++) {
        mc_tokpool_close(m->model[i].tokpool);
        mc_engine_close(m->model[i].engine);
    }
    mc_recorder_close(s->rec);
    mc_shared_close(m->shared);
    mc_metrics_close(m->metrics);
    mc_proxies_close(s->proxies);
    mc_keys_close(s->keys);
    mc_keys_close(m->admin_keys);
    json_decref(m->config);
    if (*s->set.port_file)
        unlink(s->set.port_file);
}

/* ---- the command ------------------------------------------------------------------- */

static int block_signals(struct serve *s, struct mc_err *err)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, NULL); /* before any thread: they inherit it */
    s->signals = signalfd(-1, &set, SFD_CLOEXEC);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->signals < 0 || s->wake < 0)
        return mc_fail(err, MC_EIO, "no signalfd or eventfd: %s", strerror(errno));
    return 0;
}

int mc_cmd_serve(int argc, char **argv, const struct mc_lua_half *lua)
{
    static struct serve s;
    struct mc_args a = {.word = "serve", .usage = "MODEL... [flags]",
                        .who = MC_FOR_SERVE, .min = 1, .max = MC_SERVED_MAX, .set = &s.set};
    struct mc_err err = {0};
    int rc = mc_args_parse(&a, argc, argv, lua);

    if (rc >= 0)
        return rc;
    s.half = lua;
    mc_crash_install(MC_VERSION);
    mc_service_begin(&s.service);
    s.server.started = (double)time(NULL);
    s.server.config = mc_settings_json(&s.set);
    s.server.drain = on_drain;
    s.server.set = on_set;
    s.server.self = &s;
    rc = mc_models_name(&s.server, &s.set, a.pos, a.n_pos, s.path, &err);
    if (rc == 0)
        rc = mc_cli_logs(&s.set, &err);
    if (rc == 0)
        rc = block_signals(&s, &err);
    mc_http_raise_nofile();
    if (rc == 0)
        rc = listen_all(&s, &err);
    if (rc == 0)
        rc = run(&s, &err);
    if (rc < 0)
        mc_cli_fail(&err);
    if (s.booting) { /* a load can't be interrupted: the process goes as it is */
        mc_rpc_unlink(s.rpc);
        _exit(rc < 0);
    }
    close_all(&s);
    mc_settings_free(&s.set);
    return rc < 0;
}
