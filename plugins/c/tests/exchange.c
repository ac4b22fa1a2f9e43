// Other memory at the same addresses: swaps, banks, moves, snapshots; and regions at addresses of the caller's choice.
//
// The first argument is the backend. The exit status is 0 if every check holds.

// For getpid.
#define _POSIX_C_SOURCE 200809L

#include "support.h"
#include <unistd.h>

static uint64_t address_of(const gpu_vmm_region *region) {
    uint64_t address = 0;
    CHECK(gpu_vmm_region_address(region, &address));
    return address;
}

static void swaps(const gpu_vmm_backend *backend, uint64_t unit) {
    gpu_vmm_region *one = filled(backend, 2, 1), *other = filled(backend, 2, 11);
    CHECK(gpu_vmm_region_swap(one, 0, other, unit, unit, false));
    demand(byte_at(one, 0) == 12 && byte_at(other, unit) == 1 && byte_at(one, unit) == 2, "one unit is exchanged");
    // Each range belongs to the region before it, whichever of the two regions has the higher address.
    CHECK(gpu_vmm_region_swap(other, unit, one, 0, unit, false));
    demand(byte_at(one, 0) == 1 && byte_at(other, unit) == 12 && byte_at(other, 0) == 11, "it is exchanged again");
    CHECK(gpu_vmm_region_swap(one, 0, other, unit, unit, false));
    CHECK(gpu_vmm_region_swap_all(other, one, false));
    demand(byte_at(one, 0) == 11 && byte_at(one, unit) == 1 && byte_at(other, 0) == 12, "all memory is exchanged");
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_region_swap_all(one, one, false));
    RETURNS(GPU_VMM_OUT_OF_RANGE, gpu_vmm_region_swap(one, 0, other, 2 * unit, unit, false));
    CHECK(gpu_vmm_region_copy(one, unit / 2, other, unit, unit));
    demand(byte_at(one, unit / 2) == byte_at(other, unit), "bytes are copied");
    CHECK(gpu_vmm_region_copy(other, unit + 9, one, 0, 1));
    demand(byte_at(other, unit + 9) == byte_at(one, 0), "a byte is copied the other way");
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_region_copy(one, 0, one, unit, unit));
    RETURNS(GPU_VMM_OUT_OF_RANGE, gpu_vmm_region_copy(one, unit + 1, other, 0, unit));
    gpu_vmm_region_free(one);
    gpu_vmm_region_free(other);
}

