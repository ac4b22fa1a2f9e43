// Physical memory, addresses and access as separate objects: create memory, reserve addresses, map, set access, share, unmap.

#include "gpu_vmm.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CHECK(call) \
    if ((call) != GPU_VMM_OK) return fprintf(stderr, "%s: %s\n", #call, gpu_vmm_last_error()), 1

int main(int count, char **arguments) {
    gpu_vmm_backend *backend;
    CHECK(gpu_vmm_open(count > 1 ? arguments[1] : NULL, &backend));

    // What the device can do, and why not.
    char *capabilities;
    CHECK(gpu_vmm_capabilities(backend, 0, &capabilities));
    printf("device 0 of %s: %s\n", gpu_vmm_backend_name(backend), capabilities);
    gpu_vmm_string_free(capabilities);

    // Physical memory has no address. Its size is a multiple of the granularity.
    gpu_vmm_properties properties;
    memset(&properties, 0, sizeof properties); // zeros are the default: memory of device 0
    uint64_t granularity, size;
    CHECK(gpu_vmm_granularity(backend, &properties, &granularity));
    gpu_vmm_physical *memory;
    CHECK(gpu_vmm_physical_create(backend, &properties, granularity, &memory));
    CHECK(gpu_vmm_physical_size(memory, &size));

    // A region is a range of addresses. It uses no memory.
    gpu_vmm_region_options options;
    memset(&options, 0, sizeof options);
    options.size = UINT64_C(1) << 30;
    gpu_vmm_region *region;
    uint64_t address, unit;
    CHECK(gpu_vmm_region_reserve(backend, &options, &region));
    CHECK(gpu_vmm_region_address(region, &address));
    CHECK(gpu_vmm_region_granularity(region, &unit));
    printf("1 GiB of addresses from 0x%" PRIx64 " on\n", address);

    // The same memory at two offsets. No device has access before it is set.
    const uint64_t second = 16 * unit;
    CHECK(gpu_vmm_region_map(region, 0, memory));
    CHECK(gpu_vmm_region_map(region, second, memory));
    CHECK(gpu_vmm_region_set_access(region, 0, size, 0, GPU_VMM_ACCESS_READ_WRITE));
    CHECK(gpu_vmm_region_set_access(region, second, size, 0, GPU_VMM_ACCESS_READ));
    char text[] = "one memory, two addresses", read[sizeof text] = "";
    CHECK(gpu_vmm_region_write(region, 0, text, sizeof text));
    CHECK(gpu_vmm_region_read(region, second, read, sizeof read));
    puts(read);

    // Wrong calls reach no driver. They return a status and a text.
    if (gpu_vmm_region_write(region, second, text, sizeof text) != GPU_VMM_ACCESS_DENIED) return 1;
    printf("an error: %s\n", gpu_vmm_last_error());
    if (gpu_vmm_region_map(region, 0, memory) != GPU_VMM_ALREADY_MAPPED) return 1;
    printf("an error: %s\n", gpu_vmm_last_error());

    // Unmapping waits for the devices. The memory keeps its bytes until its last holder releases it.
    CHECK(gpu_vmm_region_unmap(region, 0, size, false));
    CHECK(gpu_vmm_region_unmap(region, second, size, false));
    CHECK(gpu_vmm_physical_read(memory, 0, read, sizeof read));
    if (strcmp(read, text) != 0) return 1;
    gpu_vmm_physical_release(memory);
    gpu_vmm_region_free(region);
    gpu_vmm_close(backend);
    return 0;
}
