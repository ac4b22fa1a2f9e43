// The calls of random.c.

#ifndef RANDOM_CALLS_H
#define RANDOM_CALLS_H

#include "random_exchange.h"
#include <unistd.h>

enum { KINDS = 76, BANKS = 40 };

static inline gpu_vmm_status refuse_some(void *context, const gpu_vmm_backing_change *change) {
    (void)context;
    return change->address % 3 == 0 && change->count > 1 ? GPU_VMM_BUSY : GPU_VMM_OK;
}

// Frees what is freed already, or is of another type, which does nothing.
static inline gpu_vmm_status free_wrongly(caller *self) {
    switch (below(self, 6)) {
    case 0: gpu_vmm_region_free(self->freed_region); break;
    case 1: gpu_vmm_physical_release(self->freed_memory); break;
    case 2: gpu_vmm_region_free((gpu_vmm_region *)self->shared->banked); break;
    case 3: gpu_vmm_close((gpu_vmm_backend *)self->shared->pool); break;
    case 4: gpu_vmm_pool_free(self->shared->freed_pool); break;
    default: gpu_vmm_banked_free((gpu_vmm_banked *)(uintptr_t)number(self)); break;
    }
    return GPU_VMM_INVALID_ARGUMENT;
}

static inline gpu_vmm_status create_with_properties(caller *self) {
    gpu_vmm_properties properties;
    memset(&properties, 0, sizeof properties);
    properties.device = device(self);
    properties.location = (uint32_t)below(self, 5);
    properties.handle_types = (uint32_t)below(self, 16);
    gpu_vmm_physical *made = NULL;
    const gpu_vmm_status status =
        gpu_vmm_physical_create(backend(self), &properties, below(self, 2) * self->shared->unit, &made);
    gpu_vmm_physical_release(made);
    return status;
}

// Memory by descriptor and by offer, in this process.
static inline gpu_vmm_status export_memory(caller *self) {
    gpu_vmm_properties properties;
    memset(&properties, 0, sizeof properties);
    properties.handle_types = flag(self) ? GPU_VMM_HANDLE_FD : 0;
    gpu_vmm_physical *made = NULL, *other = NULL;
    gpu_vmm_offer *offer = NULL;
    const void *bytes = NULL;
    uint64_t length = 0;
    int32_t fd = -1;
    gpu_vmm_status status = gpu_vmm_physical_create(backend(self), &properties, self->shared->unit, &made);
    if (status == GPU_VMM_OK && flag(self)) {
        status = gpu_vmm_physical_export_fd(made, &fd);
        if (status == GPU_VMM_OK && self->shared->frees_imports) {
            status = gpu_vmm_physical_import_fd(backend(self), &properties, self->shared->unit, fd, &other);
        }
        if (fd >= 0) close(fd);
    } else if (status == GPU_VMM_OK) {
        status = gpu_vmm_physical_offer(backend(self), made, (uint32_t)below(self, 3), &offer);
        if (status == GPU_VMM_OK) {
            status = gpu_vmm_offer_bytes(offer, &bytes, &length);
        }
    }
    gpu_vmm_offer_free(offer);
    gpu_vmm_physical_release(other);
    gpu_vmm_physical_release(made);
    return status;
}

static inline gpu_vmm_status observe(caller *self) {
    gpu_vmm_observer observer;
    memset(&observer, 0, sizeof observer);
    observer.before = flag(self) ? refuse_some : NULL;
    observer.reserved[below(self, 4)] = below(self, 8) == 0;
    const gpu_vmm_region *observed = region(self);
    uint64_t id = 0;
    const gpu_vmm_status status = gpu_vmm_region_on_backing_change(observed, &observer, &id);
    return status == GPU_VMM_OK ? gpu_vmm_region_remove_observer(observed, id) : status;
}

static inline gpu_vmm_status reserve_own(caller *self) {
    gpu_vmm_region_options options;
    memset(&options, 0, sizeof options);
    options.size = below(self, 4) == 0 ? number(self) : self->shared->unit;
    options.placement = (uint32_t)below(self, 5);
    options.address = below(self, 3) == 0 ? number(self) : 0;
    options.alignment = below(self, 8) == 0 ? number(self) : 0;
    options.guard = below(self, 8) == 0 ? self->shared->unit : 0;
    FREE(self, region, gpu_vmm_region_free);
    return gpu_vmm_region_reserve(backend(self), &options, &self->region);
}

