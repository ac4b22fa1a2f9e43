// What the test programs share: a check that ends the program, and the program's backend.

#include "gpu_vmm.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void demand(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "failed: %s; the last error is: %s\n", what, gpu_vmm_last_error());
        exit(1);
    }
}

// A call that must succeed.
#define CHECK(call) demand((call) == GPU_VMM_OK, #call)

// A call that must return a status.
#define RETURNS(status, call) demand((call) == (status), #call " returns " #status)

// The backend that the first argument names.
static inline gpu_vmm_backend *backend_of(int count, char **arguments) {
    // Line-buffered, so that the output is complete even if a driver ends the process.
    setvbuf(stdout, NULL, _IOLBF, 0);
    gpu_vmm_backend *backend = NULL;
    CHECK(gpu_vmm_open(count > 1 ? arguments[1] : NULL, &backend));
    const char *name = gpu_vmm_backend_name(backend);
    demand(count < 2 || strcmp(name, arguments[1]) == 0, "a backend has the name by which it was opened");
    return backend;
}

// The unit of regions of the backend, which every device's granularity divides.
static inline uint64_t unit_of(const gpu_vmm_backend *backend) {
    uint64_t unit = 0;
    CHECK(gpu_vmm_reservation_unit(backend, &unit));
    return unit;
}

// A region with addresses for `units` units, without memory.
static inline gpu_vmm_region *reserve(const gpu_vmm_backend *backend, uint64_t units) {
    gpu_vmm_region_options options;
    memset(&options, 0, sizeof options);
    options.size = units * unit_of(backend);
    gpu_vmm_region *region = NULL;
    CHECK(gpu_vmm_region_reserve(backend, &options, &region));
    return region;
}

// Such a region with one piece of memory in each unit, each filled with its number from `first` on.
static inline gpu_vmm_region *filled(const gpu_vmm_backend *backend, uint64_t units, uint8_t first) {
    gpu_vmm_region *region = reserve(backend, units);
    const uint64_t unit = unit_of(backend);
    for (uint64_t at = 0; at < units; ++at) {
        CHECK(gpu_vmm_region_grow(region, (at + 1) * unit));
        CHECK(gpu_vmm_region_fill(region, at * unit, unit, (uint8_t)(first + at)));
    }
    return region;
}

// Options with which a region is restored elsewhere if its address is taken.
static inline const gpu_vmm_restore_options *elsewhere(void) {
    static const gpu_vmm_restore_options options = {true, false, NULL, 0, {0, 0, 0, 0}};
    return &options;
}

static inline uint8_t byte_at(const gpu_vmm_region *region, uint64_t offset) {
    uint8_t byte = 0;
    CHECK(gpu_vmm_region_read(region, offset, &byte, 1));
    return byte;
}