static void banks(const gpu_vmm_backend *backend, uint64_t unit) {
    gpu_vmm_region_options options;
    memset(&options, 0, sizeof options);
    options.size = 2 * unit;
    gpu_vmm_banked *banked = NULL;
    uint32_t front = 0, back = 0, own = 0, selected = 0;
    uint64_t address = 0, later = 0;
    char read[6] = "";
    CHECK(gpu_vmm_banked_new(backend, &options, &banked));
    CHECK(gpu_vmm_banked_address(banked, &address));
    CHECK(gpu_vmm_banked_add(banked, unit, &front));
    CHECK(gpu_vmm_banked_add(banked, 2 * unit, &back));
    CHECK(gpu_vmm_banked_selected(banked, &selected));
    demand(selected == GPU_VMM_NO_BANK, "no bank is selected at first");
    RETURNS(GPU_VMM_NOT_MAPPED, gpu_vmm_banked_read(banked, 0, read, 6));
    CHECK(gpu_vmm_banked_select(banked, front));
    CHECK(gpu_vmm_banked_write(banked, 0, "front", 6));
    CHECK(gpu_vmm_banked_select(banked, back));
    CHECK(gpu_vmm_banked_write(banked, 0, "back", 5));
    CHECK(gpu_vmm_banked_select(banked, front));
    CHECK(gpu_vmm_banked_read(banked, 0, read, 6));
    CHECK(gpu_vmm_banked_address(banked, &later));
    demand(strcmp(read, "front") == 0 && address == later, "each bank keeps its bytes at one address");
    gpu_vmm_physical *pieces[2] = {NULL, NULL};
    CHECK(gpu_vmm_physical_create(backend, NULL, unit, &pieces[0]));
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_banked_add_physical(banked, (const gpu_vmm_physical *const *)pieces, 2, &own));
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_banked_add_physical(banked, NULL, 0, &own));
    CHECK(gpu_vmm_physical_write(pieces[0], 0, "mine", 5));
    CHECK(gpu_vmm_banked_add_physical(banked, (const gpu_vmm_physical *const *)pieces, 1, &own));
    gpu_vmm_physical_release(pieces[0]);
    CHECK(gpu_vmm_banked_select(banked, own));
    CHECK(gpu_vmm_banked_read(banked, 0, read, 5));
    demand(strcmp(read, "mine") == 0, "a bank can have the caller's memory");
    CHECK(gpu_vmm_physical_create(backend, NULL, unit, &pieces[0]));
    CHECK(gpu_vmm_physical_create(backend, NULL, unit, &pieces[1]));
    CHECK(gpu_vmm_physical_write(pieces[0], 0, "one", 4));
    CHECK(gpu_vmm_physical_write(pieces[1], 0, "two", 4));
    CHECK(gpu_vmm_banked_add_physical(banked, (const gpu_vmm_physical *const *)pieces, 2, &own));
    CHECK(gpu_vmm_banked_select(banked, own));
    CHECK(gpu_vmm_banked_read(banked, 0, read, 4));
    demand(strcmp(read, "one") == 0, "the first piece of a bank is at its beginning");
    CHECK(gpu_vmm_banked_read(banked, unit, read, 4));
    demand(strcmp(read, "two") == 0, "the second piece lies behind it");
    gpu_vmm_physical_release(pieces[0]);
    gpu_vmm_physical_release(pieces[1]);
    RETURNS(GPU_VMM_OUT_OF_RANGE, gpu_vmm_banked_add(banked, 3 * unit, &own));
    RETURNS(GPU_VMM_NOT_FOUND, gpu_vmm_banked_select(banked, 4711));
    CHECK(gpu_vmm_banked_hide(banked));
    CHECK(gpu_vmm_banked_selected(banked, &selected));
    demand(selected == GPU_VMM_NO_BANK, "a hidden bank is not selected");
    CHECK(gpu_vmm_banked_remove(banked, back));
    RETURNS(GPU_VMM_NOT_FOUND, gpu_vmm_banked_remove(banked, back));
    gpu_vmm_banked_free(banked);
    gpu_vmm_banked_free(NULL);
}

static void places(const gpu_vmm_backend *backend, uint64_t unit) {
    gpu_vmm_region_options options;
    memset(&options, 0, sizeof options);
    // A place that is free: where a region was. Not every driver hands out an address again.
    options.size = 4 * unit;
    options.placement = GPU_VMM_PLACE_RESTORABLE;
    gpu_vmm_region *region = NULL, *other = NULL;
    CHECK(gpu_vmm_region_reserve(backend, &options, &region));
    const uint64_t address = address_of(region);
    options.placement = GPU_VMM_PLACE_EXACT;
    options.address = address;
    RETURNS(GPU_VMM_ADDRESS_TAKEN, gpu_vmm_region_reserve(backend, &options, &other));
    options.placement = GPU_VMM_PLACE_PREFER;
    CHECK(gpu_vmm_region_reserve(backend, &options, &other));
    demand(address_of(other) != address, "a hint is advisory");
    gpu_vmm_region_free(other);
    options.placement = GPU_VMM_PLACE_EXACT;
    options.address = address + 1;
    RETURNS(GPU_VMM_UNALIGNED, gpu_vmm_region_reserve(backend, &options, &other));
    options.placement = GPU_VMM_PLACE_ANYWHERE;
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_region_reserve(backend, &options, &other));
    demand(strstr(gpu_vmm_last_error(), "placement is 0 (anywhere)") != NULL, "the error names the placement");
    demand(strstr(gpu_vmm_last_error(), "reserve: address is 0x") != NULL, "the error names the address");
    options.placement = GPU_VMM_PLACE_RESTORABLE;
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_region_reserve(backend, &options, &other));
    options.placement = GPU_VMM_PLACE_ANYWHERE;
    options.address = 0;
    options.alignment = 3;
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_region_reserve(backend, &options, &other));
    options.alignment = 0;
    options.size = UINT64_C(1) << 60;
    RETURNS(GPU_VMM_OUT_OF_ADDRESS_SPACE, gpu_vmm_region_reserve(backend, &options, &other));

    uint64_t reserved = 0, moved = 0, granularity = 0;
    CHECK(gpu_vmm_region_reserved(region, &reserved));
    CHECK(gpu_vmm_region_granularity(region, &granularity));
    demand(reserved >= 4 * unit && reserved % granularity == 0, "the region has its addresses");
    CHECK(gpu_vmm_region_grow(region, 1));
    CHECK(gpu_vmm_region_write(region, 0, "kept", 5));
    CHECK(gpu_vmm_region_grow_or_move(region, reserved + 1, &moved));
    char read[5] = "";
    CHECK(gpu_vmm_region_read(region, 0, read, 5));
    demand(moved == address_of(region) && strcmp(read, "kept") == 0, "a region that moves keeps its memory");
    gpu_vmm_region_free(region);
}

