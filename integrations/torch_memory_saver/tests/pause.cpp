// Allocations that are paused and resumed, through the functions that torch_memory_saver's Python package calls.
//
//     pause host|cuda|hip

#include "gpu_vmm.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

extern "C" {
void *tms_torch_malloc(ssize_t size, int device, void *stream);
void tms_torch_free(void *address, ssize_t size, int device, void *stream);
void tms_set_interesting_region(bool interesting);
bool tms_get_interesting_region();
void tms_set_current_tag(const char *tag);
const char *tms_get_current_tag();
void tms_set_enable_cpu_backup(bool enable);
bool tms_get_enable_cpu_backup();
void tms_set_enable_disk_backup(bool enable);
bool tms_get_enable_disk_backup();
void tms_set_cpu_backup_backend(const char *name);
const char *tms_get_cpu_backup_backend();
void tms_set_retain_cpu_backup(bool retain);
bool tms_get_retain_cpu_backup();
void tms_set_disk_backup_dir(const char *directory);
void set_memory_margin_bytes(uint64_t bytes);
int tms_pause(const char *tag);
int tms_resume(const char *tag);
uint8_t *tms_get_cpu_backup_pointer(const uint8_t *address, uint64_t size);
void gpu_vmm_tms_return_errors(bool enable);
int hipMalloc(void **address, size_t size);
int hipFree(void *address);
}

#define CHECK(what)                                              \
    do {                                                         \
        if (!(what)) {                                           \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
            exit(1);                                             \
        }                                                        \
    } while (0)

static const size_t SIZE = (4 << 20) + 12345;
static std::string backend;

// Returns HIP's library.
static void *hip() {
    static void *runtime = [] {
        void *six = dlopen("libamdhip64.so.6", RTLD_NOW);
        return six ? six : dlopen("libamdhip64.so.7", RTLD_NOW);
    }();
    CHECK(runtime);
    return runtime;
}

// Copies between host and device with the driver's own function. `back`: from the device.
static void copy(bool back, void *to, const void *from, size_t size) {
    if (backend == "host") {
        memcpy(to, from, size);
    } else if (backend == "cuda") {
        static void *driver = dlopen("libcuda.so.1", RTLD_NOW);
        CHECK(driver);
        static auto retain = reinterpret_cast<int (*)(void **, int)>(dlsym(driver, "cuDevicePrimaryCtxRetain"));
        static auto set = reinterpret_cast<int (*)(void *)>(dlsym(driver, "cuCtxSetCurrent"));
        static auto read = reinterpret_cast<int (*)(void *, uint64_t, size_t)>(dlsym(driver, "cuMemcpyDtoH_v2"));
        static auto write = reinterpret_cast<int (*)(uint64_t, const void *, size_t)>(dlsym(driver, "cuMemcpyHtoD_v2"));
        static void *context = [] {
            void *retained = nullptr;
            CHECK(retain && set && read && write && retain(&retained, 0) == 0);
            return retained;
        }();
        CHECK(set(context) == 0);
        const int error = back ? read(to, reinterpret_cast<uint64_t>(from), size) : write(reinterpret_cast<uint64_t>(to), from, size);
        CHECK(error == 0);
    } else {
        static auto run = reinterpret_cast<int (*)(void *, const void *, size_t, int)>(dlsym(hip(), "hipMemcpy"));
        CHECK(run && run(to, from, size, back ? 2 : 1) == 0);
    }
}

static std::vector<uint8_t> pattern(uint8_t seed) {
    std::vector<uint8_t> bytes(SIZE);
    for (size_t at = 0; at < SIZE; at++) {
        bytes[at] = static_cast<uint8_t>(at * 7 + seed);
    }
    return bytes;
}

static void fill(void *address, uint8_t seed) { copy(false, address, pattern(seed).data(), SIZE); }

static bool has(const void *address, uint8_t seed) {
    std::vector<uint8_t> bytes(SIZE);
    copy(true, bytes.data(), address, SIZE);
    return bytes == pattern(seed);
}

static uint64_t free_bytes(uint32_t device = 0) {
    gpu_vmm_backend *opened;
    uint64_t free = 0;
    CHECK(gpu_vmm_open(backend.c_str(), &opened) == GPU_VMM_OK);
    CHECK(gpu_vmm_memory(opened, device, &free, nullptr) == GPU_VMM_OK);
    gpu_vmm_close(opened);
    return free;
}

