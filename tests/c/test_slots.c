/* test_slots.c - device state between steps: table_apply, commit, whole pages and tags. */
#include "tests/c/test.h"

#include "kernels/host/cast.h"
#include "tests/c/kern.h"

enum { V = 20, N_SLOT = 3, PITCH = 4, N_PAGE = 6 };

struct state {
    struct kern k;
    struct mc_kv kv;
    int32_t table[N_SLOT * PITCH];
    uint32_t want[N_SLOT * PITCH], tag[N_PAGE];
    struct mc_slot slots[N_SLOT];
    uint16_t counts[N_SLOT * V];
    struct mc_bias bias[N_SLOT * MC_MAX_BIAS];
};

static struct state *state_new(void)
{
    struct state *s = calloc(1, sizeof *s);
    struct mc_kv *kv = &s->kv;

    s->k = kern_ref(2, -1);
    *kv = (struct mc_kv){.table = s->table, .want_tag = s->want, .tag = s->tag,
                         .pitch = PITCH, .n_page = N_PAGE, .n_slot = N_SLOT, .hk = 1,
                         .d = 4, .n_layer = 2, .n_shard = 1, .layout = MC_KV_BF16};
    kv->layer_stride = mc_kv_layer_bytes(MC_KV_BF16, 1, 4);
    kv->page_stride = 2 * kv->layer_stride;
    kv->base = s->k.b->alloc(s->k.b, (size_t)(N_PAGE * kv->page_stride));
    return s;
}

static void state_free(struct state *s)
{
    s->k.b->release(s->k.b, s->kv.base, (size_t)(N_PAGE * s->kv.page_stride));
    kern_close(&s->k);
    free(s);
}

static struct mc_table_apply_p apply_p(struct state *s, const struct mc_delta *d,
                                       int32_t n, const struct mc_slot *in)
{
    return (struct mc_table_apply_p){.kv = s->kv, .slots = s->slots, .counts = s->counts,
                                     .bias = s->bias, .vocab = V, .delta = d, .n_delta = n,
                                     .slots_in = in};
}

/* ---- table_apply, commit ----------------------------------------------------------- */

static void slots_table_apply_uploads_rows_and_deltas_in_order(void **state)
{
    struct state *s = state_new();
    struct mc_slot in[2] = {{.tok = 9, .pos = 30, .samp = {.flags = MC_SAMP_PENALTY}},
                            {.tok = 8, .pos = 20}};
    struct mc_delta d[] = {
        {MC_DELTA_PAGE, 1, 2, 5, 77},
        {MC_DELTA_PAGE, 1, 3, 4, 78},
        {MC_DELTA_PAGE, 1, 3, 3, 79},                      /* the later one holds */
        {MC_DELTA_SLOT, 1, 0, 0, 0},   {MC_DELTA_SEEN, 1, 0, 3, 0},
        {MC_DELTA_SEEN, 1, 0, 4, 0},   {MC_DELTA_GEN, 1, 0, 4, 0},
        {MC_DELTA_GEN, 1, 0, 9, 0},    {MC_DELTA_TOK, 1, 0, 7, 0},
        {MC_DELTA_BIAS, 1, 2, 11, mc_bits_of_f32(-1.5f)},
        {MC_DELTA_SLOT, 2, 0, 1, 0},   {MC_DELTA_SEEN, 2, 0, 3, 0}, /* keeps no counts */
        {MC_DELTA_TOK, 2, 0, 6, 0},
    };
    int32_t from[3] = {1, 2, 3}, to[3] = {0};
    struct mc_table_apply_p p = apply_p(s, d, sizeof d / sizeof d[0], in);
    int i;

    (void)state;
    for (i = 0; i < V; i++)
        s->counts[V + i] = 0x8005; /* of whoever had the slot before */
    p.rows_from = from;
    p.rows_to = to;
    p.rows_bytes = sizeof from;
    kern_run(&s->k, table_apply, p);
    assert_memory_equal(to, from, sizeof from);
    assert_int_equal(s->table[PITCH + 2], 5);
    assert_int_equal(s->want[PITCH + 2], 77);
    assert_int_equal(s->table[PITCH + 3], 3);
    assert_int_equal(s->want[PITCH + 3], 79);
    assert_int_equal(s->slots[1].tok, 7);
    assert_int_equal(s->slots[1].pos, 30);
    assert_int_equal(s->slots[2].tok, 6);
    for (i = 0; i < V; i++) {
        /* 9 was generated, then overridden by 7 */
        static const uint16_t want[V] = {[3] = 0x8000, [4] = 0x8001, [7] = 1};

        assert_int_equal(s->counts[V + i], want[i]);
        assert_int_equal(s->counts[2 * V + i], 0);
    }
    assert_int_equal(s->bias[MC_MAX_BIAS + 2].id, 11);
    assert_true(s->bias[MC_MAX_BIAS + 2].add == -1.5f);
    state_free(s);
}

