// Random calls from four threads, many of them wrong: null objects, wrong sizes, offsets, orders and statuses. The program ends
// normally if no call crashes, waits for ever or leaks.
//
// The first argument is the backend. GPU_VMM_RANDOM_CALLS sets the number of calls, GPU_VMM_RANDOM_SEED the seed.

// For pthreads.
#define _POSIX_C_SOURCE 200809L

#include "support.h"
#include <inttypes.h>
#include <pthread.h>

enum { THREADS = 4, OBJECTS = 4 };

// Objects that all threads use. They live until the threads have ended; those of a thread are freed meanwhile.
typedef struct {
    gpu_vmm_backend *backend;
    uint64_t unit;
    gpu_vmm_region *regions[OBJECTS];
    gpu_vmm_banked *banked;
    gpu_vmm_event *event;
    gpu_vmm_copy_queue *queue;
    gpu_vmm_pinned *pinned;
} shared_objects;

typedef struct {
    const shared_objects *shared;
    uint64_t state;
    uint64_t calls;
    uint64_t succeeded;
    uint64_t refused;
} caller;

static uint64_t number(caller *self) {
    self->state ^= self->state << 13;
    self->state ^= self->state >> 7;
    self->state ^= self->state << 17;
    return self->state >> 8;
}

static uint64_t below(caller *self, uint64_t limit) {
    return number(self) % limit;
}

// Mostly a multiple of the unit in a region of four units, sometimes nonsense.
static uint64_t size(caller *self) {
    const uint64_t unit = self->shared->unit;
    switch (below(self, 12)) {
    case 0: return number(self);
    case 1: return UINT64_MAX - below(self, 3);
    case 2: return below(self, 4 * unit);
    case 3: return 0;
    default: return below(self, 5) * unit;
    }
}

static const gpu_vmm_region *region(caller *self) {
    return below(self, 16) == 0 ? NULL : self->shared->regions[below(self, OBJECTS)];
}

static uint32_t device(caller *self) {
    return below(self, 4) == 0 ? (uint32_t)below(self, 200) : 0;
}

static bool flag(caller *self) {
    return below(self, 2) != 0;
}

static gpu_vmm_status refuse_some(void *context, const gpu_vmm_backing_change *change) {
    (void)context;
    return change->address % 3 == 0 && change->count > 1 ? GPU_VMM_BUSY : GPU_VMM_OK;
}

// One call, with the objects of this thread in `mine` and `own`.
static gpu_vmm_status call(caller *self, gpu_vmm_physical **mine, gpu_vmm_region **own) {
    const shared_objects *shared = self->shared;
    uint8_t bytes[64] = {0};
    uint64_t result = 0;
    uint32_t level = 0;
    bool is_so = false;
    const uint64_t offset = size(self), length = size(self);
    gpu_vmm_mapping mapping;
    switch (below(self, 36)) {
    case 0:
        gpu_vmm_physical_release(*mine);
        return gpu_vmm_physical_create(shared->backend, NULL, below(self, 3) * shared->unit, mine);
    case 1: {
        gpu_vmm_properties properties;
        memset(&properties, 0, sizeof properties);
        properties.device = device(self);
        properties.location = (uint32_t)below(self, 5);
        properties.handle_types = (uint32_t)below(self, 16);
        gpu_vmm_physical *made = NULL;
        const gpu_vmm_status status = gpu_vmm_physical_create(shared->backend, &properties, below(self, 2) * shared->unit, &made);
        gpu_vmm_physical_release(made);
        return status;
    }
    case 2: return gpu_vmm_physical_read(*mine, offset, bytes, below(self, 64));
    case 3: return gpu_vmm_physical_write(*mine, offset, bytes, below(self, 64));
    case 4: return gpu_vmm_region_map(region(self), offset, *mine);
    case 5: return gpu_vmm_region_unmap(region(self), offset, length, flag(self));
    case 6: return gpu_vmm_region_set_access(region(self), offset, length, device(self), (uint32_t)below(self, 5));
    case 7: return gpu_vmm_region_access(region(self), offset, device(self), &level);
    case 8: return gpu_vmm_region_mapping(region(self), offset, &mapping);
    case 9: gpu_vmm_physical_release(*mine); return gpu_vmm_region_physical(region(self), offset, mine);
    case 10: return gpu_vmm_region_grow(region(self), below(self, 6) * shared->unit);
    case 11: return gpu_vmm_region_shrink(region(self), length, flag(self));
    case 12: return gpu_vmm_region_suspend(region(self), flag(self) ? "host" : NULL, flag(self), &result);
    case 13:
    case 14: return gpu_vmm_region_resume(region(self), &result);
    case 15: return gpu_vmm_region_read(region(self), offset, bytes, below(self, 64));
    case 16: return gpu_vmm_region_write(region(self), offset, bytes, below(self, 64));
    case 17: return gpu_vmm_region_fill(region(self), offset, below(self, 4096), 1);
    case 18: return gpu_vmm_region_copy(region(self), offset, region(self), size(self), below(self, 4096));
    case 19: return gpu_vmm_region_swap(region(self), offset, region(self), size(self), length, flag(self));
    case 20: return gpu_vmm_region_swap_all(region(self), region(self), flag(self));
    case 21: return gpu_vmm_region_move_to_device(region(self), device(self) % 3);
    case 22: return gpu_vmm_region_grow_or_move(region(self), below(self, 6) * shared->unit, &result);
    case 23: return gpu_vmm_banked_add(shared->banked, below(self, 3) * shared->unit, &level);
    case 24: return gpu_vmm_banked_select(shared->banked, (uint32_t)below(self, 8));
    case 25: return gpu_vmm_banked_hide(shared->banked);
    case 26: return gpu_vmm_banked_remove(shared->banked, (uint32_t)below(self, 1000));
    case 27: return gpu_vmm_banked_write(shared->banked, offset, bytes, below(self, 64));
    case 28: return gpu_vmm_event_record(shared->event, NULL);
    case 29: return gpu_vmm_event_done(shared->event, &is_so);
    case 30: return gpu_vmm_copy_queue_read(shared->queue, region(self), offset, shared->pinned, below(self, 8192), below(self, 8192));
    case 31: return gpu_vmm_copy_queue_finish(shared->queue);
    case 32: {
        gpu_vmm_observer observer;
        memset(&observer, 0, sizeof observer);
        observer.before = flag(self) ? refuse_some : NULL;
        observer.reserved[below(self, 4)] = below(self, 8) == 0;
        const gpu_vmm_region *observed = region(self);
        const gpu_vmm_status status = gpu_vmm_region_on_backing_change(observed, &observer, &result);
        return status == GPU_VMM_OK && below(self, 4) != 0 ? gpu_vmm_region_remove_observer(observed, result) : status;
    }
    case 33: return gpu_vmm_region_remove_observer(region(self), below(self, 100));
    case 34: {
        gpu_vmm_region_options options;
        memset(&options, 0, sizeof options);
        options.size = below(self, 4) == 0 ? number(self) : shared->unit;
        options.placement = (uint32_t)below(self, 5);
        options.address = below(self, 3) == 0 ? number(self) : 0;
        options.alignment = below(self, 8) == 0 ? number(self) : 0;
        options.guard = below(self, 8) == 0 ? shared->unit : 0;
        gpu_vmm_region_free(*own);
        return gpu_vmm_region_reserve(shared->backend, &options, own);
    }
    default: return gpu_vmm_region_import(shared->backend, bytes, below(self, 64), own + 1);
    }
}

