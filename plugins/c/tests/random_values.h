// Random arguments: sizes, and pointers to objects of which many name no live object.

#ifndef RANDOM_VALUES_H
#define RANDOM_VALUES_H

#include "support.h"

enum { OBJECTS = 4, BLOCKS = 8 };

// Objects that all threads use. They live until the threads have ended; those of a thread are freed meanwhile.
typedef struct {
    gpu_vmm_backend *backend;
    uint64_t unit;
    gpu_vmm_region *regions[OBJECTS];
    gpu_vmm_banked *banked;
    gpu_vmm_event *event;
    gpu_vmm_copy_queue *queue;
    gpu_vmm_pinned *pinned;
    gpu_vmm_page_list *pages;
    gpu_vmm_pool *pool;
    gpu_vmm_pool *freed_pool;
    // Whether the driver frees imported memory: the known deviation import-leaks says that it does not.
    bool frees_imports;
    // Whether a suspension frees the addresses for a moment: the known deviation memory-stays-until-free.
    bool suspending_frees_addresses;
} shared_objects;

typedef struct {
    const shared_objects *shared;
    uint64_t state;
    uint64_t calls;
    uint64_t succeeded;
    uint64_t refused;
    // Objects of this thread, and pointers to ones that it has freed.
    gpu_vmm_physical *memory, *freed_memory;
    gpu_vmm_region *region, *freed_region;
    gpu_vmm_pool *pool;
    uint64_t blocks[BLOCKS], shared_blocks[BLOCKS];
    char path[64];
    // A region that this thread exports, and imports from itself.
    gpu_vmm_region *given;
    gpu_vmm_listener *listener;
    gpu_vmm_exporter *exporter, *freed_exporter;
    gpu_vmm_followed *followed, *freed_followed;
    gpu_vmm_status exported;
    uint64_t exchanges;
    char socket[80];
    // Whether an object of the current call is a wrong one: the call must return GPU_VMM_INVALID_ARGUMENT.
    bool is_wrong;
} caller;

// Frees an object of the thread with its function, and keeps the pointer, for calls that must be refused.
#define FREE(self, object, function)                                                \
    do {                                                                            \
        function((self)->object);                                                   \
        if ((self)->object != NULL) (self)->freed_##object = (self)->object;        \
        (self)->object = NULL;                                                      \
    } while (0)

static inline uint64_t number(caller *self) {
    self->state ^= self->state << 13;
    self->state ^= self->state >> 7;
    self->state ^= self->state << 17;
    return self->state >> 8;
}

static inline uint64_t below(caller *self, uint64_t limit) {
    return number(self) % limit;
}

static inline bool flag(caller *self) {
    return below(self, 2) != 0;
}

// Mostly a multiple of the unit in a region of four units, sometimes nonsense.
static inline uint64_t size(caller *self) {
    const uint64_t unit = self->shared->unit;
    switch (below(self, 12)) {
    case 0: return number(self);
    case 1: return UINT64_MAX - below(self, 3);
    case 2: return below(self, 4 * unit);
    case 3: return 0;
    default: return below(self, 5) * unit;
    }
}

static inline uint32_t device(caller *self) {
    return below(self, 4) == 0 ? (uint32_t)below(self, 200) : 0;
}

// One time in eight a pointer that is wrong: null, to a freed object, to an object of another type, or any number.
static inline const void *or_wrong(caller *self, const void *right, const void *freed, const void *other) {
    if (below(self, 8) != 0) {
        self->is_wrong |= right == NULL;
        return right;
    }
    self->is_wrong = true;
    switch (below(self, 4)) {
    case 0: return NULL;
    case 1: return freed;
    case 2: return other;
    // Even numbers in the upper half: generations begin with 1, and few objects reach the 1000th.
    default: return (const void *)(uintptr_t)((number(self) | UINT64_C(1) << 62) ^ (number(self) << 40));
    }
}

static inline const gpu_vmm_region *region(caller *self) {
    const void *right = self->shared->regions[below(self, OBJECTS)];
    return (const gpu_vmm_region *)or_wrong(self, right, self->freed_region, self->shared->banked);
}

static inline const gpu_vmm_physical *memory(caller *self) {
    return (const gpu_vmm_physical *)or_wrong(self, self->memory, self->freed_memory, self->shared->event);
}

static inline const gpu_vmm_banked *banked(caller *self) {
    return (const gpu_vmm_banked *)or_wrong(self, self->shared->banked, self->freed_region, self->shared->pool);
}

static inline const gpu_vmm_event *event(caller *self) {
    return (const gpu_vmm_event *)or_wrong(self, self->shared->event, self->freed_memory, self->shared->queue);
}

static inline const gpu_vmm_copy_queue *queue(caller *self) {
    return (const gpu_vmm_copy_queue *)or_wrong(self, self->shared->queue, self->freed_memory, self->shared->pinned);
}

static inline const gpu_vmm_pinned *pinned(caller *self) {
    return (const gpu_vmm_pinned *)or_wrong(self, self->shared->pinned, self->freed_region, self->shared->backend);
}

static inline const gpu_vmm_page_list *pages(caller *self) {
    return (const gpu_vmm_page_list *)or_wrong(self, self->shared->pages, self->freed_region, self->shared->queue);
}

static inline const gpu_vmm_backend *backend(caller *self) {
    return (const gpu_vmm_backend *)or_wrong(self, self->shared->backend, self->freed_memory, self->shared->regions[0]);
}

// The thread's own pool, whose blocks no other thread frees or suspends.
static inline const gpu_vmm_pool *own_pool(caller *self) {
    return (const gpu_vmm_pool *)or_wrong(self, self->pool, self->shared->freed_pool, self->memory);
}

static inline const gpu_vmm_pool *shared_pool(caller *self) {
    return (const gpu_vmm_pool *)or_wrong(self, self->shared->pool, self->shared->freed_pool, self->region);
}

#endif