static void *allocate(const char *tag, bool cpu, const char *kind, bool disk) {
    tms_set_current_tag(tag);
    tms_set_enable_cpu_backup(cpu);
    tms_set_cpu_backup_backend(kind);
    tms_set_enable_disk_backup(disk);
    void *made = tms_torch_malloc(SIZE, 0, nullptr);
    CHECK(made);
    return made;
}

static void release(void *address) { tms_torch_free(address, SIZE, 0, nullptr); }

static size_t files(const std::string &folder) {
    size_t count = 0;
    DIR *open = opendir(folder.c_str());
    CHECK(open);
    while (const dirent *entry = readdir(open)) {
        count += entry->d_name[0] != '.';
    }
    closedir(open);
    return count;
}

static void contents_come_back() {
    char parent[] = "/tmp/tms-test-XXXXXX";
    CHECK(mkdtemp(parent));
    const std::string folder = std::string(parent) + "/created/at the pause";
    tms_set_disk_backup_dir(folder.c_str());
    void *pinned = allocate("a", true, "pinned", false), *mapped = allocate("a", true, "mmap", false);
    void *disk = allocate("a", false, "pinned", true), *none = allocate("a", false, "pinned", false);
    void *other = allocate("b", true, "pinned", false);
    for (int round = 0; round < 3; round++) {
        const uint8_t seed = static_cast<uint8_t>(round * 10);
        fill(pinned, seed + 1), fill(mapped, seed + 2), fill(disk, seed + 3), fill(none, seed + 4), fill(other, seed + 5);
        const uint64_t before = backend == "host" ? 0 : free_bytes();
        CHECK(tms_pause("a") == 0);
        CHECK(backend == "host" || free_bytes() >= before + 4 * (4 << 20));
        CHECK(tms_pause("a") == 0);  // nothing is left to pause
        CHECK(has(other, seed + 5));
        CHECK(memcmp(tms_get_cpu_backup_pointer(static_cast<uint8_t *>(pinned) + 100, 50), pattern(seed + 1).data() + 100, 50) == 0);
        CHECK(memcmp(tms_get_cpu_backup_pointer(static_cast<uint8_t *>(mapped), SIZE), pattern(seed + 2).data(), SIZE) == 0);
        CHECK(!tms_get_cpu_backup_pointer(static_cast<uint8_t *>(mapped), SIZE + 1));
        CHECK(!tms_get_cpu_backup_pointer(static_cast<uint8_t *>(disk), 1) && !tms_get_cpu_backup_pointer(static_cast<uint8_t *>(none), 1));
        CHECK(files(folder) == 1);  // torch_memory_saver's own example looks for the file
        void *occupied = allocate("c", false, "pinned", false);
        fill(occupied, 0xEE);
        release(occupied);
        CHECK(tms_resume(nullptr) == 0);
        CHECK(has(pinned, seed + 1) && has(mapped, seed + 2) && has(disk, seed + 3) && has(other, seed + 5));
        fill(none, seed + 6);
        CHECK(has(none, seed + 6));
        CHECK(!tms_get_cpu_backup_pointer(static_cast<uint8_t *>(pinned), 1) && files(folder) == 0);
    }
    CHECK(tms_pause(nullptr) == 0 && files(folder) == 1);
    for (void *one : {pinned, mapped, disk, none, other}) {
        release(one);
    }
    CHECK(files(folder) == 0 && rmdir(folder.c_str()) == 0);
    CHECK(rmdir((std::string(parent) + "/created").c_str()) == 0 && rmdir(parent) == 0);
}

static void a_retained_backup_stays_where_it_is() {
    auto *memory = static_cast<uint8_t *>(allocate("a", true, "pinned", false));
    fill(memory, 1);
    CHECK(tms_pause("a") == 0);
    const uint8_t *first = tms_get_cpu_backup_pointer(memory, SIZE);
    tms_set_retain_cpu_backup(true);
    CHECK(tms_get_retain_cpu_backup() && first);
    CHECK(tms_resume("a") == 0);
    CHECK(tms_get_cpu_backup_pointer(memory, SIZE) == first && memcmp(first, pattern(1).data(), SIZE) == 0);
    fill(memory, 2);
    CHECK(tms_pause("a") == 0);
    CHECK(tms_get_cpu_backup_pointer(memory, SIZE) == first && memcmp(first, pattern(2).data(), SIZE) == 0);
    tms_set_retain_cpu_backup(false);
    CHECK(tms_resume("a") == 0 && has(memory, 2) && !tms_get_cpu_backup_pointer(memory, SIZE));
    release(memory);
}