static void moves_of_pools(const gpu_vmm_backend *backend) {
    gpu_vmm_pool *pool = NULL;
    CHECK(gpu_vmm_pool_new(backend, NULL, &pool));
    uint64_t block = 0;
    CHECK(gpu_vmm_alloc(pool, 3000, 0, NULL, &block));
    CHECK(gpu_vmm_write(pool, block, "kept", 5));
    RETURNS(GPU_VMM_NO_SUCH_DEVICE, gpu_vmm_pool_move_to_device(pool, 4711));
    CHECK(gpu_vmm_pool_move_to_device(pool, 1));
    gpu_vmm_block found;
    CHECK(gpu_vmm_find(pool, block, &found));
    char read[5] = "";
    CHECK(gpu_vmm_read(pool, block, read, 5));
    demand(found.device == 1 && strcmp(read, "kept") == 0, "the blocks are on the other device");
    CHECK(gpu_vmm_free(pool, block));
    gpu_vmm_pool_free(pool);
}

static void moves(const gpu_vmm_backend *backend, uint64_t unit) {
    gpu_vmm_region *region = filled(backend, 1, 5);
    const uint64_t address = address_of(region);
    gpu_vmm_mapping mapping;
    bool there = false, back = false;
    RETURNS(GPU_VMM_NO_SUCH_DEVICE, gpu_vmm_region_move_to_device(region, 4711));
    uint32_t devices = 0;
    CHECK(gpu_vmm_backend_devices(backend, &devices));
    if (devices > 1) {
        CHECK(gpu_vmm_can_access(backend, 0, 1, &there));
        CHECK(gpu_vmm_can_access(backend, 1, 0, &back));
    }
    if (there && back) {
        CHECK(gpu_vmm_region_move_to_device(region, 1));
        CHECK(gpu_vmm_region_mapping(region, 0, &mapping));
        demand(mapping.device == 1 && byte_at(region, unit - 1) == 5, "the contents are on the other device");
        demand(address_of(region) == address, "at the same address");
        gpu_vmm_physical *held = NULL;
        CHECK(gpu_vmm_region_physical(region, 0, &held));
        RETURNS(GPU_VMM_BUSY, gpu_vmm_region_move_to_device(region, 0));
        gpu_vmm_physical_release(held);
        CHECK(gpu_vmm_region_move_to_device(region, 0));
        moves_of_pools(backend);
    }
    gpu_vmm_region_free(region);
}