static inline gpu_vmm_status tensor(caller *self) {
    const int64_t shape[2] = {(int64_t)below(self, 100), flag(self) ? -1 : 3};
    void *made = NULL;
    const bool versioned = flag(self);
    const gpu_vmm_status status =
        gpu_vmm_region_dlpack(region(self), below(self, 8192), (uint8_t)below(self, 8), (uint8_t)(8 << below(self, 5)), 1,
                              (int32_t)below(self, 3), shape, NULL, flag(self), versioned, &made);
    gpu_vmm_dlpack_delete(made, versioned);
    return status;
}

// A block of the pool at an index, or an address at which none is.
static inline uint64_t block(caller *self, const uint64_t *blocks, uint64_t at) {
    return below(self, 8) == 0 ? below(self, 1 << 20) : blocks[at];
}

static inline gpu_vmm_status allocate(caller *self, const gpu_vmm_pool *pool, uint64_t *blocks) {
    const uint64_t at = below(self, BLOCKS);
    if (blocks[at] != 0) {
        return GPU_VMM_NOT_FOUND;
    }
    const uint64_t alignment = below(self, 4) == 0 ? number(self) : 0;
    const uint64_t bytes = below(self, 8) == 0 ? size(self) : 1 + below(self, 100000);
    if (below(self, 16) == 0) {
        // Near a block, or at the lowest addresses of the process.
        const uint64_t address = blocks[below(self, BLOCKS)] + 256 * below(self, 8192);
        const gpu_vmm_status status = gpu_vmm_alloc_at(pool, address, bytes, NULL);
        if (status == GPU_VMM_OK) blocks[at] = address;
        return status;
    }
    return gpu_vmm_alloc(pool, bytes, alignment, NULL, &blocks[at]);
}

static inline gpu_vmm_status release(caller *self, const gpu_vmm_pool *pool, uint64_t *blocks) {
    const uint64_t at = below(self, BLOCKS), address = block(self, blocks, at);
    const gpu_vmm_status status = gpu_vmm_free(pool, address);
    if (status == GPU_VMM_OK) blocks[at] = 0;
    return status;
}

// Removes an older bank after one was added, or long runs would fill the device with banks.
static inline gpu_vmm_status kept_bank(const caller *self, gpu_vmm_status status, const uint32_t *bank) {
    if (status == GPU_VMM_OK && *bank >= BANKS) gpu_vmm_banked_remove(self->shared->banked, *bank - BANKS);
    return status;
}

// Where suspended contents go. Copies take most of the time, so most are discarded.
static inline const char *store(caller *self) {
    const uint64_t number = below(self, 32);
    return number == 0 ? "host" : number == 1 ? "host-kept" : NULL;
}

// Saves the thread's own pool, whose addresses are in use as long as it lives.
static inline gpu_vmm_status pool_file(caller *self) {
    const bool is_whole = below(self, 64) == 0;
    const gpu_vmm_pool *saved = own_pool(self);
    gpu_vmm_status status = gpu_vmm_pool_save(saved, is_whole ? self->path : "/no/such/folder/file", NULL, 0, flag(self));
    if (is_whole && status == GPU_VMM_OK) {
        gpu_vmm_pool *restored = NULL;
        uint64_t count = 0;
        CHECK(gpu_vmm_saved_pool_count(self->path, &count));
        status = gpu_vmm_pool_restore(backend(self), self->path, NULL, &restored, NULL, 0);
        demand(status != GPU_VMM_OK || count == 0, "addresses in use are not restored");
        gpu_vmm_pool_free(restored);
        remove(self->path);
    }
    return status;
}

static inline gpu_vmm_status file(caller *self) {
    if (below(self, 4) == 0) {
        return pool_file(self);
    }
    if (below(self, 256) != 0) {
        return gpu_vmm_region_snapshot(region(self), "/no/such/folder/file", flag(self));
    }
    gpu_vmm_region *restored = NULL;
    gpu_vmm_status status = gpu_vmm_region_snapshot(region(self), self->path, flag(self));
    if (status == GPU_VMM_OK) {
        status = gpu_vmm_region_restore(backend(self), self->path, elsewhere(), &restored);
        gpu_vmm_region_free(restored);
        remove(self->path);
    }
    return status;
}