static void a_pause_that_fails_changes_nothing() {
    void *one = allocate("a", true, "pinned", false), *two = allocate("a", false, "pinned", true);
    fill(one, 1), fill(two, 2);
    tms_set_disk_backup_dir("/dev/null/folder");
    gpu_vmm_tms_return_errors(true);
    CHECK(tms_pause("a") == 1);
    CHECK(has(one, 1) && has(two, 2) && !tms_get_cpu_backup_pointer(static_cast<uint8_t *>(one), 1));
    tms_set_disk_backup_dir("/tmp");
    CHECK(tms_pause("a") == 0 && tms_resume("a") == 0 && has(one, 1) && has(two, 2));
    release(one), release(two);
}

static void a_resume_without_memory_keeps_the_contents() {
    if (backend == "host") {
        return;  // the host does not run out of memory
    }
    const int count = 4;
    void *memory[count];
    for (int at = 0; at < count; at++) {
        memory[at] = allocate("a", true, "pinned", false);
        fill(memory[at], static_cast<uint8_t>(at));
    }
    gpu_vmm_tms_return_errors(true);
    CHECK(tms_pause("a") == 0);
    gpu_vmm_backend *opened;
    gpu_vmm_region *rest;
    CHECK(gpu_vmm_open(backend.c_str(), &opened) == GPU_VMM_OK && gpu_vmm_region_new(opened, 0, 0, &rest) == GPU_VMM_OK);
    // Takes all memory but that for about two of them, in ever smaller steps.
    uint64_t taken = 0;
    for (uint64_t step = (uint64_t)1 << 36; step >= 2 << 20;) {
        if (free_bytes() < (12 << 20) + step || gpu_vmm_region_grow(rest, taken + step) != GPU_VMM_OK) {
            step /= 2;
        } else {
            taken += step;
        }
    }
    CHECK(tms_resume("a") == 1);
    gpu_vmm_region_free(rest);
    gpu_vmm_close(opened);
    CHECK(tms_resume("a") == 0);
    for (int at = 0; at < count; at++) {
        CHECK(has(memory[at], static_cast<uint8_t>(at)));
        release(memory[at]);
    }
}

// CUDA reports the properties of memory; HIP does not.
static void network_cards_can_access_the_memory() {
    if (backend != "cuda") {
        return;
    }
    void *memory = allocate("a", false, "pinned", false);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(driver);
    auto attribute = reinterpret_cast<int (*)(int *, int, int)>(dlsym(driver, "cuDeviceGetAttribute"));
    auto retain = reinterpret_cast<int (*)(uint64_t *, void *)>(dlsym(driver, "cuMemRetainAllocationHandle"));
    auto properties = reinterpret_cast<int (*)(void *, uint64_t)>(dlsym(driver, "cuMemGetAllocationPropertiesFromHandle"));
    auto release_handle = reinterpret_cast<int (*)(uint64_t)>(dlsym(driver, "cuMemRelease"));
    CHECK(attribute && retain && properties && release_handle);
    struct {
        int type, handle_types, location[2];
        void *windows;
        uint8_t compression, remote_dma, others[6];
    } found = {};
    int has_remote_dma = 0;
    uint64_t handle = 0;
    CHECK(attribute(&has_remote_dma, 110, 0) == 0 && retain(&handle, memory) == 0 && properties(&found, handle) == 0);
    CHECK(release_handle(handle) == 0);
    CHECK(found.remote_dma == has_remote_dma);
    release(memory);
}

// tests/preload.c does this for CUDA.
static void hip_functions_are_replaced() {
    if (backend != "hip") {
        return;
    }
    auto set_device = reinterpret_cast<int (*)(int)>(dlsym(hip(), "hipSetDevice"));
    CHECK(set_device && set_device(1) == 0);
    tms_set_current_tag("a");
    tms_set_enable_cpu_backup(true);
    void *plain, *mine;
    CHECK(hipMalloc(&plain, SIZE) == 0);
    tms_set_interesting_region(true);
    const uint64_t before = free_bytes(1);
    CHECK(hipMalloc(&mine, SIZE) == 0);
    CHECK(before - free_bytes(1) >= SIZE);
    fill(mine, 1), fill(plain, 2);
    CHECK(tms_pause("a") == 0 && free_bytes(1) == before);
    CHECK(has(plain, 2) && tms_resume("a") == 0 && has(mine, 1));
    CHECK(hipFree(mine) == 0 && hipFree(plain) == 0 && hipFree(nullptr) == 0);
    tms_set_interesting_region(false);
    CHECK(set_device(0) == 0);
}

