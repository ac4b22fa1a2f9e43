// Multicast objects on the fake NVIDIA driver alone: on hardware an object takes resources of the whole machine.
//
// The first argument is the backend. The exit status is 0 if every check holds.

#define _POSIX_C_SOURCE 200809L

#include "support.h"
#include <unistd.h>

static const uint32_t BOTH[2] = {0, 1};

static gpu_vmm_team_options options_of(const uint32_t *devices, uint64_t count, uint64_t size) {
    gpu_vmm_team_options options;
    memset(&options, 0, sizeof options);
    options.devices = devices;
    options.device_count = count;
    options.size = size;
    return options;
}

static gpu_vmm_physical *memory_of(const gpu_vmm_backend *backend, uint32_t device, uint64_t size, uint32_t handle_types) {
    gpu_vmm_properties properties;
    memset(&properties, 0, sizeof properties);
    properties.device = device;
    properties.handle_types = handle_types;
    gpu_vmm_physical *physical = NULL;
    CHECK(gpu_vmm_physical_create(backend, &properties, size, &physical));
    return physical;
}

static int is_fake(const gpu_vmm_backend *backend) {
    char *json = NULL;
    CHECK(gpu_vmm_backend_info(backend, &json));
    const int found = strstr(json, "fake CUDA (no NVIDIA GPU)") != NULL;
    gpu_vmm_string_free(json);
    return found;
}

static void whole_life(const gpu_vmm_backend *backend) {
    gpu_vmm_team_options options = options_of(BOTH, 2, 1);
    gpu_vmm_multicast *object = NULL;
    uint64_t size = 0, unit = 0, recommended = 0, address = 0;
    int fd = 0;
    CHECK(gpu_vmm_multicast_create(backend, &options, &object));
    CHECK(gpu_vmm_multicast_sizes(object, &size, &unit, &recommended));
    demand(size == unit && recommended >= unit && unit > 0, "the size is rounded up");
    demand(gpu_vmm_multicast_export_fd(object, &fd) == GPU_VMM_UNSUPPORTED && fd == -1, "an object of one process is not exported");
    gpu_vmm_multicast_free(object);

    options.size = 2 * unit;
    CHECK(gpu_vmm_multicast_create(backend, &options, &object));
    gpu_vmm_physical *first = memory_of(backend, 0, 2 * unit, 0), *second = memory_of(backend, 1, 3 * unit, 0);
    RETURNS(GPU_VMM_NOT_MAPPED, gpu_vmm_multicast_map(object, &address));
    CHECK(gpu_vmm_multicast_bind(object, 0, first, 0, 2 * unit));
    RETURNS(GPU_VMM_BUSY, gpu_vmm_multicast_export_fd(object, &fd));
    RETURNS(GPU_VMM_ALREADY_MAPPED, gpu_vmm_multicast_bind(object, unit, first, 0, unit));
    RETURNS(GPU_VMM_NOT_MAPPED, gpu_vmm_multicast_map(object, &address));
    // Parts of the second device's memory, in another order.
    CHECK(gpu_vmm_multicast_bind(object, 0, second, 2 * unit, unit));
    RETURNS(GPU_VMM_UNALIGNED, gpu_vmm_multicast_bind(object, unit, second, 1, unit));
    RETURNS(GPU_VMM_OUT_OF_RANGE, gpu_vmm_multicast_bind(object, unit, second, 3 * unit, unit));
    RETURNS(GPU_VMM_OUT_OF_RANGE, gpu_vmm_multicast_bind(object, 2 * unit, second, 0, unit));
    CHECK(gpu_vmm_multicast_bind(object, unit, second, 0, unit));
    RETURNS(GPU_VMM_NOT_MAPPED, gpu_vmm_multicast_unbind(object, 1, 2 * unit));
    RETURNS(GPU_VMM_NOT_MAPPED, gpu_vmm_multicast_unmap(object));
    CHECK(gpu_vmm_multicast_map(object, &address));
    demand(address != 0 && address % recommended == 0, "the address is aligned");
    RETURNS(GPU_VMM_BUSY, gpu_vmm_multicast_map(object, &address));
    RETURNS(GPU_VMM_BUSY, gpu_vmm_multicast_unbind(object, 1, 0));
    RETURNS(GPU_VMM_BUSY, gpu_vmm_multicast_bind(object, 0, first, 0, unit));
    CHECK(gpu_vmm_multicast_unmap(object));
    CHECK(gpu_vmm_multicast_unbind(object, 1, unit));
    CHECK(gpu_vmm_multicast_map(object, &address));
    // The object keeps the memory, and ends mapped and bound.
    gpu_vmm_physical_release(first);
    gpu_vmm_physical_release(second);
    gpu_vmm_multicast_free(object);
    gpu_vmm_multicast_free(NULL);
}