static void *run(void *argument) {
    caller *self = (caller *)argument;
    gpu_vmm_physical *mine = NULL;
    gpu_vmm_region *own[2] = {NULL, NULL};
    for (uint64_t at = 0; at < self->calls; ++at) {
        const gpu_vmm_status status = call(self, &mine, own);
        demand(status != GPU_VMM_INTERNAL, "no call finds a defect");
        demand(status != GPU_VMM_POISONED, "no call fails half-way");
        demand(own[1] == NULL, "nonsense is not imported");
        *(status == GPU_VMM_OK ? &self->succeeded : &self->refused) += 1;
    }
    gpu_vmm_physical_release(mine);
    gpu_vmm_region_free(own[0]);
    return NULL;
}

static uint64_t setting(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text == NULL || *text == 0 ? otherwise : strtoull(text, NULL, 10);
}

int main(int count, char **arguments) {
    shared_objects shared;
    memset(&shared, 0, sizeof shared);
    shared.backend = backend_of(count, arguments);
    shared.unit = unit_of(shared.backend);
    const uint64_t calls = setting("GPU_VMM_RANDOM_CALLS", 4000), seed = setting("GPU_VMM_RANDOM_SEED", 1);
    uint64_t free_before = 0, free_after = 0;
    CHECK(gpu_vmm_memory(shared.backend, 0, &free_before, NULL));
    for (int at = 0; at < OBJECTS; ++at) {
        shared.regions[at] = filled(shared.backend, 4, 0);
    }
    gpu_vmm_region_options options;
    memset(&options, 0, sizeof options);
    options.size = 2 * shared.unit;
    CHECK(gpu_vmm_banked_new(shared.backend, &options, &shared.banked));
    CHECK(gpu_vmm_event_new(shared.backend, 0, &shared.event));
    CHECK(gpu_vmm_copy_queue_new(shared.backend, 0, &shared.queue));
    CHECK(gpu_vmm_pinned_new(shared.backend, 16384, &shared.pinned));
    caller callers[THREADS];
    pthread_t threads[THREADS];
    memset(callers, 0, sizeof callers);
    for (uint64_t at = 0; at < THREADS; ++at) {
        callers[at].shared = &shared;
        callers[at].state = (seed + at) * UINT64_C(0x9E3779B97F4A7C15) + 1;
        callers[at].calls = calls / THREADS;
        demand(pthread_create(&threads[at], NULL, run, &callers[at]) == 0, "a thread starts");
    }
    uint64_t succeeded = 0, refused = 0;
    for (int at = 0; at < THREADS; ++at) {
        demand(pthread_join(threads[at], NULL) == 0, "a thread ends");
        succeeded += callers[at].succeeded;
        refused += callers[at].refused;
    }
    printf("%" PRIu64 " calls succeeded and %" PRIu64 " were refused\n", succeeded, refused);
    demand(calls < 1000 || (succeeded > calls / 20 && refused > calls / 20), "some calls are right, and some are wrong");
    gpu_vmm_copy_queue_free(shared.queue);
    gpu_vmm_pinned_free(shared.pinned);
    gpu_vmm_event_free(shared.event);
    gpu_vmm_banked_free(shared.banked);
    for (int at = 0; at < OBJECTS; ++at) {
        gpu_vmm_region_free(shared.regions[at]);
    }
    CHECK(gpu_vmm_memory(shared.backend, 0, &free_after, NULL));
    demand(free_after + (UINT64_C(64) << 20) >= free_before, "all memory is released");
    gpu_vmm_close(shared.backend);
    puts("passed");
    return 0;
}