static void settings_belong_to_a_thread() {
    tms_set_current_tag("mine");
    tms_set_interesting_region(true);
    std::thread([] {
        CHECK(!strcmp(tms_get_current_tag(), "default") && !tms_get_interesting_region() && !tms_get_enable_cpu_backup());
        CHECK(!tms_get_enable_disk_backup() && !strcmp(tms_get_cpu_backup_backend(), "pinned"));
        tms_set_cpu_backup_backend("tape");
        CHECK(!strcmp(tms_get_cpu_backup_backend(), "pinned"));
        tms_set_current_tag(nullptr);
        CHECK(!strcmp(tms_get_current_tag(), "default"));
    }).join();
    CHECK(!strcmp(tms_get_current_tag(), "mine") && tms_get_interesting_region());
}

static void wrong_requests_are_refused() {
    tms_set_enable_cpu_backup(true);
    tms_set_enable_disk_backup(true);
    CHECK(!tms_torch_malloc(SIZE, 0, nullptr));
    tms_set_enable_disk_backup(false);
    CHECK(!tms_torch_malloc(-1, 0, nullptr) && !tms_torch_malloc(0, 0, nullptr) && !tms_torch_malloc(SIZE, 99, nullptr));
    tms_torch_free(nullptr, 0, 0, nullptr);
    int local;
    tms_torch_free(&local, 0, 0, nullptr);
    set_memory_margin_bytes(UINT64_MAX - 1);
    CHECK(!tms_torch_malloc(SIZE, 0, nullptr));
    set_memory_margin_bytes(0);
    CHECK(tms_pause("no such tag") == 0 && !tms_get_cpu_backup_pointer(nullptr, 1));
}

static void threads_allocate_while_another_pauses() {
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; number++) {
        threads.emplace_back([number] {
            const std::string tag = "thread " + std::to_string(number);
            for (int round = 0; round < 10; round++) {
                void *memory = allocate(tag.c_str(), true, round % 2 ? "mmap" : "pinned", false);
                fill(memory, static_cast<uint8_t>(round));
                CHECK(tms_pause(tag.c_str()) == 0 && tms_resume(tag.c_str()) == 0);
                CHECK(has(memory, static_cast<uint8_t>(round)));
                release(memory);
            }
        });
    }
    for (auto &thread : threads) {
        thread.join();
    }
}

static void files_are_deleted_from_another_directory() {
    char folder[] = "/tmp/tms-test-directory-XXXXXX", before[4096];
    CHECK(mkdtemp(folder) && getcwd(before, sizeof before) && chdir(folder) == 0);
    tms_set_disk_backup_dir("relative");
    void *made = allocate("directory", false, "pinned", true);
    fill(made, 5);
    CHECK(tms_pause("directory") == 0 && chdir(before) == 0);
    const std::string relative = std::string(folder) + "/relative";
    CHECK(files(relative) == 1);
    if (backend == "host") {
        const pid_t child = fork();
        if (child == 0) {
            release(made);
            _exit(0);
        }
        CHECK(waitpid(child, nullptr, 0) == child && files(relative) == 1);
    }
    CHECK(tms_resume("directory") == 0 && has(made, 5));
    CHECK(rmdir(relative.c_str()) == 0 && rmdir(folder) == 0);
    release(made);
}

static char left[] = "/tmp/tms-test-left-XXXXXX";

// Runs after the library's own function at exit, which is registered later.
static void no_files_are_left() {
    if (rmdir(left) != 0) {
        perror("a disk backup is left at exit");
        _exit(1);
    }
}

static void exit_while_paused_deletes_the_files() {
    tms_set_disk_backup_dir(left);
    fill(allocate("left", false, "pinned", true), 1);
    CHECK(tms_pause("left") == 0 && files(left) == 1);
}

int main(int count, char **arguments) {
    CHECK(count == 2 && mkdtemp(left) && atexit(no_files_are_left) == 0);
    backend = arguments[1];
    setenv("GPU_VMM_BACKEND", backend.c_str(), 1);
    contents_come_back();
    a_retained_backup_stays_where_it_is();
    a_pause_that_fails_changes_nothing();
    a_resume_without_memory_keeps_the_contents();
    network_cards_can_access_the_memory();
    hip_functions_are_replaced();
    settings_belong_to_a_thread();
    wrong_requests_are_refused();
    threads_allocate_while_another_pauses();
    files_are_deleted_from_another_directory();
    exit_while_paused_deletes_the_files();
    printf("memory was paused and resumed on %s\n", arguments[1]);
    return 0;
}
