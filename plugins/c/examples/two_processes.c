// Two processes use one region. The parent grows and shrinks it, and the child follows.
//
//     cc -Iplugins/c/include plugins/c/examples/two_processes.c -Ltarget/release -lgpu_vmm_c -o two_processes
//     LD_LIBRARY_PATH=target/release ./two_processes [host|cuda|hip]

// For fork and kill.
#define _POSIX_C_SOURCE 200809L

#include "gpu_vmm.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WAIT = 30000 }; // milliseconds

// The child process, for a parent that fails.
static pid_t child = 0;

static void check(gpu_vmm_status status, const char *call) {
    if (status != GPU_VMM_OK) {
        fprintf(stderr, "%s: status %d: %s\n", call, (int)status, gpu_vmm_last_error());
        if (child > 0) kill(child, SIGKILL);
        exit(1);
    }
}

#define CHECK(call) check((call), #call)

static void demand(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "failed: %s\n", what);
        if (child > 0) kill(child, SIGKILL);
        exit(1);
    }
}

// The child: reads what the parent has written, answers in the same memory, and applies changes until it must release the memory.
static int follow(const char *vendor, const char *path) {
    gpu_vmm_backend *backend;
    gpu_vmm_followed *followed;
    uint32_t event = GPU_VMM_EVENT_NONE;
    uint64_t size = 0, changes = 0;
    char text[16] = "";
    CHECK(gpu_vmm_open(vendor, &backend));
    CHECK(gpu_vmm_follow(backend, path, UINT64_C(1) << 30, WAIT, &followed));
    CHECK(gpu_vmm_followed_read(followed, 0, text, sizeof text));
    demand(strcmp(text, "from the parent") == 0, "the child reads the parent's bytes");
    CHECK(gpu_vmm_followed_write(followed, 0, "from the child.", 16));
    while (event != GPU_VMM_EVENT_RELEASE_REQUESTED) {
        CHECK(gpu_vmm_followed_next(followed, WAIT, &event));
        demand(event == GPU_VMM_EVENT_CHANGED || event == GPU_VMM_EVENT_RELEASE_REQUESTED, "the parent sends changes");
        if (event == GPU_VMM_EVENT_CHANGED) {
            changes++;
            CHECK(gpu_vmm_followed_apply(followed, false));
            CHECK(gpu_vmm_followed_range(followed, NULL, &size));
            printf("the child has %llu MiB\n", (unsigned long long)(size >> 20));
            // The last byte is new memory after growth.
            CHECK(gpu_vmm_followed_write(followed, size - 1, "!", 1));
        }
    }
    demand(changes == 2, "the child sees both changes");
    CHECK(gpu_vmm_followed_release(followed));
    demand(gpu_vmm_followed_range(followed, NULL, &size) == GPU_VMM_INVALID_ARGUMENT, "a released region is an error");
    gpu_vmm_followed_free(followed);
    gpu_vmm_close(backend);
    return 0;
}

int main(int count, char **arguments) {
    const char *vendor = count > 1 ? arguments[1] : NULL;
    char path[64];
    setvbuf(stdout, NULL, _IOLBF, 0);
    snprintf(path, sizeof path, "/tmp/gpu-vmm-two-processes-%ld", (long)getpid());
    // Listen before the fork, so that the child finds the path. Open the driver after it: a forked child cannot use its parent's.
    gpu_vmm_listener *listener;
    CHECK(gpu_vmm_listener_new(path, &listener));
    child = fork();
    demand(child >= 0, "a child process starts");
    if (child == 0) {
        return follow(vendor, path);
    }
    gpu_vmm_backend *backend;
    gpu_vmm_region *region;
    gpu_vmm_exporter *exporter;
    gpu_vmm_region_options options;
    uint64_t unit, size;
    uint32_t outcome;
    bool sent;
    char text[16] = "";
    CHECK(gpu_vmm_open(vendor, &backend));
    CHECK(gpu_vmm_reservation_unit(backend, &unit));
    memset(&options, 0, sizeof options);
    options.size = 8 * unit;
    options.memory.handle_types = GPU_VMM_HANDLE_FD; // memory that other processes can import
    CHECK(gpu_vmm_region_reserve(backend, &options, &region));
    CHECK(gpu_vmm_region_grow(region, unit));
    CHECK(gpu_vmm_region_write(region, 0, "from the parent", 16));
    CHECK(gpu_vmm_export(listener, region, WAIT, &exporter));
    CHECK(gpu_vmm_exporter_wait_applied(exporter, WAIT));
    CHECK(gpu_vmm_exporter_publish(exporter, region, &sent));
    demand(!sent, "nothing has changed yet");

    CHECK(gpu_vmm_region_grow(region, 4 * unit));
    CHECK(gpu_vmm_exporter_publish(exporter, region, &sent));
    demand(sent, "the growth is sent");
    CHECK(gpu_vmm_exporter_wait_applied(exporter, WAIT));
    CHECK(gpu_vmm_region_shrink(region, unit, false, NULL));
    CHECK(gpu_vmm_exporter_publish(exporter, region, NULL));
    CHECK(gpu_vmm_exporter_wait_applied(exporter, WAIT));
    CHECK(gpu_vmm_exporter_request_release(exporter));
    CHECK(gpu_vmm_exporter_wait_released(exporter, WAIT, &outcome));
    demand(outcome == GPU_VMM_RELEASED, "the child releases the memory");
    CHECK(gpu_vmm_region_size(region, &size));
    CHECK(gpu_vmm_region_read(region, 0, text, sizeof text));
    printf("the child wrote: %s\n", text);
    demand(strcmp(text, "from the child.") == 0, "the parent reads the child's bytes");
    CHECK(gpu_vmm_region_read(region, size - 1, text, 1));
    demand(text[0] == '!', "the child wrote the last byte");

    gpu_vmm_exporter_free(exporter);
    gpu_vmm_listener_free(listener);
    gpu_vmm_region_free(region);
    gpu_vmm_close(backend);
    int status = 0;
    demand(waitpid(child, &status, 0) == child && status == 0, "the child ends normally");
    puts("passed");
    return 0;
}
