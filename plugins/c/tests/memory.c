// Physical memory, mappings, sharing, queued copies and events, with the statuses of wrong calls.
//
// The first argument is the backend. The exit status is 0 if every check holds.

// For fork and close.
#define _POSIX_C_SOURCE 200809L

#include "support.h"
#include <unistd.h>

static gpu_vmm_physical *create(const gpu_vmm_backend *backend, uint64_t size, uint32_t handle_types) {
    gpu_vmm_properties properties;
    memset(&properties, 0, sizeof properties);
    properties.handle_types = handle_types;
    gpu_vmm_physical *physical = NULL;
    const gpu_vmm_status status = gpu_vmm_physical_create(backend, &properties, size, &physical);
    demand(status == GPU_VMM_OK || (handle_types != 0 && status == GPU_VMM_UNSUPPORTED), "memory is created");
    return physical;
}

static void objects(const gpu_vmm_backend *backend, uint64_t unit) {
    gpu_vmm_physical *one = create(backend, unit, 0), *other = create(backend, unit, 0), *retained = NULL;
    bool same = false;
    CHECK(gpu_vmm_physical_retain(one, &retained));
    CHECK(gpu_vmm_physical_same(one, retained, &same));
    demand(same, "a retained object is the same memory");
    CHECK(gpu_vmm_physical_same(one, other, &same));
    demand(!same, "other memory is not");
    CHECK(gpu_vmm_physical_write(one, 7, "kept", 5));
    gpu_vmm_physical_release(one);
    char read[5] = "";
    CHECK(gpu_vmm_physical_read(retained, 7, read, 5));
    demand(strcmp(read, "kept") == 0, "the memory stays while one object holds it");
    RETURNS(GPU_VMM_OUT_OF_RANGE, gpu_vmm_physical_read(retained, unit, read, 1));
    RETURNS(GPU_VMM_OUT_OF_RANGE, gpu_vmm_physical_write(retained, unit - 1, "no", 2));
    gpu_vmm_properties properties;
    CHECK(gpu_vmm_physical_properties(retained, &properties));
    demand(properties.device == 0 && properties.location == GPU_VMM_LOCATION_DEVICE, "the memory is device 0's");
    gpu_vmm_physical_release(retained);
    gpu_vmm_physical_release(other);
    gpu_vmm_physical_release(NULL);

    memset(&properties, 0, sizeof properties);
    properties.location = 3;
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_physical_create(backend, &properties, unit, &one));
    properties.location = 0;
    properties.handle_types = 64;
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_physical_create(backend, &properties, unit, &one));
    properties.handle_types = 0;
    properties.device = 4711;
    RETURNS(GPU_VMM_NO_SUCH_DEVICE, gpu_vmm_physical_create(backend, &properties, unit, &one));
    RETURNS(GPU_VMM_OUT_OF_MEMORY, gpu_vmm_physical_create(backend, NULL, UINT64_C(1) << 46, &one));
}

