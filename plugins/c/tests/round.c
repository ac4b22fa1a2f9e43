// A pool and a region from C: allocate on a stream, suspend and resume, grow in place, and error texts.

#include "gpu_vmm.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(gpu_vmm_status status, const char *what) {
    if (status != GPU_VMM_OK) {
        fprintf(stderr, "%s: status %" PRId32 ": %s\n", what, status, gpu_vmm_last_error());
        exit(1);
    }
}

static void demand(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "failed: %s\n", what);
        exit(1);
    }
}

static void overwrite(const gpu_vmm_pool *pool, uint64_t block, size_t size) {
    void *bytes = malloc(size);
    demand(bytes != NULL, "the host has memory");
    memset(bytes, 0xEE, size);
    check(gpu_vmm_write(pool, block, bytes, size), "overwrite");
    free(bytes);
}

int main(int count, char **arguments) {
    // Line-buffered, so that the output is complete even if a driver ends the process.
    setvbuf(stdout, NULL, _IOLBF, 0);
    gpu_vmm_backend *backend = NULL;
    check(gpu_vmm_open(count > 1 ? arguments[1] : NULL, &backend), "open");
    uint64_t free_before = 0, total = 0;
    check(gpu_vmm_memory(backend, 0, &free_before, &total), "memory");
    printf("gpu-vmm %s on %s, %" PRIu64 " of %" PRIu64 " bytes free\n", gpu_vmm_version(), gpu_vmm_backend_name(backend),
           free_before, total);

    // A pool that holds at most 1 GiB, and the same pool under the tag "weights".
    gpu_vmm_pool_options options;
    memset(&options, 0, sizeof options); // zeros are the default
    options.budget = 1ull << 30;
    gpu_vmm_pool *pool = NULL, *weights = NULL;
    check(gpu_vmm_pool_new(backend, &options, &pool), "make a pool");
    check(gpu_vmm_pool_tagged(pool, "weights", &weights), "tag");

    // A block, on the default stream.
    uint64_t block = 0;
    check(gpu_vmm_alloc(weights, 3 << 20, 0, NULL, &block), "allocate");
    char written[] = "the same bytes at the same address", read[sizeof written];
    check(gpu_vmm_write(pool, block + 1000, written, sizeof written), "write");
    gpu_vmm_block found;
    check(gpu_vmm_find(pool, block + 1000, &found), "find");
    demand(found.base == block && found.offset == 1000 && strcmp(found.tag, "weights") == 0, "the block is found");
    // A use on another stream; host memory has only the default stream.
    check(gpu_vmm_record_use(pool, block, NULL), "record a use");

    // Suspend: the memory returns to the driver, and the address stays.
    uint64_t bytes = 0;
    check(gpu_vmm_suspend(pool, "weights", "host", &bytes), "suspend");
    printf("suspended: returned %" PRIu64 " bytes to the driver\n", bytes);
    demand(gpu_vmm_read(pool, block + 1000, read, sizeof read) == GPU_VMM_SUSPENDED, "a suspended block cannot be read");
    // Overwrite the released memory, so that the contents can only come from the store.
    uint64_t other = 0;
    check(gpu_vmm_alloc(pool, 3 << 20, 0, NULL, &other), "allocate");
    overwrite(pool, other, 3 << 20);
    check(gpu_vmm_free(pool, other), "free");
    check(gpu_vmm_trim(pool, 0, NULL), "trim");
    check(gpu_vmm_resume(pool, "weights", &bytes), "resume");
    memset(read, 0xFF, sizeof read); // reveals a read that copies nothing
    check(gpu_vmm_read(pool, block + 1000, read, sizeof read), "read");
    demand(memcmp(read, written, sizeof read) == 0, "the contents are restored");

    // Host memory that stays for the next suspension, and the buffers.
    uint64_t took = 0, freed = 0;
    demand(gpu_vmm_suspend(pool, "weights", "disk", NULL) == GPU_VMM_INVALID_ARGUMENT, "an unknown place is an error");
    check(gpu_vmm_suspend(pool, "weights", "host-kept", &bytes), "suspend");
    check(gpu_vmm_trim_host(pool, &freed), "trim the host");
    demand(freed == 0, "contents of a suspended tag stay");
    check(gpu_vmm_resume(pool, "weights", NULL), "resume");
    check(gpu_vmm_host_memory(pool, &took), "host memory");
    demand(took > bytes, "memory of the contents stays after the resume");
    demand(gpu_vmm_host_memory(pool, NULL) == GPU_VMM_INVALID_ARGUMENT, "a place for the result is needed");
    check(gpu_vmm_trim_host(pool, &freed), "trim the host");
    demand(freed == took, "all host memory is freed while nothing is suspended");
    check(gpu_vmm_host_memory(pool, &took), "host memory");
    demand(took == 0, "nothing is left of it");

    // Errors: a status and a text.
    uint64_t none = 0;
    demand(gpu_vmm_alloc(pool, 0, 0, NULL, &none) == GPU_VMM_INVALID_ARGUMENT, "a size of zero is an error");
    printf("an error: %s\n", gpu_vmm_last_error());
    gpu_vmm_block info;
    check(gpu_vmm_find(pool, block, &info), "find");
    char *beyond = (char *)malloc(info.capacity + 1);
    demand(beyond != NULL, "the test has memory");
    check(gpu_vmm_read(pool, block, beyond, info.capacity), "read the whole block");
    demand(gpu_vmm_read(pool, block, beyond, info.capacity + 1) == GPU_VMM_OUT_OF_RANGE, "a copy ends within the block");
    // From the middle, only the rest of the block is left.
    check(gpu_vmm_read(pool, block + 512, beyond, info.capacity - 512), "read the rest of the block");
    demand(gpu_vmm_read(pool, block + 512, beyond, info.capacity - 511) == GPU_VMM_OUT_OF_RANGE, "a copy from the middle ends within the block");
    demand(gpu_vmm_write(pool, block + 512, beyond, info.capacity) == GPU_VMM_OUT_OF_RANGE, "a copy to the middle ends within the block");
    free(beyond);
    demand(gpu_vmm_alloc(pool, 2ull << 30, 0, NULL, &none) == GPU_VMM_OUT_OF_MEMORY, "an allocation beyond the budget is an error");
    printf("an error: %s\n", gpu_vmm_last_error());
    demand(gpu_vmm_suspend(pool, "weight", "host", NULL) == GPU_VMM_NOT_FOUND, "an unknown tag is an error");
    check(gpu_vmm_free(pool, block), "free");
    demand(gpu_vmm_free(pool, block) == GPU_VMM_NOT_FOUND, "freeing twice is an error");
    printf("an error: %s\n", gpu_vmm_last_error());

    check(gpu_vmm_trim(pool, 0, &bytes), "trim");
    char *statistics = NULL;
    check(gpu_vmm_pool_stats(pool, &statistics), "statistics");
    printf("statistics: %s\n", statistics);
    gpu_vmm_string_free(statistics);
    gpu_vmm_pool_free(weights);
    gpu_vmm_pool_free(pool);

    // Memory that grows in place.
    gpu_vmm_region *region = NULL;
    uint64_t before = 0, after = 0, size = 0;
    check(gpu_vmm_region_new(backend, 0, 256 << 20, &region), "reserve");
    check(gpu_vmm_region_grow(region, 4 << 20), "grow");
    check(gpu_vmm_region_address(region, &before), "address");
    strcpy(written, "what grows is not copied");
    check(gpu_vmm_region_write(region, 0, written, sizeof written), "write");
    check(gpu_vmm_region_grow(region, 64 << 20), "grow");
    check(gpu_vmm_region_address(region, &after), "address");
    check(gpu_vmm_region_size(region, &size), "size");
    memset(read, 0xFF, sizeof read);
    check(gpu_vmm_region_read(region, 0, read, sizeof read), "read");
    demand(before == after && size >= 64 << 20 && memcmp(read, written, sizeof read) == 0, "the region has grown in place");
    gpu_vmm_region_free(region);

    uint64_t free_after = 0;
    check(gpu_vmm_memory(backend, 0, &free_after, NULL), "memory");
    demand(free_after + (64 << 20) >= free_before, "all memory is released");
    gpu_vmm_close(backend);
    puts("passed");
    return 0;
}
