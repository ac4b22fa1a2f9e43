// Tests the rules at the top of the header: results after errors, options of zeros, and memory that a tensor uses.
//
// The first argument is the backend. The exit status is 0 if every rule holds.

// For nanosleep.
#define _POSIX_C_SOURCE 199309L

#include "../include/gpu_vmm.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void demand(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "failed: %s; the last error is: %s\n", what, gpu_vmm_last_error());
        exit(1);
    }
}

static int is_zero(const void *place, size_t size) {
    const unsigned char *bytes = (const unsigned char *)place;
    for (size_t at = 0; at < size; ++at) {
        if (bytes[at] != 0) {
            return 0;
        }
    }
    return 1;
}

// A call that must fail. Fills the result with nonzero bytes first; the call must leave only zeros.
#define FAILS(result, call)                                                                                                      \
    do {                                                                                                                         \
        memset(&(result), 0xA5, sizeof(result));                                                                                 \
        demand((call) != GPU_VMM_OK, #call " fails");                                                                            \
        demand(is_zero(&(result), sizeof(result)), "after an error the result is zero: " #call);                                 \
    } while (0)

// A descriptor is -1 after an error, since 0 is one.
#define FAILS_WITH(value, result, call)                                                                                          \
    do {                                                                                                                         \
        (result) = 0;                                                                                                            \
        demand((call) != GPU_VMM_OK, #call " fails");                                                                            \
        demand((result) == (value), "after an error the result is " #value ": " #call);                                          \
    } while (0)

static void no_run(void *context, const gpu_vmm_torch_run *run) {
    (void)context;
    (void)run;
}

static void no_block(void *context, const gpu_vmm_torch_block *block) {
    (void)context;
    (void)block;
}

// A call without a result that must fail, and with which status.
#define REFUSES(status, call) demand(status == (call), #call " is refused with " #status)

// The functions of the allocator class for PyTorch.
static void class_results(void) {
    const gpu_vmm_torch_mempool_id id = {0, 4711};
    gpu_vmm_torch_block block;
    gpu_vmm_torch_usage usage;
    gpu_vmm_torch_checkpoint_state *state;
    gpu_vmm_torch_imported *imported;
    char *text;
    uint64_t number;

    FAILS(block, gpu_vmm_torch_allocate(0, 0, NULL, NULL, &block));
    FAILS(block, gpu_vmm_torch_allocate(0, 512, NULL, &id, &block));
    FAILS(block, gpu_vmm_torch_allocate_at_last(-1, 512, NULL, &block));
    FAILS(block, gpu_vmm_torch_deallocate(512, &block));
    FAILS(block, gpu_vmm_torch_find(512, &block));
    FAILS(usage, gpu_vmm_torch_measure(-1, &usage));
    FAILS(number, gpu_vmm_torch_pool_uses(-1, id, &number));
    FAILS(state, gpu_vmm_torch_checkpoint(0, id, no_block, NULL, &state));
    FAILS(text, gpu_vmm_torch_export(512, &text, &number));
    FAILS(imported, gpu_vmm_torch_import("{}", &imported, &number));
    REFUSES(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_torch_restore(0, NULL, no_block, no_block, NULL));
    REFUSES(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_torch_walk(-1, no_run, no_block, NULL));
    REFUSES(GPU_VMM_NOT_FOUND, gpu_vmm_torch_record_use(512, NULL));
    REFUSES(GPU_VMM_NOT_FOUND, gpu_vmm_torch_pool_release(0, id));
    REFUSES(GPU_VMM_NOT_FOUND, gpu_vmm_torch_pool_begin(0, id, NULL));
    REFUSES(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_torch_allow_access(0, -1));
    gpu_vmm_restored_block restored[2];
    FAILS(restored, gpu_vmm_torch_restore_pool(-1, "/no/such/file", NULL, restored, 2));
    REFUSES(GPU_VMM_NOT_FOUND, gpu_vmm_torch_claim(-1, 512));
    REFUSES(GPU_VMM_OK, gpu_vmm_torch_end_restore(-1));
}

// tests/header.rs checks that every function of the header with a result is called here.
static void results(const gpu_vmm_backend *backend, const gpu_vmm_pool *pool, const gpu_vmm_region *region) {
    union {
        gpu_vmm_backend *backend;
        gpu_vmm_pool *pool;
        gpu_vmm_region *region;
        gpu_vmm_capture *capture;
    } object;
    uint32_t count;
    uint64_t number, other_number;
    int32_t type, id;
    bool flag;
    char *text;
    void *pointer, *other_pointer;
    gpu_vmm_block block;
    const int64_t shape[1] = {-1};
    gpu_vmm_pool_options options;
    memset(&options, 0, sizeof options);
    options.device = 4711;

    FAILS(object.backend, gpu_vmm_open("vulkan", &object.backend));
    FAILS(count, gpu_vmm_backend_devices(NULL, &count));
    FAILS(text, gpu_vmm_backend_info(NULL, &text));
    FAILS(text, gpu_vmm_at(0, &text));
    FAILS(number, gpu_vmm_memory(backend, 4711, &number, NULL));
    FAILS(object.capture, gpu_vmm_capture_begin(NULL, &object.capture));
    FAILS(number, gpu_vmm_collect(NULL, &number));
    REFUSES(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_capture_end((gpu_vmm_capture *)region));
    FAILS(other_number, gpu_vmm_memory(backend, 4711, NULL, &other_number));
    FAILS(object.pool, gpu_vmm_pool_new(backend, &options, &object.pool));
    FAILS(object.pool, gpu_vmm_pool_new(NULL, NULL, &object.pool));
    FAILS(object.pool, gpu_vmm_pool_tagged(pool, NULL, &object.pool));
    gpu_vmm_properties elsewhere;
    memset(&elsewhere, 0, sizeof elsewhere);
    elsewhere.device = 4711;
    FAILS(object.pool, gpu_vmm_pool_with_memory(pool, &elsewhere, &object.pool));
    FAILS(text, gpu_vmm_pool_kinds(NULL, &text));
    FAILS(number, gpu_vmm_recommended_granularity(backend, &elsewhere, &number));
    FAILS(number, gpu_vmm_first_supported(backend, NULL, 1, &number, NULL));
    FAILS(text, gpu_vmm_first_supported(backend, &elsewhere, 1, &number, &text));
    REFUSES(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_pool_allow_access(pool, 0, 7));
    REFUSES(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_pool_move_to_device(NULL, 0));
    FAILS(number, gpu_vmm_alloc(pool, 0, 0, NULL, &number));
    FAILS(number, gpu_vmm_alloc(NULL, 1, 0, NULL, &number));
    REFUSES(GPU_VMM_UNALIGNED, gpu_vmm_alloc_at(pool, 4711, 1, NULL));
    FAILS(object.pool, gpu_vmm_pool_restore(backend, "/no/such/file", NULL, &object.pool, NULL, 0));
    gpu_vmm_restored_block restored[2];
    FAILS(restored, gpu_vmm_pool_restore(backend, "/no/such/file", NULL, &object.pool, restored, 2));
    FAILS(number, gpu_vmm_saved_pool_count("/no/such/file", &number));
    REFUSES(GPU_VMM_FILE, gpu_vmm_pool_save(pool, "/no/such/folder/file", NULL, 0, false));
    FAILS(block, gpu_vmm_find(pool, 4711, &block));
    FAILS(number, gpu_vmm_trim(NULL, 0, &number));
    FAILS(number, gpu_vmm_host_memory(NULL, &number));
    FAILS(number, gpu_vmm_trim_host(NULL, &number));
    FAILS(text, gpu_vmm_pool_stats(NULL, &text));
    FAILS(text, gpu_vmm_pool_snapshot(NULL, &text));
    FAILS(object.region, gpu_vmm_region_new(backend, 4711, 0, &object.region));
    FAILS(number, gpu_vmm_region_address(NULL, &number));
    FAILS(number, gpu_vmm_region_size(NULL, &number));
    FAILS(flag, gpu_vmm_region_is_plain(NULL, &flag));
    FAILS(flag, gpu_vmm_region_is_suspended(NULL, &flag));
    FAILS(number, gpu_vmm_region_shrink(NULL, 0, false, &number));
    FAILS(number, gpu_vmm_region_suspend(region, "floppy", false, &number));
    FAILS(number, gpu_vmm_region_resume(NULL, &number));
    FAILS(flag, gpu_vmm_is_suspended(pool, "no such tag", &flag));
    FAILS(number, gpu_vmm_suspend(pool, "no such tag", NULL, &number));
    FAILS(number, gpu_vmm_resume(pool, "no such tag", &number));
    FAILS(pointer, gpu_vmm_region_dlpack(region, 0, 0, 8, 1, 1, shape, NULL, false, true, &pointer));
    FAILS(type, gpu_vmm_dlpack_device(backend, 4711, &type, NULL));
    FAILS(id, gpu_vmm_dlpack_device(backend, 4711, NULL, &id));
    FAILS(object.pool, gpu_vmm_torch_pool(-1, &object.pool));
    FAILS(pointer, gpu_vmm_torch_functions("tag", &pointer, NULL));
    FAILS(other_pointer, gpu_vmm_torch_functions("tag", NULL, &other_pointer));
    class_results();
}

// The same for physical memory and regions of the caller's layout.
static void low_level_results(const gpu_vmm_backend *backend, const gpu_vmm_region *region) {
    union {
        gpu_vmm_multicast *multicast;
        gpu_vmm_physical *physical;
        gpu_vmm_region *region;
        gpu_vmm_banked *banked;
        gpu_vmm_offer *offer;
        gpu_vmm_page_list *pages;
        gpu_vmm_event *event;
        gpu_vmm_pinned *pinned;
        gpu_vmm_copy_queue *queue;
        gpu_vmm_listener *listener;
        gpu_vmm_exporter *exporter;
        gpu_vmm_followed *followed;
        gpu_vmm_client *client;
        gpu_vmm_lease *lease;
        gpu_vmm_layout *layout;
    } object;
    gpu_vmm_region *regions[2];
    gpu_vmm_properties properties, filled;
    gpu_vmm_region_options options;
    gpu_vmm_fabric_handle handle, any_handle;
    memset(&properties, 0, sizeof properties);
    memset(&options, 0, sizeof options);
    memset(&any_handle, 0, sizeof any_handle);
    properties.device = options.placement = 4711;
    const uint32_t no_device = 4711;
    gpu_vmm_team_options team;
    memset(&team, 0, sizeof team);
    team.devices = &no_device;
    team.device_count = 1;
    team.size = 1;
    gpu_vmm_dma_buf dma_buf;
    gpu_vmm_mapping mapping;
    uint64_t number;
    uint32_t level;
    int fd;
    bool flag;
    char *text;
    void *pointer;
    const void *bytes;
    const char *key, *note;
    gpu_vmm_layout *layout = NULL;
    gpu_vmm_part part;
    gpu_vmm_range range;

    FAILS(number, gpu_vmm_granularity(backend, &properties, &number));
    FAILS(number, gpu_vmm_reservation_unit(NULL, &number));
    FAILS(flag, gpu_vmm_can_access(backend, 0, 4711, &flag));
    FAILS(text, gpu_vmm_capabilities(backend, 4711, &text));
    FAILS(object.physical, gpu_vmm_physical_adopt(backend, 0, &object.physical));
    FAILS(object.physical, gpu_vmm_physical_adopt(NULL, 0, &object.physical));
    FAILS(object.physical, gpu_vmm_physical_create(backend, &properties, 1, &object.physical));
    FAILS(object.physical, gpu_vmm_physical_create(backend, NULL, 0, &object.physical));
    FAILS(object.physical, gpu_vmm_physical_retain(NULL, &object.physical));
    FAILS(number, gpu_vmm_physical_size(NULL, &number));
    FAILS(filled, gpu_vmm_physical_properties(NULL, &filled));
    FAILS(flag, gpu_vmm_physical_same(NULL, NULL, &flag));
    FAILS(number, gpu_vmm_physical_holders(NULL, &number));
    FAILS(text, gpu_vmm_region_tag(NULL, &text));
    FAILS(number, gpu_vmm_region_holders(region, UINT64_MAX, &number));
    FAILS(number, gpu_vmm_region_make_private(region, UINT64_MAX, 1, NULL, &number));
    FAILS(number, gpu_vmm_region_suspend_shared(region, "floppy", false, &number, NULL));
    FAILS(number, gpu_vmm_region_suspend_shared(region, "floppy", false, NULL, &number));
    FAILS(number, gpu_vmm_region_resume_with(region, NULL, &number));
    FAILS(object.pages, gpu_vmm_page_list_new(backend, &properties, 1, 1, &object.pages));
    FAILS(number, gpu_vmm_page_list_sizes(NULL, &number, NULL, NULL, NULL));
    FAILS(number, gpu_vmm_page_list_sizes(NULL, NULL, &number, NULL, NULL));
    FAILS(number, gpu_vmm_page_list_sizes(NULL, NULL, NULL, &number, NULL));
    FAILS(number, gpu_vmm_page_list_sizes(NULL, NULL, NULL, NULL, &number));
    FAILS(object.physical, gpu_vmm_page_list_take(NULL, &object.physical));
    FAILS_WITH(-1, fd, gpu_vmm_physical_export_fd(NULL, &fd));
    FAILS(handle, gpu_vmm_physical_export_fabric(NULL, &handle));
    FAILS(object.physical, gpu_vmm_physical_import_fd(backend, NULL, 1, -1, &object.physical));
    FAILS(object.physical, gpu_vmm_physical_import_fabric(backend, &properties, 1, &any_handle, &object.physical));
    FAILS(object.physical, gpu_vmm_physical_import(backend, "no offer", 8, &object.physical));
    FAILS(object.offer, gpu_vmm_physical_offer(backend, NULL, GPU_VMM_OFFER_BY_PROCESS, &object.offer));
    FAILS(object.offer, gpu_vmm_region_offer(region, 4711, &object.offer));
    FAILS(bytes, gpu_vmm_offer_bytes(NULL, &bytes, &number));
    FAILS(number, gpu_vmm_offer_bytes(NULL, &bytes, &number));
    FAILS(object.region, gpu_vmm_region_import(backend, "no offer", 8, &object.region));
    FAILS(object.region, gpu_vmm_region_reserve(backend, &options, &object.region));
    FAILS(object.region, gpu_vmm_region_restore(backend, "/no/such/file", NULL, &object.region));
    FAILS(regions, gpu_vmm_regions_restore(backend, "/no/such/file", NULL, regions, 2));
    FAILS(number, gpu_vmm_snapshot_count("/no/such/file", &number));
    FAILS(object.listener, gpu_vmm_listener_new("/no/such/folder/socket", &object.listener));
    FAILS(object.listener, gpu_vmm_listener_replace_stale("/no/such/folder/socket", &object.listener));
    FAILS(object.exporter, gpu_vmm_export(NULL, region, 0, &object.exporter));
    FAILS(object.exporter, gpu_vmm_export_to_user(NULL, region, 0, 0, &object.exporter));
    FAILS(flag, gpu_vmm_exporter_publish(NULL, region, &flag));
    FAILS(level, gpu_vmm_exporter_wait_released(NULL, 0, &level));
    FAILS(object.followed, gpu_vmm_follow(backend, "/no/such/socket", 0, 0, &object.followed));
    FAILS(object.followed, gpu_vmm_follow_user(backend, "/no/such/socket", 0, 0, 0, &object.followed));
    FAILS(level, gpu_vmm_followed_next(NULL, 0, &level));
    FAILS(number, gpu_vmm_followed_range(NULL, &number, NULL));
    FAILS(number, gpu_vmm_followed_range(NULL, NULL, &number));
    FAILS(object.client, gpu_vmm_connect(backend, "/no/such/socket", &object.client));
    FAILS(object.client, gpu_vmm_connect_user(backend, "/no/such/socket", 0, &object.client));
    FAILS(text, gpu_vmm_client_status(NULL, &text));
    FAILS(object.physical, gpu_vmm_pool_memory_at(NULL, 0, &object.physical, &number));
    FAILS(number, gpu_vmm_pool_granted(NULL, &number, NULL));
    FAILS(number, gpu_vmm_pool_wake(NULL, "tag", &number));
    FAILS(object.lease, gpu_vmm_client_create(NULL, "name", 1, NULL, &object.lease));
    FAILS(object.lease, gpu_vmm_client_open(NULL, "name", GPU_VMM_LEASE_READ, 0, &object.lease));
    FAILS(object.lease, gpu_vmm_client_load(NULL, "/no/such/file", "name", NULL, &object.lease));
    FAILS(number, gpu_vmm_lease_save(NULL, "/no/such/folder/file", &number));
    FAILS(object.region, gpu_vmm_lease_region(NULL, &object.region));
    FAILS(level, gpu_vmm_lease_state(NULL, &level, NULL));
    FAILS(number, gpu_vmm_lease_state(NULL, NULL, &number));
    FAILS(object.layout, gpu_vmm_lease_layout(NULL, &object.layout));
    FAILS_WITH(-1, fd, gpu_vmm_lease_fd(NULL, &fd));
    FAILS(level, gpu_vmm_lease_next(NULL, 0, &level));
    FAILS(number, gpu_vmm_lease_apply(NULL, &number));
    FAILS(range, gpu_vmm_lease_renew(NULL, 0, 1, true, &range));
    FAILS(number, gpu_vmm_lease_commit(NULL, NULL, &number));
    demand(gpu_vmm_layout_new(&layout) == GPU_VMM_OK, "a layout is created");
    FAILS(number, gpu_vmm_layout_sizes(NULL, &number, NULL));
    FAILS(number, gpu_vmm_layout_sizes(NULL, NULL, &number));
    FAILS(part, gpu_vmm_layout_part(layout, 0, &part));
    FAILS(part, gpu_vmm_layout_find_part(layout, "name", &part));
    FAILS(key, gpu_vmm_layout_note(layout, 0, &key, &note));
    FAILS(note, gpu_vmm_layout_note(layout, 0, &key, &note));
    FAILS(note, gpu_vmm_layout_find_note(layout, "key", &note));
    gpu_vmm_layout_free(layout);
    REFUSES(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_layout_new(NULL));
    FAILS(number, gpu_vmm_region_reserved(NULL, &number));
    FAILS(number, gpu_vmm_region_granularity(NULL, &number));
    FAILS(number, gpu_vmm_region_grow_or_move(region, UINT64_MAX, &number));
    FAILS(level, gpu_vmm_region_access(NULL, 0, 0, &level));
    FAILS(mapping, gpu_vmm_region_mapping(region, UINT64_MAX, &mapping));
    FAILS(object.physical, gpu_vmm_region_physical(region, UINT64_MAX, &object.physical));
    FAILS(number, gpu_vmm_region_dma_bufs(region, UINT64_MAX, 1, &dma_buf, 1, &number));
    FAILS(object.multicast, gpu_vmm_multicast_create(backend, &team, &object.multicast));
    FAILS(object.multicast, gpu_vmm_multicast_import_fd(backend, &team, -1, &object.multicast));
    FAILS_WITH(-1, fd, gpu_vmm_multicast_export_fd(NULL, &fd));
    FAILS(number, gpu_vmm_multicast_sizes(NULL, &number, NULL, NULL));
    FAILS(number, gpu_vmm_multicast_map(NULL, &number));
    REFUSES(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_multicast_unmap((const gpu_vmm_multicast *)region));
    FAILS(number, gpu_vmm_region_on_backing_change(region, NULL, &number));
    FAILS(object.banked, gpu_vmm_banked_new(backend, &options, &object.banked));
    FAILS(number, gpu_vmm_banked_address(NULL, &number));
    FAILS(level, gpu_vmm_banked_add(NULL, 1, &level));
    FAILS(level, gpu_vmm_banked_add_physical(NULL, NULL, 0, &level));
    FAILS(level, gpu_vmm_banked_selected(NULL, &level));
    FAILS(object.event, gpu_vmm_event_new(backend, 4711, &object.event));
    FAILS(flag, gpu_vmm_event_done(NULL, &flag));
    FAILS(object.pinned, gpu_vmm_pinned_new(backend, 0, &object.pinned));
    FAILS(pointer, gpu_vmm_pinned_data(NULL, &pointer));
    FAILS(object.queue, gpu_vmm_copy_queue_new(backend, 4711, &object.queue));
    properties.device = 0;
    properties.reserved[3] = 1;
    FAILS(object.physical, gpu_vmm_physical_create(backend, &properties, 1, &object.physical));
    demand(strstr(gpu_vmm_last_error(), "reserved") != NULL, "the error names the field");
}

static long long held(const gpu_vmm_pool *pool) {
    char *statistics = NULL;
    demand(gpu_vmm_pool_stats(pool, &statistics) == GPU_VMM_OK, "the pool has statistics");
    const char *number = strstr(statistics, "\"held\":");
    demand(number != NULL, statistics);
    const long long bytes = strtoll(number + strlen("\"held\":"), NULL, 10);
    gpu_vmm_string_free(statistics);
    return bytes;
}

// Whether a pool still holds the memory of ten freed blocks after the given number of milliseconds, in each of which a block is
// allocated and freed.
static int keeps(const gpu_vmm_backend *backend, const gpu_vmm_pool_options *options, int milliseconds) {
    gpu_vmm_pool *pool = NULL;
    uint64_t blocks[10];
    demand(gpu_vmm_pool_new(backend, options, &pool) == GPU_VMM_OK, "a pool is created");
    for (int at = 0; at < 10; ++at) {
        demand(gpu_vmm_alloc(pool, 16 << 20, 0, NULL, &blocks[at]) == GPU_VMM_OK, "a block is allocated");
    }
    for (int at = 0; at < 10; ++at) {
        demand(gpu_vmm_free(pool, blocks[at]) == GPU_VMM_OK, "and freed");
    }
    // Memory returns to the driver with a later free, once the device has finished with it: when, the driver decides.
    const struct timespec millisecond = {0, 1000000};
    int kept = 1;
    for (int turn = 0; turn < milliseconds && kept; ++turn) {
        nanosleep(&millisecond, NULL);
        kept = held(pool) >= 160 << 20;
        demand(gpu_vmm_alloc(pool, 16 << 20, 0, NULL, &blocks[0]) == GPU_VMM_OK, "another block");
        demand(gpu_vmm_free(pool, blocks[0]) == GPU_VMM_OK, "is freed");
    }
    gpu_vmm_pool_free(pool);
    return kept;
}

static void options_of_zeros(const gpu_vmm_backend *backend) {
    gpu_vmm_pool_options options;
    memset(&options, 0, sizeof options);
    demand(keeps(backend, NULL, 100), "a pool keeps its memory by default");
    demand(keeps(backend, &options, 100), "options of zeros are the default");
    options.keep = UINT64_MAX;
    demand(keeps(backend, &options, 100), "the largest value of keep keeps all memory");
    options.keep = GPU_VMM_KEEP_NOTHING;
    demand(!keeps(backend, &options, 30000), "GPU_VMM_KEEP_NOTHING keeps no memory");

    gpu_vmm_pool *pool = NULL;
    memset(&options, 0, sizeof options);
    options.reserved[3] = 1;
    demand(gpu_vmm_pool_new(backend, &options, &pool) == GPU_VMM_INVALID_ARGUMENT, "a setting of a later version is an error");
    demand(strstr(gpu_vmm_last_error(), "reserved") != NULL, "the error names the field");
    demand(gpu_vmm_torch_configure(NULL, &options) == GPU_VMM_INVALID_ARGUMENT, "it is an error for PyTorch's pools as well");
}

static void memory_that_is_shown(const gpu_vmm_region *region) {
    const int64_t shape[1] = {16};
    void *tensor = NULL;
    uint64_t bytes = 0, size = 0;
    bool suspended = false;
    char written[] = "sixteen letters", read[sizeof written];
    demand(gpu_vmm_region_grow(region, 1) == GPU_VMM_OK, "the region grows");
    demand(gpu_vmm_region_write(region, 0, written, sizeof written) == GPU_VMM_OK, "the region is written");
    demand(gpu_vmm_region_dlpack(region, 0, 1, 8, 1, 1, shape, NULL, false, true, &tensor) == GPU_VMM_OK, "a tensor is exported");
    demand(gpu_vmm_region_suspend(region, "host", false, &bytes) == GPU_VMM_BUSY && bytes == 0, "suspend fails without force");
    demand(strstr(gpu_vmm_last_error(), "force") != NULL, "the error mentions force");
    demand(gpu_vmm_region_shrink(region, 0, false, NULL) == GPU_VMM_BUSY, "shrink fails without force");
    demand(gpu_vmm_region_size(region, &size) == GPU_VMM_OK && size > 0, "the region has memory");
    demand(gpu_vmm_region_unmap(region, 0, size, false) == GPU_VMM_BUSY, "unmap fails without force");
    demand(gpu_vmm_region_suspend(region, "host", true, &bytes) == GPU_VMM_OK && bytes > 0, "suspend succeeds with force");
    demand(gpu_vmm_region_suspend(region, "host", true, &bytes) == GPU_VMM_OK && bytes == 0, "a second suspension returns nothing");
    demand(gpu_vmm_region_is_suspended(region, &suspended) == GPU_VMM_OK && suspended, "the region is suspended");
    demand(gpu_vmm_region_resume(region, &bytes) == GPU_VMM_OK && bytes > 0, "the region is resumed");
    demand(gpu_vmm_region_resume(region, &bytes) == GPU_VMM_OK && bytes == 0, "a second resume maps nothing");
    demand(gpu_vmm_region_is_suspended(region, &suspended) == GPU_VMM_OK && !suspended, "the region is not suspended");
    memset(read, 0xFF, sizeof read);
    demand(gpu_vmm_region_read(region, 0, read, sizeof read) == GPU_VMM_OK, "the region is read");
    demand(memcmp(read, written, sizeof read) == 0, "the contents are restored");
    demand(gpu_vmm_region_shrink(region, 0, true, &bytes) == GPU_VMM_OK && bytes == size, "shrink succeeds with force");
    demand(gpu_vmm_region_size(region, &size) == GPU_VMM_OK && size == 0, "the region has no memory");
    gpu_vmm_dlpack_delete(tensor, true);
    demand(gpu_vmm_region_grow(region, 1) == GPU_VMM_OK, "the region grows again");
    demand(gpu_vmm_region_suspend(region, NULL, false, NULL) == GPU_VMM_OK, "without a tensor, suspend needs no force");
}

// Pointers that name no live object of their type.
static void wrong_objects(const gpu_vmm_backend *backend) {
    gpu_vmm_region *region = NULL, *next = NULL;
    uint64_t size = 0;
    demand(gpu_vmm_region_new(backend, 0, 64 << 20, &region) == GPU_VMM_OK, "a region is created");
    gpu_vmm_region_free(region);
    FAILS(size, gpu_vmm_region_size(region, &size));
    REFUSES(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_region_grow(region, 1));
    demand(strstr(gpu_vmm_last_error(), "freed") != NULL, "the error says that the object was freed");
    demand(gpu_vmm_region_new(backend, 0, 64 << 20, &next) == GPU_VMM_OK, "another region is created");
    demand(next != region, "it does not get the pointer of the freed one");
    gpu_vmm_region_free(region);
    gpu_vmm_region_free((gpu_vmm_region *)backend);
    gpu_vmm_pool_free((gpu_vmm_pool *)next);
    gpu_vmm_region_free((gpu_vmm_region *)&size);
    demand(gpu_vmm_region_grow(next, 1) == GPU_VMM_OK, "freeing wrong objects does nothing");
    REFUSES(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_region_grow((const gpu_vmm_region *)backend, 1));
    REFUSES(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_region_grow((const gpu_vmm_region *)&size, 1));
    REFUSES(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_region_map(next, 0, (const gpu_vmm_physical *)next));
    demand(strcmp(gpu_vmm_backend_name((const gpu_vmm_backend *)next), "") == 0, "a region has no backend's name");
    gpu_vmm_region_free(next);
}

int main(int count, char **arguments) {
    gpu_vmm_backend *backend = NULL;
    gpu_vmm_pool *pool = NULL;
    gpu_vmm_region *region = NULL;
    demand(gpu_vmm_open(count > 1 ? arguments[1] : NULL, &backend) == GPU_VMM_OK, "a backend is opened");
    demand(gpu_vmm_pool_new(backend, NULL, &pool) == GPU_VMM_OK, "a pool is created");
    demand(gpu_vmm_region_new(backend, 0, 64 << 20, &region) == GPU_VMM_OK, "a region is created");
    results(backend, pool, region);
    low_level_results(backend, region);
    wrong_objects(backend);
    options_of_zeros(backend);
    memory_that_is_shown(region);
    gpu_vmm_region_free(region);
    gpu_vmm_pool_free(pool);
    gpu_vmm_close(backend);
    puts("every rule holds");
    return 0;
}