static void mappings(const gpu_vmm_backend *backend, uint64_t unit) {
    gpu_vmm_region *region = reserve(backend, 4);
    gpu_vmm_physical *memory = create(backend, unit, 0), *found = NULL;
    gpu_vmm_mapping mapping;
    uint32_t level = 0;
    bool same = false;
    CHECK(gpu_vmm_region_map(region, unit, memory));
    RETURNS(GPU_VMM_ALREADY_MAPPED, gpu_vmm_region_map(region, unit, memory));
    RETURNS(GPU_VMM_UNALIGNED, gpu_vmm_region_map(region, 1, memory));
    RETURNS(GPU_VMM_OUT_OF_RANGE, gpu_vmm_region_map(region, 4 * unit, memory));
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_region_map(region, UINT64_MAX - unit + 1, memory));
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_region_set_access(region, unit, unit, 0, 2));
    RETURNS(GPU_VMM_NO_SUCH_DEVICE, gpu_vmm_region_set_access(region, unit, unit, 4711, GPU_VMM_ACCESS_READ));
    RETURNS(GPU_VMM_NOT_MAPPED, gpu_vmm_region_set_access(region, 0, unit, 0, GPU_VMM_ACCESS_READ));
    RETURNS(GPU_VMM_ACCESS_DENIED, gpu_vmm_region_fill(region, unit, 1, 1));
    CHECK(gpu_vmm_region_set_access(region, unit, unit, 0, GPU_VMM_ACCESS_READ_WRITE));
    CHECK(gpu_vmm_region_access(region, unit, 0, &level));
    demand(level == GPU_VMM_ACCESS_READ_WRITE, "the access is as set");
    CHECK(gpu_vmm_region_access(region, 0, 0, &level));
    demand(level == GPU_VMM_ACCESS_NONE, "there is no access where nothing is mapped");
    CHECK(gpu_vmm_region_fill(region, unit, unit, 42));
    demand(byte_at(region, 2 * unit - 1) == 42, "the fill is there");
    CHECK(gpu_vmm_region_mapping(region, 2 * unit - 1, &mapping));
    demand(mapping.offset == unit && mapping.length == unit && mapping.device == 0 && !mapping.poisoned, "the mapping is found");
    CHECK(gpu_vmm_region_physical(region, unit, &found));
    CHECK(gpu_vmm_physical_same(found, memory, &same));
    demand(same, "the memory is found");
    gpu_vmm_physical_release(found);
    RETURNS(GPU_VMM_NOT_MAPPED, gpu_vmm_region_mapping(region, 0, &mapping));
    RETURNS(GPU_VMM_NOT_MAPPED, gpu_vmm_region_unmap(region, 0, unit, false));
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_region_unmap(region, unit, 0, false));
    CHECK(gpu_vmm_region_unmap(region, unit, unit, false));
    RETURNS(GPU_VMM_NOT_MAPPED, gpu_vmm_region_unmap(region, unit, unit, false));
    gpu_vmm_physical_release(memory);
    gpu_vmm_region_free(region);

    region = filled(backend, 1, 1);
    CHECK(gpu_vmm_region_suspend(region, "host", false, NULL));
    RETURNS(GPU_VMM_SUSPENDED, gpu_vmm_region_mapping(region, 0, &mapping));
    RETURNS(GPU_VMM_SUSPENDED, gpu_vmm_region_physical(region, 0, &found));
    demand(found == NULL, "there is no memory to be found");
    CHECK(gpu_vmm_region_resume(region, NULL));
    CHECK(gpu_vmm_region_mapping(region, 0, &mapping));
    gpu_vmm_region_free(region);
}

// The unit that the driver recommends, which a region has on request.
static void recommended(const gpu_vmm_backend *backend) {
    uint64_t smallest = 0, wanted = 0, found = 0;
    CHECK(gpu_vmm_granularity(backend, NULL, &smallest));
    CHECK(gpu_vmm_recommended_granularity(backend, NULL, &wanted));
    demand(wanted >= smallest && wanted % smallest == 0, "the recommended granularity is a multiple of the smallest");
    for (int is_wanted = 0; is_wanted < 2; ++is_wanted) {
        gpu_vmm_region_options options;
        gpu_vmm_region *region = NULL;
        memset(&options, 0, sizeof options);
        options.size = wanted;
        options.recommended_granularity = is_wanted;
        CHECK(gpu_vmm_region_reserve(backend, &options, &region));
        CHECK(gpu_vmm_region_granularity(region, &found));
        demand(found == (is_wanted ? wanted : smallest), "the region has the requested unit");
        gpu_vmm_region_free(region);
    }
}

