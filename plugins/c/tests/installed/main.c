// A program of a user of the installed library: compares the versions of the header and the library, and uses a pool on host memory.

#include <gpu_vmm.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CHECK(call) \
    if ((call) != GPU_VMM_OK) return fprintf(stderr, "%s\n", gpu_vmm_last_error()), 1

int main(void) {
    char header[32];
    snprintf(header, sizeof header, "%d.%d.%d", GPU_VMM_VERSION_MAJOR, GPU_VMM_VERSION_MINOR, GPU_VMM_VERSION_PATCH);
    if (strcmp(header, gpu_vmm_version()) != 0)
        return fprintf(stderr, "the header is %s, and the library %s\n", header, gpu_vmm_version()), 1;
    gpu_vmm_backend *backend;
    CHECK(gpu_vmm_open("host", &backend));
    gpu_vmm_pool_options options;
    memset(&options, 0, sizeof options);
    gpu_vmm_pool *pool;
    CHECK(gpu_vmm_pool_new(backend, &options, &pool));
    uint64_t block;
    char text[] = "installed", read[sizeof text] = "";
    CHECK(gpu_vmm_alloc(pool, 4096, 0, NULL, &block));
    CHECK(gpu_vmm_write(pool, block, text, sizeof text));
    CHECK(gpu_vmm_read(pool, block, read, sizeof read));
    if (strcmp(text, read) != 0) return fprintf(stderr, "%s was written, and %s read\n", text, read), 1;
    CHECK(gpu_vmm_free(pool, block));
    gpu_vmm_pool_free(pool);
    gpu_vmm_close(backend);
    printf("gpu_vmm %s: %s\n", header, read);
    return 0;
}