// Lists of pages, and numbers of holders.
static inline gpu_vmm_status page_list(caller *self) {
    const uint64_t unit = self->shared->unit;
    uint64_t result = 0, other = 0;
    switch (below(self, 7)) {
    case 0: FREE(self, memory, gpu_vmm_physical_release); return gpu_vmm_page_list_take(pages(self), &self->memory);
    case 1: return gpu_vmm_page_list_set_budget(pages(self), below(self, 8) * unit);
    case 2: return gpu_vmm_page_list_sizes(pages(self), &result, NULL, &other, NULL);
    case 3: {
        gpu_vmm_page_list *made = NULL;
        const gpu_vmm_status status = gpu_vmm_page_list_new(backend(self), NULL, size(self), number(self), &made);
        gpu_vmm_page_list_free(made);
        return status;
    }
    case 4: return gpu_vmm_region_holders(region(self), size(self), &result);
    case 5: return gpu_vmm_physical_holders(memory(self), &result);
    default: {
        // Two ranges of one memory must not overlap.
        const uint64_t few = below(self, 64);
        return gpu_vmm_physical_copy(memory(self), unit / 2 * (1 + below(self, 2)), memory(self), below(self, 64), few);
    }
    }
}

static inline gpu_vmm_status text(caller *self) {
    char *json = NULL;
    const gpu_vmm_status status = flag(self) ? gpu_vmm_pool_stats(own_pool(self), &json) : gpu_vmm_backend_info(backend(self), &json);
    gpu_vmm_string_free(json);
    return status;
}

