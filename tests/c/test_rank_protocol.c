/* test_rank_protocol.c - the epochs of kernels/cuda/peer.cuh as a small machine, all of
 * whose states are visited: nobody takes a packet of another step, nobody waits for ever.
 * Planted faults of the protocol are found, each.
 *
 * Ranks run joins, one step after another. A rank has room for one running block, which
 * it picks in any order: a block claims and sends rows, waits for its own row of every
 * other rank, and leaves; the last one ends the step. A packet is two halves {tag, data},
 * each delivered by itself whenever it likes; a reader reads one half after the other and
 * begins again when a tag is not its epoch's. Data is the step that it was made in, so
 * that a read of another step's is seen. The same faults in the kernels are
 * tests/mutants/cuda.txt's. */
#include "tests/c/test.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { N = 3, R = 2 };

enum fault { NONE, NO_TAG, ONE_TAG, EPOCH_STUCK, ONE_PLACE, OWN_ROW_ONLY, N_FAULT };

enum phase { IDLE, SENDS, READS, AGAIN };

struct half {
    uint8_t tag : 4, data : 4;
};

struct rank {
    uint8_t step, epoch; /* under way, from 1; counted */
    uint8_t taken, left; /* rows claimed, a mask of blocks that left */
    uint8_t phase, block, from,
        seen; /* of the running block: whom it reads; half 0's data */
    struct half place[2][N][R][2]; /* what the others sent, by parity and sender */
    uint8_t way[N][R][2]; /* from others and under way: a mask of steps */
};

struct state {
    struct rank r[N];
};

struct model {
    int32_t n, rows, steps;
    enum fault fault;
    struct state *all; /* those reached, in order */
    uint32_t n_all, cap, *table, n_table;
    uint32_t moves; /* out of the state that is looked at */
    const char *bad;
};

/* ---- states ------------------------------------------------------------------------ */

static uint32_t hash(const struct state *s)
{
    const uint8_t *p = (const uint8_t *)s;
    uint32_t h = 2166136261u;

    for (size_t i = 0; i < sizeof *s; i++)
        h = (h ^ p[i]) * 16777619u;
    return h ^ h >> 15;
}

static void reach(struct model *m, const struct state *s)
{
    uint32_t at = hash(s) & (m->n_table - 1);

    m->moves++;
    for (; m->table[at]; at = (at + 1) & (m->n_table - 1))
        if (memcmp(&m->all[m->table[at] - 1], s, sizeof *s) == 0)
            return;
    if (2 * (m->n_all + 1) > m->n_table)
        fail_msg("more than %u states", m->n_all);
    if (m->n_all == m->cap) {
        m->cap = m->cap ? 2 * m->cap : 1024;
        m->all = realloc(m->all, m->cap * sizeof *m->all);
        assert_non_null(m->all);
    }
    m->all[m->n_all++] = *s;
    m->table[at] = m->n_all;
}

/* ---- what a rank may do next ------------------------------------------------------- */

static uint8_t tag_of(const struct rank *me)
{
    return (uint8_t)(me->epoch + 1);
}

static int parity(const struct model *m, uint8_t tag)
{
    return m->fault == ONE_PLACE ? 0 : tag % 2;
}

static void send(const struct model *m, struct state *s, int32_t i, int32_t row)
{
    for (int32_t to = 0; to < m->n; to++)
        for (int h = 0; to != i && h < 2; h++)
            s->r[to].way[i][row][h] |= (uint8_t)(1u << s->r[i].step);
}

/* The running block has seen all it waits for. */
static void leave(const struct model *m, struct rank *me)
{
    me->left |= (uint8_t)(1u << me->block);
    me->phase = IDLE;
    me->block = me->from = me->seen = 0;
    if (me->left != (1u << m->rows) - 1)
        return;
    me->left = me->taken = 0;
    me->step++;
    me->epoch = (uint8_t)(me->epoch + (m->fault != EPOCH_STUCK));
}

static void next_from(const struct model *m, struct rank *me, int32_t i)
{
    me->phase = READS;
    me->seen = 0;
    if (me->from == i)
        me->from++;
    if (me->from == m->n)
        leave(m, me);
}