static void descriptors(const gpu_vmm_backend *backend, uint64_t unit) {
    gpu_vmm_physical *private_memory = create(backend, unit, 0), *memory = create(backend, unit, GPU_VMM_HANDLE_FD);
    int fd = 4711;
    demand(gpu_vmm_physical_export_fd(private_memory, &fd) != GPU_VMM_OK && fd == -1, "private memory is not exported");
    gpu_vmm_physical_release(private_memory);
    if (memory == NULL || gpu_vmm_physical_export_fd(memory, &fd) != GPU_VMM_OK) {
        printf("no descriptors here: %s\n", gpu_vmm_last_error());
        gpu_vmm_physical_release(memory);
        return;
    }
    gpu_vmm_properties properties;
    memset(&properties, 0, sizeof properties);
    properties.handle_types = GPU_VMM_HANDLE_FD;
    gpu_vmm_physical *imported = NULL;
    CHECK(gpu_vmm_physical_import_fd(backend, &properties, unit, fd, &imported));
    // Descriptor 0 is one like any other.
    gpu_vmm_physical *again = NULL;
    demand(dup2(fd, 0) == 0, "descriptor 0 is replaced");
    CHECK(gpu_vmm_physical_import_fd(backend, &properties, unit, 0, &again));
    gpu_vmm_physical_release(again);
    close(fd);
    CHECK(gpu_vmm_physical_write(memory, 0, "shared", 7));
    char read[7] = "";
    CHECK(gpu_vmm_physical_read(imported, 0, read, 7));
    demand(strcmp(read, "shared") == 0, "both objects are the same bytes");
    gpu_vmm_physical_release(imported);

    gpu_vmm_offer *offer = NULL;
    const void *bytes = NULL;
    uint64_t size = 0;
    if (gpu_vmm_physical_offer(backend, memory, GPU_VMM_OFFER_BY_PROCESS, &offer) == GPU_VMM_OK) {
        CHECK(gpu_vmm_offer_bytes(offer, &bytes, &size));
        demand(bytes != NULL && size > 8, "an offer has bytes");
        // A process may take its own descriptors.
        if (gpu_vmm_physical_import(backend, bytes, size, &imported) == GPU_VMM_OK) {
            memset(read, 0, sizeof read);
            CHECK(gpu_vmm_physical_read(imported, 0, read, 7));
            demand(strcmp(read, "shared") == 0, "the imported memory is the same");
            gpu_vmm_physical_release(imported);
            gpu_vmm_region *region = NULL;
            CHECK(gpu_vmm_region_import(backend, bytes, size, &region));
            demand(byte_at(region, 0) == 's', "the imported region has the bytes");
            gpu_vmm_region_free(region);
        } else {
            printf("no import from a process here: %s\n", gpu_vmm_last_error());
        }
        RETURNS(GPU_VMM_PEER, gpu_vmm_physical_import(backend, bytes, size - 1, &imported));
        gpu_vmm_offer_free(offer);
    } else {
        printf("no offers here: %s\n", gpu_vmm_last_error());
    }
    gpu_vmm_physical_release(memory);
}

// The dma-bufs of a range, one for each call, which must follow each other and end with the range. Returns their number.
static uint64_t one_by_one(const gpu_vmm_region *region, uint64_t end) {
    uint64_t number = 0;
    for (uint64_t at = 0; at < end; ++number) {
        gpu_vmm_dma_buf one;
        uint64_t count = 0;
        CHECK(gpu_vmm_region_dma_bufs(region, at, end - at, &one, 1, &count));
        demand(count == 1 && one.offset == at && one.length > 0, "dma-bufs follow each other");
        demand(close(one.fd) == 0, "a dma-buf is a descriptor of the caller's");
        at += one.length;
        demand(at <= end, "dma-bufs end with the range");
    }
    return number;
}