static void two_halves(const gpu_vmm_backend *backend) {
    gpu_vmm_team_options options = options_of(&BOTH[0], 1, 1), others = options_of(&BOTH[1], 1, 1);
    options.elsewhere = others.elsewhere = 1;
    gpu_vmm_multicast *object = NULL, *imported = NULL;
    uint64_t unit = 0, address = 0;
    int fd = -1, again = 0;
    CHECK(gpu_vmm_multicast_create(backend, &options, &object));
    CHECK(gpu_vmm_multicast_sizes(object, NULL, &unit, NULL));
    CHECK(gpu_vmm_multicast_export_fd(object, &fd));
    CHECK(gpu_vmm_multicast_import_fd(backend, &others, fd, &imported));
    close(fd);
    demand(gpu_vmm_multicast_export_fd(imported, &again) == GPU_VMM_UNSUPPORTED && again == -1, "an import is not exported");
    gpu_vmm_physical *own = memory_of(backend, 0, unit, 0), *first = memory_of(backend, 0, unit, GPU_VMM_HANDLE_FD);
    gpu_vmm_physical *second = memory_of(backend, 1, unit, GPU_VMM_HANDLE_FD);
    RETURNS(GPU_VMM_UNSUPPORTED, gpu_vmm_multicast_bind(object, 0, own, 0, unit));
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_multicast_bind(object, 0, second, 0, unit));
    CHECK(gpu_vmm_multicast_bind(object, 0, first, 0, unit));
    CHECK(gpu_vmm_multicast_bind(imported, 0, second, 0, unit));
    CHECK(gpu_vmm_multicast_map(object, &address));
    CHECK(gpu_vmm_multicast_map(imported, &address));
    // No process unbinds while another one has the object mapped.
    CHECK(gpu_vmm_multicast_unmap(object));
    CHECK(gpu_vmm_multicast_unmap(imported));
    gpu_vmm_multicast_free(object);
    gpu_vmm_multicast_free(imported);
    gpu_vmm_physical_release(own);
    gpu_vmm_physical_release(first);
    gpu_vmm_physical_release(second);
}

static void refused(const gpu_vmm_backend *backend) {
    static const uint32_t TWICE[2] = {0, 0}, MISSING[1] = {4711};
    gpu_vmm_multicast *object = NULL;
    gpu_vmm_team_options options = options_of(TWICE, 2, 1);
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_multicast_create(backend, &options, &object));
    options = options_of(MISSING, 1, 1);
    RETURNS(GPU_VMM_NO_SUCH_DEVICE, gpu_vmm_multicast_create(backend, &options, &object));
    options = options_of(BOTH, 2, UINT64_C(1) << 46);
    RETURNS(GPU_VMM_OUT_OF_MEMORY, gpu_vmm_multicast_create(backend, &options, &object));
    options = options_of(BOTH, 2, 1);
    options.handle_types = 64;
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_multicast_create(backend, &options, &object));
    options.handle_types = 0;
    options.reserved[3] = 1;
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_multicast_create(backend, &options, &object));
}

// Every backend refuses these before it calls a driver.
static void no_options(const gpu_vmm_backend *backend) {
    gpu_vmm_multicast *object = NULL;
    gpu_vmm_team_options options = options_of(NULL, 2, 1);
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_multicast_create(backend, NULL, &object));
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_multicast_create(backend, &options, &object));
    options = options_of(BOTH, 0, 1);
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_multicast_create(backend, &options, &object));
    options = options_of(BOTH, UINT64_MAX, 1);
    RETURNS(GPU_VMM_INVALID_ARGUMENT, gpu_vmm_multicast_create(backend, &options, &object));
}

int main(int count, char **arguments) {
    gpu_vmm_backend *backend = backend_of(count, arguments);
    no_options(backend);
    if (is_fake(backend)) {
        refused(backend);
        whole_life(backend);
        two_halves(backend);
    } else if (strcmp(gpu_vmm_backend_name(backend), "cuda") != 0) {
        gpu_vmm_multicast *object = NULL;
        const gpu_vmm_team_options options = options_of(BOTH, 1, 1);
        RETURNS(GPU_VMM_UNSUPPORTED, gpu_vmm_multicast_create(backend, &options, &object));
    }
    gpu_vmm_close(backend);
    puts("passed");
    return 0;
}