static void run_block(struct model *m, const struct state *s, int32_t i)
{
    struct state t = *s;
    struct rank *me = &t.r[i];
    const struct half *h = s->r[i].place[parity(m, tag_of(me))][me->from % N][me->block];

    switch (me->phase) {
    case SENDS:
        if (m->fault == OWN_ROW_ONLY) {
            send(m, &t, i, me->block);
            next_from(m, me, i);
        } else if (me->taken < m->rows) {
            send(m, &t, i, me->taken++);
        } else {
            next_from(m, me, i);
        }
        break;
    case READS:
        if (h[0].tag != tag_of(me) && m->fault != NO_TAG)
            return;
        me->seen = h[0].data;
        me->phase = AGAIN;
        break;
    default:
        if (h[1].tag != tag_of(me) && m->fault != NO_TAG && m->fault != ONE_TAG) {
            me->phase = READS;
            me->seen = 0;
            break;
        }
        if (me->seen != me->step || h[1].data != me->step)
            m->bad = "a packet of another step is taken";
        me->from++;
        next_from(m, me, i);
    }
    reach(m, &t);
}

static void run_rank(struct model *m, const struct state *s, int32_t i)
{
    const struct rank *me = &s->r[i];

    if (me->step > m->steps)
        return;
    if (me->phase != IDLE) {
        run_block(m, s, i);
        return;
    }
    for (int32_t b = 0; b < m->rows; b++)
        if (!(me->left >> b & 1)) {
            struct state t = *s;

            t.r[i].phase = SENDS;
            t.r[i].block = (uint8_t)b;
            reach(m, &t);
        }
}

/* A half that is under way to rank i arrives. */
static void deliver(struct model *m, const struct state *s, int32_t i)
{
    for (int32_t from = 0; from < m->n; from++)
        for (int32_t row = 0; row < m->rows; row++)
            for (int h = 0; h < 2; h++)
                for (int step = 1; step <= m->steps; step++) {
                    struct state t = *s;
                    uint8_t tag = (uint8_t)(m->fault == EPOCH_STUCK ? 1 : step);

                    if (!(s->r[i].way[from][row][h] >> step & 1))
                        continue;
                    t.r[i].way[from][row][h] &= (uint8_t)~(1u << step);
                    t.r[i].place[parity(m, tag)][from][row][h] =
                        (struct half){tag & 15, (uint8_t)step & 15};
                    reach(m, &t);
                }
}

/* Visits all states; the text of what is wrong, or NULL. */
static const char *explore(int32_t n, int32_t rows, int32_t steps,
                           enum fault fault, uint32_t *n_state)
{
    struct model m = {
        .n = n, .rows = rows, .steps = steps, .fault = fault, .n_table = 1 << 21};
    struct state first;

    memset(&first, 0, sizeof first);
    for (int32_t i = 0; i < n; i++)
        first.r[i].step = 1;
    m.table = calloc(m.n_table, sizeof *m.table);
    assert_non_null(m.table);
    reach(&m, &first);
    for (uint32_t k = 0; k < m.n_all && !m.bad; k++) {
        struct state s = m.all[k];
        bool ended = true;

        m.moves = 0;
        for (int32_t i = 0; i < n; i++) {
            run_rank(&m, &s, i);
            deliver(&m, &s, i);
            ended = ended && s.r[i].step > steps;
        }
        if (m.moves == 0 && !ended)
            m.bad = "ranks wait for each other";
    }
    *n_state = m.n_all;
    free(m.all);
    free(m.table);
    return m.bad;
}

static void protocol_takes_no_stale_packet_and_never_hangs(void **state)
{
    uint32_t a, b;

    (void)state;
    assert_null(explore(2, 2, 4, NONE, &a));
    assert_null(explore(3, 1, 2, NONE, &b));
    print_message("%u states of 2 ranks with 2 rows, %u of 3 with 1: all are well\n", a,
                  b);
}

static void protocol_faults_are_found(void **state)
{
    static const struct {
        enum fault fault;
        const char *why;
    } of[] = {{NO_TAG, "a packet of another step is taken"},
              {ONE_TAG, "a packet of another step is taken"},
              {EPOCH_STUCK, "a packet of another step is taken"},
              {ONE_PLACE, NULL}, /* is overwritten: either */
              {OWN_ROW_ONLY, "ranks wait for each other"}};

    (void)state;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        uint32_t n;
        const char *why = explore(2, 2, 4, of[i].fault, &n);

        if (!why || (of[i].why && strcmp(why, of[i].why) != 0))
            fail_msg("fault %d: %s", of[i].fault, why ? why : "not found");
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(protocol_takes_no_stale_packet_and_never_hangs),
    cmocka_unit_test(protocol_faults_are_found),
};

MC_TEST_MAIN(tests)