static void dma_bufs(const gpu_vmm_backend *backend, uint64_t unit) {
    gpu_vmm_region *region = filled(backend, 2, 1);
    gpu_vmm_dma_buf all[3];
    uint64_t count = 4711;
    const gpu_vmm_status status = gpu_vmm_region_dma_bufs(region, 0, 2 * unit, all, 3, &count);
    if (status == GPU_VMM_UNSUPPORTED) {
        demand(count == 0, "an error leaves no dma-bufs");
        printf("no dma-bufs here: %s\n", gpu_vmm_last_error());
        gpu_vmm_region_free(region);
        return;
    }
    demand(status == GPU_VMM_OK && count >= 1 && count <= 2, "two mappings are two dma-bufs at most");
    uint64_t end = 0;
    for (uint64_t at = 0; at < count; ++at) {
        demand(all[at].offset == end, "dma-bufs have no gap");
        end += all[at].length;
        demand(close(all[at].fd) == 0, "a dma-buf is a descriptor of the caller's");
    }
    demand(end == 2 * unit, "dma-bufs cover the range");
    demand(one_by_one(region, 2 * unit) == count, "a call for each has as many");
    RETURNS(GPU_VMM_UNALIGNED, gpu_vmm_region_dma_bufs(region, 1, unit, all, 3, &count));
    RETURNS(GPU_VMM_OUT_OF_RANGE, gpu_vmm_region_dma_bufs(region, 0, 3 * unit, all, 3, &count));
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_region_dma_bufs(region, 0, unit, all, 0, &count));
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_region_dma_bufs(region, 0, unit, NULL, 1, &count));
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_region_dma_bufs(region, 0, unit, all, 1, NULL));
    gpu_vmm_region_free(region);

    uint32_t devices = 0;
    CHECK(gpu_vmm_backend_devices(backend, &devices));
    if (devices < 2) {
        return;
    }
    // The memory of two devices is never one dma-buf. Those beyond the capacity are closed.
    gpu_vmm_properties of_other;
    memset(&of_other, 0, sizeof of_other);
    of_other.device = 1;
    gpu_vmm_physical *own = create(backend, unit, 0), *other = NULL;
    CHECK(gpu_vmm_physical_create(backend, &of_other, unit, &other));
    region = reserve(backend, 2);
    CHECK(gpu_vmm_region_map(region, 0, own));
    RETURNS(GPU_VMM_NOT_MAPPED, gpu_vmm_region_dma_bufs(region, 0, 2 * unit, all, 3, &count));
    CHECK(gpu_vmm_region_map(region, unit, other));
    demand(one_by_one(region, 2 * unit) == 2, "each device has its own");
    const int before = dup(1);
    close(before);
    demand(one_by_one(region, 2 * unit) == 2, "each device has its own again");
    const int after = dup(1);
    close(after);
    demand(before == after, "no descriptor is left open");
    gpu_vmm_physical_release(own);
    gpu_vmm_physical_release(other);
    gpu_vmm_region_free(region);
}

