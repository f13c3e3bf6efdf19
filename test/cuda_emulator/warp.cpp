/* Barriers, warp collectives, and copies waited for in groups. ThreadSanitizer must see only
 * acquire and release here. */
#include <string.h>

#include "test/cuda_emulator/fibers.h"

namespace emu {

barrier_state barriers[BARRIERS];

static bool same_place(site a, site b) {
    return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file));
}

/* By members: as a whole, the compiler stores two registers and loads them as one vector, for
 * which the processor waits. */
static void stop_at(site at) {
    self->at.file = at.file;
    self->at.line = at.line;
}

void meetings_begin() {
    for (int id = 0; id < BARRIERS; id++) {
        barrier_state *b = &barriers[id];
        b->arrived = b->expected = b->waiting_count = b->sum = 0;
    }
}

void meetings_check_exit() {
    warp_state *warp = self->warp;
    fiber *lanes = &fibers[self->id - self->lane];
    warp->exited |= 1u << self->lane;
    for (int l = 0; l < LANES; l++)
        if (warp->waiting >> l & 1 && lanes[l].mask >> self->lane & 1)
            fail(lanes[l].at, "lane %d exits while lane %d waits for it in %s", self->lane, l,
                 lanes[l].waits);
    for (int id = 0; id < BARRIERS; id++)
        if (barriers[id].arrived > 0 && barriers[id].expected == thread_count)
            fail(barriers[id].at, "a thread exits while others wait in %s", barriers[id].name);
}

/* ---- barriers */

static void check_barrier(const barrier_state *b, int count, int expected, const char *name,
                          site at) {
    if (count % LANES != 0) fail(at, "%s: %d is not a multiple of the warp size", name, count);
    if (b->arrived > 0 && b->expected != expected)
        fail(at, "%s: expects %d threads here, %d at %s:%d", name, expected, b->expected,
             b->at.file, b->at.line);
    if (count > 0) return;
    if (b->arrived > 0 && !same_place(b->at, at))
        fail(at, "%s here, but other threads of the block are at %s:%d", name, b->at.file,
             b->at.line);
    if (live_count < thread_count)
        fail(at, "%s after %d thread(s) of the block exited", name, thread_count - live_count);
}

int barrier(int id, int count, const char *name, site at, int value) {
    if (id < 0 || id >= BARRIERS) fail(at, "%s: there is no barrier %d", name, id);
    barrier_state *b = &barriers[id];
    int expected = count ? count : thread_count;
    check_barrier(b, count, expected, name, at);
    b->expected = expected;
    b->at = at;
    b->name = name;
    b->sum += value;
    int parity = (int)(b->generation & 1);
    void *sync = sync_of_barrier(id, b->generation);
    release(sync);
    stats.barriers++;
    if (++b->arrived < expected) {
        self->state = AT_BARRIER;
        self->waits = name;
        stop_at(at);
        self->mask = 0;
        b->waiting[b->waiting_count++] = self;
        wait_turn();
    } else {
        b->result[parity] = b->sum;
        b->arrived = b->sum = 0;
        b->generation++;
        for (int i = 0; i < b->waiting_count; i++) make_ready(b->waiting[i]);
        b->waiting_count = 0;
        if (schedule_seed) { /* the last to arrive need not be the first to resume */
            make_ready(self);
            wait_turn();
        }
    }
    acquire(sync);
    return b->result[parity];
}

/* ---- warp collectives */

static bool in_same_call(const fiber *a, const fiber *b) {
    return a->mask == b->mask && a->function == b->function && same_place(a->at, b->at);
}

static void check_collective(const fiber *lanes) {
    const warp_state *warp = self->warp;
    const char *name = self->waits;
    unsigned mask = self->mask, bit = 1u << self->lane;
    if (!(mask & bit))
        fail(self->at, "%s: lane %d calls it but is not in mask %08x", name, self->lane, mask);
    if (mask & ~warp->present)
        fail(self->at, "%s: mask %08x names lanes the block does not have", name, mask);
    if (mask & warp->exited)
        fail(self->at, "%s: mask %08x names lanes that have exited (%08x)", name, mask,
             warp->exited & mask);
    if (warp->uniform) return;
    /* A lane that waits for this one must wait in the same call. (One that waits for others
     * only, in a smaller mask, will arrive.) */
    for (int l = 0; l < LANES; l++) {
        const fiber *other = &lanes[l];
        if (!((warp->waiting & mask) >> l & 1)) continue;
        if ((other->mask & bit) && !in_same_call(self, other))
            fail(self->at, "%s with mask %08x, but lane %d is in %s with mask %08x at %s:%d", name,
                 mask, l, other->waits, other->mask, other->at.file, other->at.line);
    }
}

