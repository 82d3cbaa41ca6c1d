/* wire.c - the scan, and msgpack to JSON values and back. OWNS nothing. THREAD: any. */
#include "core/serve/wire.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <msgpack.h>

/* ---- the scan ---------------------------------------------------------------------- */

/* One header: its own bytes (with a fixed payload), the payload's bytes, the values
 * inside. */
struct head {
    size_t bytes, payload;
    uint64_t inside;
    bool refused;
};

static uint64_t big_endian(const uint8_t *p, size_t n)
{
    uint64_t v = 0;

    while (n--)
        v = v << 8 | *p++;
    return v;
}

/* Bytes of the header that starts with c, length field included; payload of fixed size is
 * counted in. *field: bytes of the length or count field. */
static struct head head_of(uint8_t c, size_t *field)
{
    static const uint8_t fixed[] = {/* c0 */ 1,
                                    0,
                                    1,
                                    1,
                                    /* bin */ 2,
                                    3,
                                    5,
                                    /* ext */ 3,
                                    4,
                                    6,
                                    /* float */ 5,
                                    9,
                                    /* uint */ 2,
                                    3,
                                    5,
                                    9,
                                    /* int */ 2,
                                    3,
                                    5,
                                    9,
                                    /* fixext */ 3,
                                    4,
                                    6,
                                    10,
                                    18,
                                    /* str */ 2,
                                    3,
                                    5,
                                    /* array */ 3,
                                    5,
                                    /* map */ 3,
                                    5};
    struct head h = {1, 0, 0, false};

    *field = 0;
    if (c < 0x80 || c >= 0xE0)
        return h;
    if (c < 0x90) {
        h.inside = 2u * (c & 15);
    } else if (c < 0xA0) {
        h.inside = c & 15;
    } else if (c < 0xC0) {
        h.payload = c & 31;
    } else {
        h.bytes = fixed[c - 0xC0];
        h.refused = c == 0xC1 || (c >= 0xC7 && c <= 0xC9) || (c >= 0xD4 && c <= 0xD8);
        if ((c >= 0xC4 && c <= 0xC6) || c >= 0xD9)
            *field = h.bytes - 1;
    }
    return h;
}

/* The header at data; false when it is cut off. */
static bool read_head(const uint8_t *data, size_t n, struct head *h)
{
    uint8_t c = data[0];
    size_t field;
    uint64_t v;

    *h = head_of(c, &field);
    if (h->refused)
        return true;
    if (h->bytes > n)
        return false;
    v = big_endian(data + 1, field);
    if (c >= 0xDC && c <= 0xDF)
        h->inside = c >= 0xDE ? 2 * v : v;
    else if (field)
        h->payload = v;
    return true;
}

int mc_wire_scan(const void *data, size_t n, size_t max, size_t *len, struct mc_err *err)
{
    uint64_t left[MC_WIRE_DEPTH + 1] = {1}; /* values still to come, by depth */
    const uint8_t *p = data;
    size_t at = 0;
    int depth = 0;

    for (;;) {
        struct head h;

        while (left[depth] == 0) {
            if (depth-- == 0) {
                *len = at;
                return 1;
            }
        }
        if (at >= max)
            return mc_fail(err, MC_EBIG, "a message has more than %zu bytes", max);
        if (at >= n || !read_head(p + at, n - at, &h))
            return 0;
        if (h.refused)
            return mc_fail(err, MC_EFORMAT, "msgpack type 0x%02x is not taken", p[at]);
        left[depth]--;
        at += h.bytes;
        if (at > max || h.payload > max - at || h.inside > max - at)
            return mc_fail(err, MC_EBIG,
                           "a msgpack length or count goes beyond the %zu bytes "
                           "that a message may have",
                           max);
        at += h.payload;
        if (at > n)
            return 0;
        if (h.inside && ++depth > MC_WIRE_DEPTH)
            return mc_fail(err, MC_EFORMAT, "the msgpack is nested deeper than %d",
                           MC_WIRE_DEPTH);
        if (h.inside)
            left[depth] = h.inside;
    }
}

/* ---- reading ----------------------------------------------------------------------- */

static json_t *value_of(const msgpack_object *o, bool bytes, struct mc_err *err);

static json_t *text_of(const char *s, size_t n, bool bytes, struct mc_err *err)
{
    json_t *v = bytes ? json_stringn_nocheck(s, n) : json_stringn(s, n);

    if (!v)
        mc_fail(err, MC_EFORMAT, "a msgpack string is not valid UTF-8");
    return v;
}

static json_t *array_of(const msgpack_object_array *a, bool bytes, struct mc_err *err)
{
    json_t *out = json_array(), *v;
    uint32_t i;

    for (i = 0; i < a->size; i++) {
        v = value_of(&a->ptr[i], bytes, err);
        if (!v) {
            json_decref(out);
            return NULL;
        }
        json_array_append_new(out, v);
    }
    return out;
}

static int add_pair(json_t *out, const msgpack_object_kv *kv, bool bytes,
                    struct mc_err *err)
{
    const msgpack_object_str *k = &kv->key.via.str;
    json_t *v;
    int rc;

