/* peer.c - the host's part in ranks that meet on their devices: seats, and when they
 * part.
 *
 * Every rank's device reaches the others' memory. Kernels wait for each other without a
 * clock (peer.cuh); whoever waits here for a rank has the patience. A slice of waiting
 * that the ranks that came least far spent polling counts: what they wait for was sent by
 * nobody. One in which such a rank did not poll counts but a BUSY_FACTOR-th: it may be at
 * work. OWNS: a rank its seat. THREAD: opening, closing: one; looking: any. */
#include "kernels/comm/comm.h"
#include "kernels/cuda/cuda.h"

enum { BUSY_FACTOR = 24, ALREADY = 704 /* peer access is enabled */ };

static const char *reach(struct mc_cu *from, struct mc_cu *to)
{
    int can = 0;
    mc_cu_result rc;

    if (from->dev == to->dev)
        return NULL;
    if (from->api.DeviceCanAccessPeer(&can, from->dev, to->dev) != 0 || !can)
        return "cuda: ranks need devices that reach each other's memory (NVLink, or PCIe "
               "with peer access)";
    from->api.CtxSetCurrent(from->ctx);
    rc = from->api.CtxEnablePeerAccess(to->ctx, 0);
    return rc == 0 || rc == ALREADY ? NULL : "cuda: peer access is refused";
}

const char *mc_cu_sit(struct mc_cu *cu)
{
    const struct mc_peer *peer = &cu->b.peer;
    const char *no = NULL;

    cu->peers = (struct mc_cu_peers){
        .words = cu->words, .rank = peer->rank, .n = peer->n > 1 ? peer->n : 1};
    if (peer->n < 2)
        return NULL;
    if (!peer->comm)
        return "cuda: ranks have no place to meet";
    cu->seat_bytes = MC_CU_HEAD_BYTES + 2 * (size_t)peer->n * MC_CU_ROOM;
    cu->peers.seat[peer->rank] = cu->b.alloc(&cu->b, cu->seat_bytes);
    if (!cu->peers.seat[peer->rank])
        return "cuda: no memory for what ranks exchange";
    for (int32_t r = 0; r < peer->n && !no; r++) {
        struct mc_cu *other = mc_comm_seat(peer->comm, r);

        if (other)
            no = reach(other, cu);
        if (other && !no)
            no = reach(cu, other);
    }
    cu->api.CtxSetCurrent(cu->ctx);
    if (!no)
        mc_comm_sit(peer->comm, peer->rank, cu, &cu->words->parted);
    return no;
}

void mc_cu_leave(struct mc_cu *cu)
{
    const struct mc_peer *peer = &cu->b.peer;

    if (peer->n < 2 || !peer->comm)
        return;
    if (mc_comm_seat(peer->comm, peer->rank) == cu)
        mc_comm_sit(peer->comm, peer->rank, NULL, NULL);
    cu->b.release(&cu->b, cu->peers.seat[peer->rank], cu->seat_bytes);
}

int mc_cu_peers_of(struct mc_stream *s, struct mc_cu_peers *out)
{
    struct mc_cu *cu = (struct mc_cu *)mc_cu_backend(s);

    for (int32_t r = 0; r < cu->peers.n; r++) {
        struct mc_cu *other = cu->peers.n > 1 ? mc_comm_seat(cu->b.peer.comm, r) : cu;

        if (!other)
            return MC_K_EARG;
        cu->peers.seat[r] = other->peers.seat[r];
    }
    *out = cu->peers;
    return 0;
}

/* ---- parting ----------------------------------------------------------------------- */

static uint32_t word(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

/* Of the ranks that came least far: where to, who is first, and whether all of them
 * polled since the last look. */
struct last {
    uint32_t came;
    int32_t rank;
    bool polled;
};

static struct last last_of(struct mc_cu *cu)
{
    struct last l = {.rank = -1};

    for (int32_t r = 0; r < cu->b.peer.n; r++) {
        struct mc_cu *other = mc_comm_seat(cu->b.peer.comm, r);
        uint32_t came = other ? word(&other->words->came) : 0;
        uint32_t polls = other ? word(&other->words->polls) : 0;
        bool polled = polls != cu->late.polls[r];

        cu->late.polls[r] = polls;
        if (l.rank < 0 || (int32_t)(came - l.came) < 0)
            l = (struct last){came, r, polled};
        else if (came == l.came)
            l.polled = l.polled && polled;
    }
    return l;
}

int mc_cu_parted(struct mc_cu *cu)
{
    struct mc_comm *comm = cu->b.peer.comm;
    uint32_t fault = word(&cu->words->fault);

    if (fault & MC_CU_DIGEST)
        mc_comm_break(comm, "step digest mismatch: ranks 0 and %d hold different rows, "
                      "page tables or slots", (int)(fault - MC_CU_DIGEST));
    else if (fault == MC_CU_ASKED)
        mc_comm_break(comm, "rank %d failed: MC_FAIL asks for it", cu->b.peer.rank);
    else if (fault)
        mc_comm_break(comm, "rank %d failed: operation %d found its lists broken",
                      cu->b.peer.rank, (int)fault - 1);
    return mc_comm_broken(comm) ? MC_K_ERANK : 0;
}

void mc_cu_waited(struct mc_cu *cu, uint32_t ms)
{
    struct last l = last_of(cu);
    uint32_t patience = mc_comm_patience_ms(cu->b.peer.comm);

    for (int32_t r = 0; r < cu->b.peer.n; r++) /* whoever failed does not come */
        if (mc_comm_seat(cu->b.peer.comm, r))
            mc_cu_parted(mc_comm_seat(cu->b.peer.comm, r));
    if (l.came != cu->late.came)
        cu->late.waited = 0;
    else
        cu->late.waited += l.polled ? ms * BUSY_FACTOR : ms;
    cu->late.came = l.came;
    if (cu->late.waited >= patience * BUSY_FACTOR)
        mc_comm_break(cu->b.peer.comm, "rank %d did not come within %.1f s", l.rank,
                      patience / 1e3);
}
