// Random calls from four threads, many of them wrong: objects that are null, freed or of another type, wrong sizes, offsets, orders and
// statuses. The program ends normally if no call crashes, waits for ever, leaks or breaks a rule of the fake NVIDIA driver.
//
// The first argument is the backend. GPU_VMM_RANDOM_CALLS sets the number of calls, GPU_VMM_RANDOM_SEED the seed.

// For pthreads, and for RTLD_NOLOAD and mallinfo2.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "random_calls.h"
#include <dirent.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <time.h>

enum { THREADS = 4, COUNTS = 12 };

// Whether the last call was a suspension that has lost its addresses. On a driver with the deviation memory-stays-until-free, it frees
// them for a moment, in which another thread can reserve them.
static bool has_lost_addresses(const caller *self) {
    return self->shared->suspending_frees_addresses &&
           strstr(gpu_vmm_last_error(), "other reservations took some of its addresses") != NULL;
}

static void *run(void *argument) {
    caller *self = (caller *)argument;
    CHECK(gpu_vmm_pool_new(self->shared->backend, NULL, &self->pool));
    for (uint64_t at = 0; at < self->calls; ++at) {
        self->is_wrong = false;
        const gpu_vmm_status status = call(self);
        demand(status != GPU_VMM_INTERNAL, "no call finds a defect");
        demand(status != GPU_VMM_POISONED || has_lost_addresses(self), "no call fails half-way");
        demand(!self->is_wrong || status != GPU_VMM_OK, "a call with a wrong object is refused");
        *(status == GPU_VMM_OK ? &self->succeeded : &self->refused) += 1;
    }
    end_exchange(self);
    FREE(self, memory, gpu_vmm_physical_release);
    FREE(self, region, gpu_vmm_region_free);
    for (int at = 0; at < BLOCKS; ++at) {
        if (self->shared_blocks[at] != 0) CHECK(gpu_vmm_free(self->shared->pool, self->shared_blocks[at]));
    }
    gpu_vmm_pool_free(self->pool);
    return NULL;
}

static uint64_t setting(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text == NULL || *text == 0 ? otherwise : strtoull(text, NULL, 10);
}

// Whether the driver has a known deviation.
static bool deviates(const gpu_vmm_backend *backend, const char *quirk) {
    char *info = NULL;
    CHECK(gpu_vmm_backend_info(backend, &info));
    const bool is_listed = strstr(info, quirk) != NULL;
    gpu_vmm_string_free(info);
    return is_listed;
}

// Random calls with a backend of their own, which is closed at the end. Returns whether the driver gets all addresses back.
static bool round_of(const char *name, uint64_t calls, uint64_t seed) {
    shared_objects shared;
    memset(&shared, 0, sizeof shared);
    CHECK(gpu_vmm_open(name, &shared.backend));
    shared.unit = unit_of(shared.backend);
    uint64_t free_before = 0, free_after = 0;
    CHECK(gpu_vmm_memory(shared.backend, 0, &free_before, NULL));
    for (int at = 0; at < OBJECTS; ++at) {
        shared.regions[at] = filled(shared.backend, 4, 0);
    }
    gpu_vmm_region_options options;
    memset(&options, 0, sizeof options);
    options.size = 2 * shared.unit;
    CHECK(gpu_vmm_banked_new(shared.backend, &options, &shared.banked));
    CHECK(gpu_vmm_event_new(shared.backend, 0, &shared.event));
    CHECK(gpu_vmm_copy_queue_new(shared.backend, 0, &shared.queue));
    CHECK(gpu_vmm_pinned_new(shared.backend, 16384, &shared.pinned));
    CHECK(gpu_vmm_page_list_new(shared.backend, NULL, shared.unit, 6 * shared.unit, &shared.pages));
    CHECK(gpu_vmm_pool_new(shared.backend, NULL, &shared.pool));
    CHECK(gpu_vmm_pool_new(shared.backend, NULL, &shared.freed_pool));
    gpu_vmm_pool_free(shared.freed_pool);
    shared.frees_imports = !deviates(shared.backend, "import-leaks");
    shared.suspending_frees_addresses = deviates(shared.backend, "memory-stays-until-free");
    // With this deviation, the library keeps freed addresses and reserves them again.
    const bool frees_addresses = !deviates(shared.backend, "free-races");
    // Each device's context, which stays until the process ends.
    uint32_t devices = 0;
    CHECK(gpu_vmm_backend_devices(shared.backend, &devices));
    for (uint32_t at = 0; at < devices; ++at) {
        gpu_vmm_event *event = NULL;
        CHECK(gpu_vmm_event_new(shared.backend, at, &event));
        CHECK(gpu_vmm_event_record(event, NULL));
        gpu_vmm_event_free(event);
    }
    caller callers[THREADS];
    pthread_t threads[THREADS];
    memset(callers, 0, sizeof callers);
    for (uint64_t at = 0; at < THREADS; ++at) {
        caller *self = &callers[at];
        self->shared = &shared;
        self->state = (seed + at) * UINT64_C(0x9E3779B97F4A7C15) + 1;
        self->calls = calls / THREADS;
        snprintf(self->path, sizeof self->path, "/tmp/gpu-vmm-random-%ld-%" PRIu64, (long)getpid(), at);
        snprintf(self->socket, sizeof self->socket, "/tmp/gpu-vmm-random-%ld-%" PRIu64 "-socket", (long)getpid(), at);
        demand(pthread_create(&threads[at], NULL, run, self) == 0, "a thread starts");
    }
    uint64_t succeeded = 0, refused = 0, exchanges = 0;
    for (int at = 0; at < THREADS; ++at) {
        demand(pthread_join(threads[at], NULL) == 0, "a thread ends");
        succeeded += callers[at].succeeded;
        refused += callers[at].refused;
        exchanges += callers[at].exchanges;
    }
    printf("%" PRIu64 " calls succeeded and %" PRIu64 " were refused; %" PRIu64 " exchanges\n", succeeded, refused, exchanges);
    demand(calls < 1000 || (succeeded > calls / 20 && refused > calls / 20), "some calls are right, and some are wrong");
    demand(calls < 8000 || exchanges > 0 || !shared.frees_imports, "some exchanges begin");
    gpu_vmm_pool_free(shared.pool);
    gpu_vmm_copy_queue_free(shared.queue);
    gpu_vmm_pinned_free(shared.pinned);
    gpu_vmm_page_list_free(shared.pages);
    gpu_vmm_event_free(shared.event);
    gpu_vmm_banked_free(shared.banked);
    for (int at = 0; at < OBJECTS; ++at) {
        gpu_vmm_region_free(shared.regions[at]);
    }
    CHECK(gpu_vmm_memory(shared.backend, 0, &free_after, NULL));
    demand(free_after + (UINT64_C(64) << 20) >= free_before, "all memory is released");
    gpu_vmm_close(shared.backend);
    return frees_addresses;
}