    if (kv->key.type != MSGPACK_OBJECT_STR || memchr(k->ptr, 0, k->size))
        return mc_fail(err, MC_EFORMAT,
                       "a msgpack map has a key that is no plain string");
    if (json_object_getn(out, k->ptr, k->size))
        return mc_fail(err, MC_EFORMAT, "a msgpack map has a key twice");
    v = value_of(&kv->val, bytes, err);
    if (!v)
        return MC_EFORMAT;
    rc = bytes ? json_object_setn_new_nocheck(out, k->ptr, k->size, v)
               : json_object_setn_new(out, k->ptr, k->size, v);
    return rc == 0 ? 0 : mc_fail(err, MC_EFORMAT, "a msgpack key is not valid UTF-8");
}

static json_t *map_of(const msgpack_object_map *m, bool bytes, struct mc_err *err)
{
    json_t *out = json_object();
    uint32_t i;

    for (i = 0; i < m->size; i++) {
        if (add_pair(out, &m->ptr[i], bytes, err) < 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

static json_t *value_of(const msgpack_object *o, bool bytes, struct mc_err *err)
{
    switch (o->type) {
    case MSGPACK_OBJECT_NIL: return json_null();
    case MSGPACK_OBJECT_BOOLEAN: return json_boolean(o->via.boolean);
    case MSGPACK_OBJECT_NEGATIVE_INTEGER: return json_integer(o->via.i64);
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        if (o->via.u64 <= INT64_MAX)
            return json_integer((json_int_t)o->via.u64);
        break;
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        if (isfinite(o->via.f64))
            return json_real(o->via.f64);
        break;
    case MSGPACK_OBJECT_STR: return text_of(o->via.str.ptr, o->via.str.size, bytes, err);
    case MSGPACK_OBJECT_BIN:
        if (bytes)
            return text_of(o->via.bin.ptr, o->via.bin.size, true, err);
        break;
    case MSGPACK_OBJECT_ARRAY: return array_of(&o->via.array, bytes, err);
    case MSGPACK_OBJECT_MAP: return map_of(&o->via.map, bytes, err);
    case MSGPACK_OBJECT_EXT: break;
    }
    mc_fail(err, MC_EFORMAT, "a msgpack value has a type or size that is not taken");
    return NULL;
}

int mc_wire_read(const void *data, size_t n, bool bytes, json_t **out, struct mc_err *err)
{
    msgpack_unpacked u;
    struct mc_err mine = {0};
    size_t len = 0, off = 0;
    int rc = mc_wire_scan(data, n, n, &len, err);

    if (rc < 0)
        return rc;
    if (rc == 0 || len != n)
        return mc_fail(err, MC_EFORMAT, rc == 0 ? "the msgpack ends too early"
                                                : "bytes follow the msgpack value");
    msgpack_unpacked_init(&u);
    if (msgpack_unpack_next(&u, data, n, &off) != MSGPACK_UNPACK_SUCCESS)
        rc = mc_fail(&mine, MC_EFORMAT, "malformed msgpack");
    else
        *out = value_of(&u.data, bytes, &mine);
    msgpack_unpacked_destroy(&u);
    if (!mine.code)
        return 0;
    if (err)
        *err = mine;
    return mine.code;
}

/* ---- writing ----------------------------------------------------------------------- */

static bool write_value(msgpack_packer *p, const json_t *v, int depth)
{
    const char *key;
    json_t *item;
    size_t i;

    if (depth > MC_WIRE_DEPTH)
        return false;
    switch (json_typeof(v)) {
    case JSON_NULL: msgpack_pack_nil(p); return true;
    case JSON_TRUE: msgpack_pack_true(p); return true;
    case JSON_FALSE: msgpack_pack_false(p); return true;
    case JSON_INTEGER: msgpack_pack_int64(p, json_integer_value(v)); return true;
    case JSON_REAL: msgpack_pack_double(p, json_real_value(v)); return true;
    case JSON_STRING:
        msgpack_pack_str(p, json_string_length(v));
        msgpack_pack_str_body(p, json_string_value(v), json_string_length(v));
        return true;
    case JSON_ARRAY:
        msgpack_pack_array(p, json_array_size(v));
        json_array_foreach(v, i, item)
            if (!write_value(p, item, depth + 1))
                return false;
        return true;
    case JSON_OBJECT:
        msgpack_pack_map(p, json_object_size(v));
        json_object_foreach((json_t *)v, key, item) {
            msgpack_pack_str(p, strlen(key));
            msgpack_pack_str_body(p, key, strlen(key));
            if (!write_value(p, item, depth + 1))
                return false;
        }
        return true;
    }
    return false;
}

char *mc_wire_write(const json_t *v, size_t *n)
{
    msgpack_sbuffer buf;
    msgpack_packer p;
    char *out = NULL;

    msgpack_sbuffer_init(&buf);
    msgpack_packer_init(&p, &buf, msgpack_sbuffer_write);
    if (v && write_value(&p, v, 0)) {
        *n = buf.size;
        out = msgpack_sbuffer_release(&buf);
    }
    msgpack_sbuffer_destroy(&buf);
    return out;
}