static void slots_table_apply_stops_at_a_wrong_delta(void **state)
{
    static const struct mc_delta wrong[] = {
        {MC_DELTA_PAGE, N_SLOT, 0, 0, 0}, {MC_DELTA_PAGE, -1, 0, 0, 0},
        {MC_DELTA_PAGE, 0, PITCH, 0, 0},  {MC_DELTA_PAGE, 0, 0, N_PAGE, 0},
        {MC_DELTA_SEEN, 0, 0, V, 0},      {MC_DELTA_TOK, 0, 0, -1, 0},
        {MC_DELTA_BIAS, 0, MC_MAX_BIAS, 0, 0}, {99, 0, 0, 0, 0},
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct state *s = state_new();
        struct mc_table_apply_p p = apply_p(s, &wrong[i], 1, NULL);

        mc_k_table_apply(s->k.b, s->k.s, &p);
        assert_int_equal(s->k.b->wait(s->k.s, s->k.b->mark(s->k.s)), MC_K_EINTERNAL);
        state_free(s);
    }
}

static void slots_commit_moves_good_rows_only(void **state)
{
    struct state *s = state_new();
    struct kern_rows r = {0};
    struct mc_out out[2] = {{.slot = 2, .tok = 5, .pos = 12, .logprob = -0.5f},
                            {.slot = 0, .tok = -1, .pos = 4, .bad = MC_BAD_LOGITS}};
    struct mc_out ring[2];

    (void)state;
    kern_seq(&r, 2, 11, 1, true);
    kern_seq(&r, 0, 3, 1, true);
    s->slots[2] = (struct mc_slot){.tok = 1, .pos = 11, .n_gen = 6,
                                   .samp = {.flags = MC_SAMP_PENALTY}};
    s->slots[0] = (struct mc_slot){.tok = 2, .pos = 3, .n_gen = 1};
    s->counts[2 * V + 5] = 0xFFFE; /* the count sticks at its top */
    for (int i = 0; i < 3; i++)
        kern_run(&s->k, commit, {kern_view(&r), out, s->slots, s->counts, V, ring});
    assert_int_equal(s->slots[2].tok, 5);
    assert_int_equal(s->slots[2].pos, 12);
    assert_int_equal(s->slots[2].n_gen, 9);
    assert_int_equal(s->counts[2 * V + 5], 0xFFFF);
    assert_int_equal(s->slots[0].tok, 2);
    assert_int_equal(s->slots[0].pos, 3);
    assert_int_equal(s->slots[0].n_gen, 1);
    assert_int_equal(s->slots[0].bad, MC_BAD_LOGITS);
    assert_memory_equal(ring, out, sizeof out);
    state_free(s);
}

/* ---- pages ------------------------------------------------------------------------- */

static void slots_page_init_zeroes_and_stamps(void **state)
{
    struct state *s = state_new();
    uint32_t list[] = {4, 1001, 1, 1002, 2, 1003};
    int32_t n = 2;
    int64_t i, size = s->kv.page_stride;

    (void)state;
    memset(s->kv.base, 0x7F, (size_t)(N_PAGE * size));
    kern_run(&s->k, page_init, {s->kv, list, &n, 3});
    for (i = 0; i < N_PAGE * size; i++)
        assert_int_equal(s->kv.base[i], i / size == 4 || i / size == 1 ? 0 : 0x7F);
    assert_memory_equal(s->tag, ((uint32_t[N_PAGE]){0, 1002, 0, 0, 1001, 0}),
                        sizeof s->tag);
    state_free(s);
}