static lane_group *group_of(warp_state *warp, unsigned mask) {
    lane_group *group = warp->groups, *last = warp->groups + 15;
    while (group < last && group->mask && group->mask != mask) group++;
    group->mask = mask;
    return group;
}

static bool all_have_come(const fiber *lanes) {
    if ((self->warp->waiting & self->mask) != self->mask) return false;
    if (self->warp->uniform) return true;
    for (int l = 0; l < LANES; l++)
        if (self->mask >> l & 1 && !in_same_call(self, &lanes[l])) return false;
    return true;
}

void collective(const char *name, unsigned mask, void *payload, collective_function *function,
                site at, bool orders_memory) {
    warp_state *warp = self->warp;
    fiber *lanes = &fibers[self->id - self->lane];
    self->state = AT_COLLECTIVE;
    self->waits = name;
    stop_at(at);
    self->mask = mask;
    self->payload = payload;
    self->function = function;
    if (warp->waiting == 0) warp->uniform = true;
    else if (warp->uniform)
        warp->uniform = in_same_call(self, &lanes[__builtin_ctz(warp->waiting)]);
    check_collective(lanes);
    lane_group *group = group_of(warp, mask);
    void *sync = sync_of_lanes(self->id / LANES, (int)(group - warp->groups), group->generation);
    if (orders_memory) release(sync);
    warp->waiting |= 1u << self->lane;
    if (!all_have_come(lanes)) {
        wait_turn();
    } else {
        void *payloads[LANES];
        for (int l = 0; l < LANES; l++) payloads[l] = lanes[l].payload;
        function(mask, payloads, at);
        stats.collectives++;
        warp->waiting &= ~mask;
        group->generation++;
        for (int l = 0; l < LANES; l++)
            if (mask >> l & 1 && l != self->lane) make_ready(&lanes[l]);
        self->state = READY;
        if (schedule_seed) {
            make_ready(self);
            wait_turn();
        }
    }
    if (orders_memory) acquire(sync);
}

/* ---- copies in groups */

void defer(const deferred &work, site at) {
    stop_at(at);
    self->copies->push_back(work);
    self->copies->back().group = self->open_group;
}

void defer_commit() {
    self->open_group++;
}

void defer_wait(int pending) {
    std::vector<deferred> &copies = *self->copies;
    size_t done = 0;
    for (; done < copies.size() && copies[done].group < self->open_group - pending; done++)
        copies[done].run(copies[done]);
    copies.erase(copies.begin(), copies.begin() + (long)done);
}

static void finish_cp_async(deferred &copy) {
    memcpy(copy.to, copy.from, copy.from_bytes);
    memset((char *)copy.to + copy.from_bytes, 0, copy.bytes - copy.from_bytes);
}

void cp_async(void *to, const void *from, unsigned bytes, unsigned from_bytes, site at) {
    check_aligned("cp.async: the target", to, bytes, at);
    if (from_bytes) check_aligned("cp.async: the source", from, bytes, at);
    memset(to, 0xff, bytes);
    defer({finish_cp_async, to, from, bytes, from_bytes, 0}, at);
}

/* ---- semaphores */

/* Blocks run one after another: what has not been set by now would be set by a block that may never
 * start on a GPU, where blocks wait at the same time. */
int semaphore_wait(const int *semaphore, int least, site at) {
    acquire((void *)semaphore);
    if (*semaphore < least)
        fail(at, "waits for %d at a semaphore of %d, for a block that has not started", least,
             *semaphore);
    return *semaphore;
}

void semaphore_set(int *semaphore, int value) {
    *semaphore = value;
    release(semaphore);
}

} // namespace emu
