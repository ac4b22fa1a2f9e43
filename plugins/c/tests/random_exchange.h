// The calls of random.c on exchanges, snapshots of several regions, and copy queues that wait for events.

#ifndef RANDOM_EXCHANGE_H
#define RANDOM_EXCHANGE_H

#include "random_values.h"
#include <pthread.h>
#include <unistd.h>

enum { EXCHANGE_KINDS = 18, PATIENCE = 5000 }; // milliseconds

static inline const gpu_vmm_listener *listener(caller *self) {
    return (const gpu_vmm_listener *)or_wrong(self, self->listener, self->freed_exporter, self->shared->event);
}

static inline const gpu_vmm_exporter *exporter(caller *self) {
    return (const gpu_vmm_exporter *)or_wrong(self, self->exporter, self->freed_exporter, self->followed);
}

static inline const gpu_vmm_followed *followed(caller *self) {
    return (const gpu_vmm_followed *)or_wrong(self, self->followed, self->freed_followed, self->exporter);
}

static inline void end_exchange(caller *self) {
    if (flag(self)) FREE(self, exporter, gpu_vmm_exporter_free);
    FREE(self, followed, gpu_vmm_followed_free);
    FREE(self, exporter, gpu_vmm_exporter_free);
    gpu_vmm_listener_free(self->listener);
    self->listener = NULL;
    gpu_vmm_region_free(self->given);
    self->given = NULL;
}

static inline void *export_given(void *argument) {
    caller *self = (caller *)argument;
    self->exported = gpu_vmm_export(self->listener, self->given, PATIENCE, &self->exporter);
    return NULL;
}

// A region that another thread exports and this one imports.
static inline gpu_vmm_status begin_exchange(caller *self) {
    gpu_vmm_region_options options;
    pthread_t thread;
    memset(&options, 0, sizeof options);
    options.size = 4 * self->shared->unit;
    options.memory.handle_types = below(self, 8) == 0 ? 0 : GPU_VMM_HANDLE_FD;
    end_exchange(self);
    CHECK(gpu_vmm_region_reserve(self->shared->backend, &options, &self->given));
    const gpu_vmm_status grown = gpu_vmm_region_grow(self->given, (1 + below(self, 2)) * self->shared->unit);
    if (grown != GPU_VMM_OK) {
        return grown;
    }
    CHECK(gpu_vmm_listener_new(self->socket, &self->listener));
    if (!self->shared->frees_imports) {
        return GPU_VMM_UNSUPPORTED;
    }
    demand(pthread_create(&thread, NULL, export_given, self) == 0, "a thread starts");
    const uint64_t reserve = below(self, 2) * size(self);
    const gpu_vmm_status status = gpu_vmm_follow(self->shared->backend, self->socket, reserve, PATIENCE, &self->followed);
    demand(pthread_join(thread, NULL) == 0, "a thread ends");
    demand(status != GPU_VMM_OK || self->exported == GPU_VMM_OK, "both ends know of the exchange");
    self->exchanges += status == GPU_VMM_OK;
    return status;
}

// A change of the exported region.
static inline gpu_vmm_status change_given(caller *self) {
    const uint64_t unit = self->shared->unit;
    const gpu_vmm_region *given = (const gpu_vmm_region *)or_wrong(self, self->given, self->freed_region, self->followed);
    return flag(self) ? gpu_vmm_region_grow(given, below(self, 5) * unit) : gpu_vmm_region_shrink(given, below(self, 3) * unit, flag(self), NULL);
}

static inline gpu_vmm_status publish(caller *self) {
    bool is_sent = false;
    const gpu_vmm_exporter *end = exporter(self);
    // Sometimes a region that is not the exporter's.
    const gpu_vmm_region *given = below(self, 8) == 0 ? region(self) : self->given;
    self->is_wrong |= given == NULL;
    return gpu_vmm_exporter_publish(end, given, &is_sent);
}

static inline gpu_vmm_status several_regions(caller *self) {
    if (below(self, 64) != 0) {
        uint64_t regions = 0;
        return flag(self) ? gpu_vmm_snapshot_count(flag(self) ? "/dev/null" : NULL, &regions)
                          : gpu_vmm_regions_restore(backend(self), "/no/such/folder/file", elsewhere(), NULL, below(self, 3));
    }
    // No region twice, or the file would name one address for both.
    const gpu_vmm_region *regions[2] = {self->shared->regions[below(self, 2)], self->shared->regions[2]};
    gpu_vmm_region *restored[2] = {NULL, NULL};
    uint64_t count = 0;
    gpu_vmm_status status = gpu_vmm_regions_snapshot(regions, 1 + below(self, 2), self->path, flag(self));
    if (status == GPU_VMM_OK) {
        CHECK(gpu_vmm_snapshot_count(self->path, &count));
        const uint64_t room = below(self, 4) == 0 ? below(self, 4) : count;
        status = room > 2 ? GPU_VMM_OUT_OF_RANGE : gpu_vmm_regions_restore(self->shared->backend, self->path, elsewhere(), restored, room);
        demand(status == GPU_VMM_OK || (restored[0] == NULL && restored[1] == NULL), "after an error no region exists");
        gpu_vmm_region_free(restored[0]);
        gpu_vmm_region_free(restored[1]);
        remove(self->path);
    }
    return status;
}

// One random call.
static inline gpu_vmm_status exchange(caller *self) {
    uint8_t bytes[64] = {0};
    uint32_t answer = 0;
    uint64_t address = 0, end = 0;
    const uint64_t offset = size(self), few = below(self, 64), wait = below(self, 2);
    switch (below(self, EXCHANGE_KINDS)) {
    case 0: return below(self, 2) == 0 ? begin_exchange(self) : GPU_VMM_NOT_FOUND;
    case 1:
    case 2: return change_given(self);
    case 3:
    case 4: return publish(self);
    case 5: return gpu_vmm_exporter_wait_applied(exporter(self), wait);
    case 6: return below(self, 8) == 0 ? gpu_vmm_exporter_request_release(exporter(self)) : GPU_VMM_NOT_FOUND;
    case 7: return gpu_vmm_exporter_wait_released(exporter(self), wait, &answer);
    case 8:
    case 9: return gpu_vmm_followed_next(followed(self), wait, &answer);
    case 10:
    case 11: return gpu_vmm_followed_apply(followed(self), flag(self));
    case 12: return gpu_vmm_followed_range(followed(self), &address, &end);
    case 13: return gpu_vmm_followed_read(followed(self), offset, bytes, few);
    case 14: return gpu_vmm_followed_write(followed(self), offset, bytes, few);
    case 15:
        switch (below(self, 8)) {
        case 0: return gpu_vmm_followed_release(followed(self));
        case 1: FREE(self, exporter, gpu_vmm_exporter_free); return GPU_VMM_OK;
        case 2: FREE(self, followed, gpu_vmm_followed_free); return GPU_VMM_OK;
        default: {
            gpu_vmm_exporter *none = NULL;
            const gpu_vmm_status status = gpu_vmm_export(listener(self), region(self), wait, &none);
            demand(none == NULL, "no process connects");
            return status;
        }
        }
    case 16: return several_regions(self);
    default:
        switch (below(self, 3)) {
        case 0: return gpu_vmm_copy_queue_hold(queue(self), event(self));
        case 1: return gpu_vmm_copy_queue_record(queue(self), event(self));
        default: return gpu_vmm_event_wait(event(self));
        }
    }
}

#endif