static void slots_page_copy_moves_whole_pages(void **state)
{
    struct state *s = state_new();
    int32_t pages[] = {5, 0, 3};
    int64_t i, size = s->kv.page_stride;
    uint8_t *buf = malloc((size_t)(3 * size));

    (void)state;
    for (i = 0; i < N_PAGE * size; i++)
        s->kv.base[i] = (uint8_t)(i * 7 + i / size);
    kern_run(&s->k, page_copy, {s->kv, pages, 3, buf, true});
    for (i = 0; i < 3; i++)
        assert_memory_equal(buf + i * size, s->kv.base + pages[i] * size, (size_t)size);
    memset(s->kv.base, 0, (size_t)(N_PAGE * size));
    pages[0] = 2;
    kern_run(&s->k, page_copy, {s->kv, pages, 3, buf, false});
    for (i = 0; i < 3; i++)
        assert_memory_equal(s->kv.base + pages[i] * size, buf + i * size, (size_t)size);
    for (i = 0; i < size; i++)
        assert_int_equal(s->kv.base[5 * size + i], 0);
    free(buf);
    state_free(s);
}

static void slots_page_check_marks_strangers(void **state)
{
    struct state *s = state_new();
    struct kern_rows r = {0};
    int i;

    (void)state;
    kern_seq(&r, 0, MC_PAGE, 1, true);      /* blocks 0, 1 */
    kern_seq(&r, 1, MC_PAGE - 1, 1, true);  /* block 0 only */
    kern_seq(&r, 2, 0, 10, false);
    for (i = 0; i < N_PAGE; i++)
        s->tag[i] = (uint32_t)(100 + i);
    for (i = 0; i < 2; i++) {
        s->table[i] = 2 + i;
        s->want[i] = (uint32_t)(102 + i);
    }
    s->table[PITCH] = 4;
    s->want[PITCH] = 104;
    s->table[PITCH + 1] = -1; /* beyond its context: not looked at */
    s->table[2 * PITCH] = 5;
    s->want[2 * PITCH] = 105;
    kern_run(&s->k, page_check, {.rows = kern_view(&r), .kv = s->kv, .slots = s->slots});
    for (i = 0; i < 3; i++)
        assert_int_equal(s->slots[i].bad, 0);
    s->tag[3] = 999;            /* went to a stranger */
    s->table[PITCH] = N_PAGE;   /* no page at all */
    kern_run(&s->k, page_check, {.rows = kern_view(&r), .kv = s->kv, .slots = s->slots});
    assert_int_equal(s->slots[0].bad, MC_BAD_PAGE);
    assert_int_equal(s->slots[1].bad, MC_BAD_PAGE);
    assert_int_equal(s->slots[2].bad, 0);
    state_free(s);
}

static void slots_memory_is_zeroed_and_aligned(void **state)
{
    struct kern k = kern_ref(1, -1);
    static const size_t size[] = {0, 1, 100, 1 << 20, (1 << 20) + 1};
    size_t i, j;

    (void)state;
    for (i = 0; i < sizeof size / sizeof size[0]; i++) {
        unsigned char *p = k.b->alloc(k.b, size[i]);

        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (j = 0; j < size[i]; j++)
            assert_int_equal(p[j], 0);
        k.b->release(k.b, p, size[i]);
    }
    assert_null(k.b->alloc(k.b, SIZE_MAX / 2));
    kern_close(&k);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(slots_table_apply_uploads_rows_and_deltas_in_order),
    cmocka_unit_test(slots_table_apply_stops_at_a_wrong_delta),
    cmocka_unit_test(slots_commit_moves_good_rows_only),
    cmocka_unit_test(slots_page_init_zeroes_and_stamps),
    cmocka_unit_test(slots_page_copy_moves_whole_pages),
    cmocka_unit_test(slots_page_check_marks_strangers),
    cmocka_unit_test(slots_memory_is_zeroed_and_aligned),
};

MC_TEST_MAIN(tests)