static void snapshots(const gpu_vmm_backend *backend, uint64_t unit) {
    char path[128];
    // A name that is not UTF-8.
    snprintf(path, sizeof path, "/tmp/gpu-vmm-exchange-\xff-%ld.snapshot", (long)getpid());
    gpu_vmm_region_options options;
    memset(&options, 0, sizeof options);
    options.size = 2 * unit;
    options.placement = GPU_VMM_PLACE_RESTORABLE;
    gpu_vmm_region *region = NULL, *restored = NULL;
    CHECK(gpu_vmm_region_reserve(backend, &options, &region));
    CHECK(gpu_vmm_region_grow(region, 1));
    CHECK(gpu_vmm_region_write(region, 3, "in a file", 10));
    char *tag = NULL;
    CHECK(gpu_vmm_region_tag(region, &tag));
    demand(strcmp(tag, "") == 0, "a region has no name at first");
    gpu_vmm_string_free(tag);
    CHECK(gpu_vmm_region_set_tag(region, "weights"));
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_region_set_tag(region, NULL));
    CHECK(gpu_vmm_region_snapshot(region, path, true));
    RETURNS(GPU_VMM_ADDRESS_TAKEN, gpu_vmm_region_restore(backend, path, NULL, &restored));
    CHECK(gpu_vmm_region_restore(backend, path, elsewhere(), &restored));
    CHECK(gpu_vmm_region_tag(restored, &tag));
    demand(strcmp(tag, "weights") == 0, "the name is restored");
    gpu_vmm_string_free(tag);
    char read[10] = "";
    CHECK(gpu_vmm_region_read(restored, 3, read, 10));
    demand(strcmp(read, "in a file") == 0 && address_of(restored) != address_of(region), "the contents are restored elsewhere");
    gpu_vmm_region_free(restored);
    RETURNS(GPU_VMM_FILE, gpu_vmm_region_snapshot(region, "/no/such/folder/file", false));
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_region_snapshot(region, NULL, false));
    CHECK(gpu_vmm_region_suspend(region, NULL, false, NULL));
    RETURNS(GPU_VMM_SUSPENDED, gpu_vmm_region_snapshot(region, path, false));
    gpu_vmm_region_free(region);
    FILE *file = fopen(path, "w");
    demand(file != NULL && fputs("no snapshot", file) >= 0 && fclose(file) == 0, "a file is written");
    RETURNS(GPU_VMM_FILE, gpu_vmm_region_restore(backend, path, elsewhere(), &restored));
    remove(path);
}

// Several regions in one file, with memory that two of them map.
static void several(const gpu_vmm_backend *backend, uint64_t unit) {
    char path[128];
    snprintf(path, sizeof path, "/tmp/gpu-vmm-several-%ld.snapshot", (long)getpid());
    gpu_vmm_region *made[3], *restored[3];
    const gpu_vmm_region *twice[2];
    uint64_t there = 0;
    for (uint64_t at = 0; at < 2; ++at) {
        made[at] = filled(backend, at + 1, (uint8_t)(10 * at + 1));
    }
    gpu_vmm_physical *shared = NULL;
    CHECK(gpu_vmm_region_physical(made[0], 0, &shared));
    made[2] = reserve(backend, 1);
    CHECK(gpu_vmm_region_map(made[2], 0, shared));
    CHECK(gpu_vmm_region_set_access(made[2], 0, unit, 0, GPU_VMM_ACCESS_READ_WRITE));
    gpu_vmm_physical_release(shared);
    CHECK(gpu_vmm_regions_snapshot((const gpu_vmm_region *const *)made, 3, path, false));
    CHECK(gpu_vmm_snapshot_count(path, &there));
    demand(there == 3, "the file has all regions");
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_regions_restore(backend, path, elsewhere(), restored, 2));
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_region_restore(backend, path, elsewhere(), restored));
    CHECK(gpu_vmm_regions_restore(backend, path, elsewhere(), restored, 3));
    demand(byte_at(restored[0], 0) == 1 && byte_at(restored[1], unit) == 12 && byte_at(restored[2], 0) == 1, "in their order");
    CHECK(gpu_vmm_region_write(restored[2], 0, "x", 1));
    demand(byte_at(restored[0], 0) == 'x' && byte_at(made[0], 0) == 1, "two of them map one memory");
    twice[0] = twice[1] = made[1];
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_regions_snapshot(twice, 2, path, false));
    twice[1] = NULL;
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_regions_snapshot(twice, 2, path, false));
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_regions_snapshot(twice, 0, path, false));
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_regions_snapshot(NULL, 1, path, false));
    CHECK(gpu_vmm_region_suspend(made[1], NULL, false, NULL));
    RETURNS(GPU_VMM_SUSPENDED, gpu_vmm_regions_snapshot((const gpu_vmm_region *const *)made, 3, path, false));
    for (int at = 0; at < 3; ++at) {
        gpu_vmm_region_free(made[at]);
        gpu_vmm_region_free(restored[at]);
    }
    remove(path);
}

int main(int count, char **arguments) {
    gpu_vmm_backend *backend = backend_of(count, arguments);
    const uint64_t unit = unit_of(backend);
    swaps(backend, unit);
    banks(backend, unit);
    places(backend, unit);
    moves(backend, unit);
    snapshots(backend, unit);
    several(backend, unit);
    gpu_vmm_close(backend);
    puts("passed");
    return 0;
}