// What a process has while no object of the library exists.
typedef struct {
    uint64_t descriptors;
    uint64_t mapped_files;
    uint64_t heap;
    uint64_t addresses;
    // The fake driver's objects and violations; zero on other drivers.
    uint64_t counts[COUNTS];
    uint64_t violations;
} state;

static state look(void) {
    state now;
    memset(&now, 0, sizeof now);
    DIR *folder = opendir("/proc/self/fd");
    demand(folder != NULL, "the descriptors are listed");
    while (readdir(folder) != NULL) {
        now.descriptors++;
    }
    closedir(folder);
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    demand(maps != NULL, "the mappings are listed");
    while (fgets(line, sizeof line, maps) != NULL) {
        uint64_t begin = 0, end = 0;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64, &begin, &end) == 2) {
            now.addresses += end - begin;
        }
        now.mapped_files += strstr(line, "memfd:") != NULL;
    }
    fclose(maps);
    now.heap = mallinfo2().uordblks;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (driver != NULL) {
        uint64_t (*violations)(void) = NULL;
        void (*counts)(uint64_t *) = NULL;
        // ISO C has no conversion of an object pointer to a function pointer.
        *(void **)&violations = dlsym(driver, "fake_cuda_violations");
        *(void **)&counts = dlsym(driver, "fake_cuda_counts");
        if (violations != NULL && counts != NULL) {
            now.violations = violations();
            counts(now.counts);
        }
        dlclose(driver);
    }
    return now;
}

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    // With one arena, the heap and its addresses do not depend on how threads are scheduled.
    demand(mallopt(M_ARENA_MAX, 1) == 1, "there is one arena");
    const char *name = count > 1 ? arguments[1] : NULL;
    const uint64_t calls = setting("GPU_VMM_RANDOM_CALLS", 8000), seed = setting("GPU_VMM_RANDOM_SEED", 1);
    // The first round creates what stays: the driver's state, threads' stacks, tables.
    round_of(name, 2000, seed);
    const state before = look();
    const time_t start = time(NULL);
    const bool frees_addresses = round_of(name, calls, seed + THREADS);
    const state after = look();
    printf("in %ld s; descriptors %" PRIu64 " to %" PRIu64 ", mapped memory files %" PRIu64 " to %" PRIu64 ", heap %" PRIu64 " to %" PRIu64
           " bytes, addresses %" PRIu64 " to %" PRIu64 " MiB, violations %" PRIu64 "\n",
           (long)(time(NULL) - start), before.descriptors, after.descriptors, before.mapped_files, after.mapped_files, before.heap,
           after.heap, before.addresses >> 20, after.addresses >> 20, after.violations);
    demand(after.descriptors <= before.descriptors, "no descriptor is left");
    demand(after.mapped_files <= before.mapped_files, "no memory is left mapped");
    demand(after.heap <= before.heap + (1 << 20), "the heap has not grown");
    demand(!frees_addresses || after.addresses <= before.addresses + (UINT64_C(64) << 20), "no addresses are left");
    demand(after.violations == 0, "no call has broken a rule of the driver");
    static const char *const NAMES[COUNTS] = {"reservations", "handles", "memories", "mappings", "allocations", "contexts", "streams",
                                              "events", "modules", "graphs", "bindings", "page-locked memory"};
    for (int at = 0; at < COUNTS; ++at) {
        if (after.counts[at] != before.counts[at]) {
            printf("the driver's %s: %" PRIu64 " to %" PRIu64 "\n", NAMES[at], before.counts[at], after.counts[at]);
        }
        demand(after.counts[at] <= before.counts[at], "the driver has no object left");
    }
    puts("passed");
    return 0;
}