// One random call.
static inline gpu_vmm_status call(caller *self) {
    const uint64_t unit = self->shared->unit;
    uint8_t bytes[64] = {0};
    uint64_t result = 0, other = 0;
    uint32_t level = 0;
    bool is_so = false;
    const uint64_t offset = size(self), length = size(self), few = below(self, 64);
    gpu_vmm_mapping mapping;
    gpu_vmm_properties properties;
    gpu_vmm_block found;
    switch (below(self, KINDS)) {
    case 0: FREE(self, memory, gpu_vmm_physical_release); return gpu_vmm_physical_create(backend(self), NULL, below(self, 3) * unit, &self->memory);
    case 1: return create_with_properties(self);
    case 2: return gpu_vmm_physical_read(memory(self), offset, bytes, few);
    case 3: return gpu_vmm_physical_write(memory(self), offset, bytes, few);
    case 4: return gpu_vmm_region_map(region(self), offset, memory(self));
    case 5: return gpu_vmm_region_unmap(region(self), offset, length, flag(self));
    case 6: return gpu_vmm_region_set_access(region(self), offset, length, device(self), (uint32_t)below(self, 5));
    case 7: return gpu_vmm_region_access(region(self), offset, 0, &level);
    case 8: return gpu_vmm_region_mapping(region(self), offset, &mapping);
    case 9: FREE(self, memory, gpu_vmm_physical_release); return gpu_vmm_region_physical(region(self), offset, &self->memory);
    case 10: return gpu_vmm_region_grow(region(self), below(self, 6) * unit);
    case 11: return gpu_vmm_region_shrink(region(self), length, flag(self), NULL);
    case 12: return gpu_vmm_region_suspend(region(self), store(self), flag(self), &result);
    case 13:
    case 14: return gpu_vmm_region_resume(region(self), &result);
    case 15: return gpu_vmm_region_read(region(self), offset, bytes, few);
    case 16: return gpu_vmm_region_write(region(self), offset, bytes, few);
    case 17: return gpu_vmm_region_fill(region(self), offset, below(self, 4096), 1);
    case 18: return gpu_vmm_region_copy(region(self), offset, region(self), size(self), below(self, 4096));
    case 19: return gpu_vmm_region_swap(region(self), offset, region(self), size(self), length, flag(self));
    case 20: return gpu_vmm_region_swap_all(region(self), region(self), flag(self));
    case 21: return gpu_vmm_region_move_to_device(region(self), device(self) % 3);
    case 22: return gpu_vmm_region_grow_or_move(region(self), below(self, 6) * unit, &result);
    case 23: return kept_bank(self, gpu_vmm_banked_add(banked(self), below(self, 3) * unit, &level), &level);
    case 24: return gpu_vmm_banked_select(banked(self), (uint32_t)below(self, 8));
    case 25: return gpu_vmm_banked_hide(banked(self));
    case 26: return gpu_vmm_banked_remove(banked(self), (uint32_t)below(self, 1000));
    case 27: return gpu_vmm_banked_write(banked(self), offset, bytes, few);
    case 28: return gpu_vmm_event_record(event(self), NULL);
    case 29: return gpu_vmm_event_done(event(self), &is_so);
    case 30: return gpu_vmm_copy_queue_read(queue(self), region(self), offset, pinned(self), below(self, 8192), below(self, 8192));
    case 31: return gpu_vmm_copy_queue_finish(queue(self));
    case 32: return observe(self);
    case 33: return gpu_vmm_region_remove_observer(region(self), below(self, 100));
    case 34: return reserve_own(self);
    case 35: {
        gpu_vmm_region *nonsense = NULL;
        const gpu_vmm_status status = gpu_vmm_region_import(backend(self), bytes, few, &nonsense);
        demand(nonsense == NULL, "nonsense is not imported");
        return status;
    }
    case 36: return free_wrongly(self);
    case 37: return export_memory(self);
    case 38: return tensor(self);
    case 39:
    case 40: return allocate(self, shared_pool(self), self->shared_blocks);
    case 41: return release(self, shared_pool(self), self->shared_blocks);
    case 42:
    case 43: return allocate(self, own_pool(self), self->blocks);
    case 44: return release(self, own_pool(self), self->blocks);
    case 45: return gpu_vmm_read(own_pool(self), block(self, self->blocks, below(self, BLOCKS)), bytes, few);
    case 46: return gpu_vmm_write(own_pool(self), block(self, self->blocks, below(self, BLOCKS)), bytes, few);
    case 47: return gpu_vmm_find(own_pool(self), block(self, self->blocks, below(self, BLOCKS)), &found);
    case 48: return gpu_vmm_record_use(shared_pool(self), block(self, self->shared_blocks, below(self, BLOCKS)), NULL);
    case 49: return gpu_vmm_suspend(own_pool(self), flag(self) ? "" : "none", flag(self) ? store(self) : "nowhere", &result);
    case 50:
    case 51: return gpu_vmm_resume(own_pool(self), flag(self) ? "" : "none", &result);
    case 52:
        if (flag(self)) return gpu_vmm_trim_host(own_pool(self), &result);
        if (flag(self)) return gpu_vmm_set_budget(own_pool(self), flag(self) ? UINT64_MAX : below(self, 16) * unit);
        return gpu_vmm_trim(shared_pool(self), below(self, 4) * unit, &result);
    case 53: return gpu_vmm_memory(backend(self), device(self), &result, &other);
    case 54: return gpu_vmm_can_access(backend(self), device(self), device(self), &is_so);
    case 55: return gpu_vmm_physical_properties(memory(self), &properties);
    case 56: return gpu_vmm_physical_same(memory(self), memory(self), &is_so);
    case 57: return file(self);
    case 58: return text(self);
    case 59: return gpu_vmm_event_hold(event(self), NULL);
    case 60: return gpu_vmm_copy_queue_write(queue(self), region(self), offset, pinned(self), below(self, 8192), below(self, 8192));
    case 61: {
        const gpu_vmm_physical *pieces[2] = {memory(self), NULL};
        const uint64_t count = 1 + below(self, 2);
        if (count == 2) pieces[1] = memory(self);
        return kept_bank(self, gpu_vmm_banked_add_physical(banked(self), pieces, count, &level), &level);
    }
    case 62: return gpu_vmm_region_fork(region(self), length, region(self));
    case 63: return gpu_vmm_region_make_private(region(self), offset, length, flag(self) ? self->shared->pages : NULL, &result);
    case 64: return gpu_vmm_region_suspend_shared(region(self), store(self), flag(self), &result, &other);
    case 65: return gpu_vmm_region_resume_with(region(self), pages(self), &result);
    case 66: return gpu_vmm_region_grow_with(region(self), below(self, 6) * unit, pages(self));
    case 67: return page_list(self);
    default: return exchange(self);
    }
}

#endif
