// A device without virtual memory management: regions move when they grow, pools serve blocks, and calls that need virtual memory
// return GPU_VMM_UNSUPPORTED. The argument is the backend, none of whose devices may have virtual memory management.

#include "support.h"

#include <stdint.h>

static const uint64_t MIB = 1 << 20;

static void regions(const gpu_vmm_backend *backend) {
    gpu_vmm_region *region = NULL;
    uint64_t before = 1, after = 0, moved = 0, size = 0;
    bool plain = false;
    char read[5] = "";
    CHECK(gpu_vmm_region_new(backend, 0, 0, &region));
    CHECK(gpu_vmm_region_is_plain(region, &plain));
    demand(plain, "the region is plain");
    CHECK(gpu_vmm_region_address(region, &before));
    demand(before == 0, "an empty region has no address");
    CHECK(gpu_vmm_region_grow(region, 4 * MIB));
    CHECK(gpu_vmm_region_address(region, &before));
    CHECK(gpu_vmm_region_write(region, 100, "plain", 5));
    CHECK(gpu_vmm_region_grow(region, 16 * MIB));
    CHECK(gpu_vmm_region_address(region, &after));
    demand(after != before && after != 0, "growth moves the region");
    CHECK(gpu_vmm_region_grow_or_move(region, 20 * MIB, &moved));
    CHECK(gpu_vmm_region_address(region, &after));
    demand(after == moved, "the call returns the new address");
    CHECK(gpu_vmm_region_shrink(region, 2 * MIB, false, NULL));
    CHECK(gpu_vmm_region_size(region, &size));
    CHECK(gpu_vmm_region_read(region, 100, read, 5));
    demand(size == 2 * MIB && memcmp(read, "plain", 5) == 0, "the contents are kept");

    void *tensor = NULL;
    int64_t shape[] = {4};
    CHECK(gpu_vmm_region_dlpack(region, 0, 1, 8, 1, 1, shape, NULL, false, true, &tensor));
    RETURNS(GPU_VMM_BUSY, gpu_vmm_region_grow(region, 32 * MIB));
    RETURNS(GPU_VMM_BUSY, gpu_vmm_region_shrink(region, 0, true, NULL));
    gpu_vmm_dlpack_delete(tensor, true);
    CHECK(gpu_vmm_region_grow(region, 32 * MIB));

    RETURNS(GPU_VMM_UNSUPPORTED, gpu_vmm_region_suspend(region, "host", false, &size));
    gpu_vmm_physical *memory = NULL;
    RETURNS(GPU_VMM_UNSUPPORTED, gpu_vmm_physical_create(backend, NULL, 2 * MIB, &memory));
    demand(strstr(gpu_vmm_last_error(), "has no virtual memory management") != NULL, "the error says why");
    gpu_vmm_region_free(region);
}

static void pools(const gpu_vmm_backend *backend) {
    gpu_vmm_pool *pool = NULL;
    uint64_t first = 0, second = 0, bytes = 0;
    CHECK(gpu_vmm_pool_new(backend, NULL, &pool));
    CHECK(gpu_vmm_alloc(pool, 10 * MIB, 0, NULL, &first));
    CHECK(gpu_vmm_free(pool, first));
    CHECK(gpu_vmm_alloc(pool, 9 * MIB, 0, NULL, &second));
    demand(second == first, "freed memory is used again");
    RETURNS(GPU_VMM_UNSUPPORTED, gpu_vmm_suspend(pool, "", NULL, &bytes));
    CHECK(gpu_vmm_free(pool, second));
    CHECK(gpu_vmm_trim(pool, 0, &bytes));
    demand(bytes == 10 * MIB, "trimming frees the allocation");
    gpu_vmm_pool_free(pool);
}

int main(int count, char **arguments) {
    gpu_vmm_backend *backend = NULL;
    char *info = NULL;
    CHECK(gpu_vmm_open(count > 1 ? arguments[1] : "cuda", &backend));
    CHECK(gpu_vmm_backend_info(backend, &info));
    demand(strstr(info, "\"no_virtual_memory\":\"") != NULL, "the device has no virtual memory management");
    gpu_vmm_string_free(info);
    regions(backend);
    pools(backend);
    gpu_vmm_close(backend);
    return 0;
}