static void queued(const gpu_vmm_backend *backend, uint64_t unit) {
    gpu_vmm_region *region = filled(backend, 2, 1);
    gpu_vmm_pinned *pinned = NULL;
    gpu_vmm_copy_queue *queue = NULL;
    void *data = NULL;
    CHECK(gpu_vmm_pinned_new(backend, 2 * unit, &pinned));
    CHECK(gpu_vmm_pinned_data(pinned, &data));
    CHECK(gpu_vmm_copy_queue_new(backend, 0, &queue));
    memset(data, 7, 2 * unit);
    // From the middle of one mapping to the middle of the next.
    CHECK(gpu_vmm_copy_queue_write(queue, region, unit / 2, pinned, 0, unit));
    CHECK(gpu_vmm_copy_queue_finish(queue));
    demand(byte_at(region, unit / 2 - 1) == 1 && byte_at(region, unit / 2) == 7, "the copy begins where it should");
    demand(byte_at(region, unit + unit / 2 - 1) == 7 && byte_at(region, unit + unit / 2) == 2, "and ends where it should");
    CHECK(gpu_vmm_copy_queue_read(queue, region, 0, pinned, unit, unit));
    CHECK(gpu_vmm_copy_queue_finish(queue));
    const uint8_t *bytes = (const uint8_t *)data;
    demand(bytes[unit] == 1 && bytes[2 * unit - 1] == 7, "the bytes are on the host");
    RETURNS(GPU_VMM_OUT_OF_RANGE, gpu_vmm_copy_queue_write(queue, region, 0, pinned, unit + 1, unit));
    RETURNS(GPU_VMM_OUT_OF_RANGE, gpu_vmm_copy_queue_write(queue, region, 0, pinned, UINT64_MAX, 1));
    RETURNS(GPU_VMM_OUT_OF_RANGE, gpu_vmm_copy_queue_read(queue, region, 2 * unit, pinned, 0, 1));
    CHECK(gpu_vmm_region_set_access(region, 0, unit, 0, GPU_VMM_ACCESS_READ));
    RETURNS(GPU_VMM_ACCESS_DENIED, gpu_vmm_copy_queue_write(queue, region, 0, pinned, 0, 1));
    CHECK(gpu_vmm_region_unmap(region, 0, unit, false));
    RETURNS(GPU_VMM_NOT_MAPPED, gpu_vmm_copy_queue_read(queue, region, 0, pinned, 0, 1));
    // Before and after work of other streams.
    gpu_vmm_event *before = NULL, *after = NULL;
    bool done = false;
    CHECK(gpu_vmm_event_new(backend, 0, &before));
    CHECK(gpu_vmm_event_new(backend, 0, &after));
    CHECK(gpu_vmm_event_record(before, NULL));
    CHECK(gpu_vmm_copy_queue_hold(queue, before));
    CHECK(gpu_vmm_copy_queue_read(queue, region, unit, pinned, 0, unit));
    CHECK(gpu_vmm_copy_queue_record(queue, after));
    CHECK(gpu_vmm_event_hold(after, NULL));
    CHECK(gpu_vmm_event_wait(after));
    CHECK(gpu_vmm_event_done(after, &done));
    demand(done, "the event of finished copies is done");
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_copy_queue_hold(queue, NULL));
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_copy_queue_record(queue, (const gpu_vmm_event *)queue));
    gpu_vmm_event_free(before);
    gpu_vmm_event_free(after);
    // The memory of a queued copy may be freed: the queue keeps it.
    CHECK(gpu_vmm_copy_queue_read(queue, region, unit, pinned, 0, unit));
    gpu_vmm_pinned_free(pinned);
    gpu_vmm_copy_queue_free(queue);
    gpu_vmm_region_free(region);
}

static void events(const gpu_vmm_backend *backend) {
    gpu_vmm_event *event = NULL;
    bool done = false;
    CHECK(gpu_vmm_event_new(backend, 0, &event));
    CHECK(gpu_vmm_event_done(event, &done));
    demand(done, "an event without a record is done");
    CHECK(gpu_vmm_event_record(event, NULL));
    CHECK(gpu_vmm_event_hold(event, NULL));
    CHECK(gpu_vmm_event_wait(event));
    CHECK(gpu_vmm_event_done(event, &done));
    demand(done, "an event is done after the wait");
    gpu_vmm_event_free(event);
    gpu_vmm_event_free(NULL);
}

static void devices(const gpu_vmm_backend *backend, uint64_t unit) {
    uint32_t count = 0;
    uint64_t granularity = 0;
    char *json = NULL;
    bool reachable = false;
    CHECK(gpu_vmm_backend_devices(backend, &count));
    CHECK(gpu_vmm_granularity(backend, NULL, &granularity));
    demand(granularity > 0 && unit % granularity == 0, "regions consist of granules");
    CHECK(gpu_vmm_capabilities(backend, 0, &json));
    demand(strstr(json, "\"feature\":\"virtual memory\",\"available\":true") != NULL, json);
    gpu_vmm_string_free(json);
    CHECK(gpu_vmm_can_access(backend, 0, 0, &reachable));
    demand(reachable, "a device can access its own memory");
    RETURNS(GPU_VMM_NO_SUCH_DEVICE, gpu_vmm_can_access(backend, 0, count, &reachable));
}

int main(int count, char **arguments) {
    gpu_vmm_backend *backend = backend_of(count, arguments);
    const uint64_t unit = unit_of(backend);
    devices(backend, unit);
    objects(backend, unit);
    recommended(backend);
    mappings(backend, unit);
    descriptors(backend, unit);
    dma_bufs(backend, unit);
    queued(backend, unit);
    events(backend);
    gpu_vmm_close(backend);
    puts("passed");
    return 0;
}
