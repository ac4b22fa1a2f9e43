// A pool of GPU memory from C: suspends and resumes the blocks of a tag.
//
//     cargo build --release --package gpu-vmm-c
//     cc -Iplugins/c/include plugins/c/examples/pool.c -Ltarget/release -lgpu_vmm_c -o pool
//     LD_LIBRARY_PATH=target/release ./pool          # or ./pool host, ./pool cuda, ./pool hip

#include "gpu_vmm.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call) \
    if ((call) != GPU_VMM_OK) return fprintf(stderr, "%s\n", gpu_vmm_last_error()), EXIT_FAILURE

int main(int count, char **arguments) {
    gpu_vmm_backend *backend;
    CHECK(gpu_vmm_open(count > 1 ? arguments[1] : NULL, &backend));
    gpu_vmm_pool_options options;
    memset(&options, 0, sizeof options); // zeros are the default
    options.budget = 1 << 30;
    gpu_vmm_pool *pool, *weights;
    CHECK(gpu_vmm_pool_new(backend, &options, &pool));
    CHECK(gpu_vmm_pool_tagged(pool, "weights", &weights));

    uint64_t block, bytes;
    char text[] = "the same bytes at the same address", read[sizeof text] = "";
    CHECK(gpu_vmm_alloc(weights, 3 << 20, 0, NULL, &block)); // on the default stream
    CHECK(gpu_vmm_write(pool, block, text, sizeof text));

    CHECK(gpu_vmm_suspend(pool, "weights", "host", &bytes)); // contents go to host memory
    printf("suspended: returned %" PRIu64 " bytes to the %s device\n", bytes, gpu_vmm_backend_name(backend));
    CHECK(gpu_vmm_resume(pool, "weights", &bytes));
    CHECK(gpu_vmm_read(pool, block, read, sizeof read));
    printf("resumed: %s\n", read);

    CHECK(gpu_vmm_free(pool, block));
    gpu_vmm_pool_free(weights);
    gpu_vmm_pool_free(pool);
    gpu_vmm_close(backend);
    return EXIT_SUCCESS;
}
