// Calls while the process exits, as a program's static objects, exit handlers and thread-local objects make them.
//
// The first argument is the backend. Each case runs in a child of its own, which opens the backend after the fork. The exit status is
// 0 if every check holds.

#include "gpu_vmm.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

static const char *name;
// How many late calls the case must make, and has made.
static int expected, seen;

// Ends the child at once: `exit` has begun.
static void demand(bool holds, const char *what) {
    if (!holds) {
        std::fprintf(stderr, "failed: %s; the last error is: %s\n", what, gpu_vmm_last_error());
        _exit(1);
    }
}

#define CHECK(call) demand((call) == GPU_VMM_OK, #call)

// Ends the child with the result of the case. It is the program's first static object, and so destroyed last.
struct Last {
    ~Last() {
        if (expected > 0) {
            demand(seen == expected, "every late call was made");
            _exit(0);
        }
    }
};

static Last last;

// What a program has on the device.
struct Held {
    gpu_vmm_backend *backend = nullptr;
    gpu_vmm_pool *pool = nullptr;
    gpu_vmm_region *region = nullptr;
    std::uint64_t unit = 0, block = 0;
    void *torch = nullptr;
    // Whether the driver is open when the object is destroyed.
    bool is_open = false;

    void fill() {
        gpu_vmm_region_options options = {};
        CHECK(gpu_vmm_open(name, &backend));
        CHECK(gpu_vmm_reservation_unit(backend, &unit));
        CHECK(gpu_vmm_pool_new(backend, nullptr, &pool));
        CHECK(gpu_vmm_alloc(pool, 1 << 20, 0, nullptr, &block));
        options.size = 4 * unit;
        CHECK(gpu_vmm_region_reserve(backend, &options, &region));
        CHECK(gpu_vmm_region_grow(region, unit));
        static const gpu_vmm_status configured = gpu_vmm_torch_configure(name, nullptr);
        CHECK(configured);
        torch = gpu_vmm_torch_alloc(1 << 20, 0, nullptr);
    }

    // Calls everything, and frees everything.
    void end() {
        if (backend == nullptr) {
            return;
        }
        const bool is_usable = is_open || std::strcmp(name, "host") == 0;
        const gpu_vmm_status answer = is_usable ? GPU_VMM_OK : GPU_VMM_EXITING;
        std::uint64_t address = 0, bytes = 0;
        char byte = 0, *text = nullptr;
        gpu_vmm_backend *again = nullptr;
        demand(gpu_vmm_alloc(pool, 256 << 20, 0, nullptr, &address) == answer, "an allocation");
        demand(gpu_vmm_region_grow(region, 2 * unit) == answer, "a growth");
        demand(gpu_vmm_read(pool, block, &byte, 1) == answer, "a read");
        demand(gpu_vmm_open(name, &again) == answer, "opening");
        demand(gpu_vmm_memory(backend, 0, &address, &bytes) == answer, "free memory");
        demand(gpu_vmm_free(nullptr, 1) == GPU_VMM_INVALID_ARGUMENT, "a free without a pool");
        demand(std::strstr(gpu_vmm_last_error(), "pool") != nullptr, "its error has a text");
        CHECK(gpu_vmm_pool_stats(pool, &text));
        gpu_vmm_string_free(text);
        const gpu_vmm_status freed = gpu_vmm_free(pool, block);
        demand(freed == GPU_VMM_OK || freed == answer, "a free");
        gpu_vmm_torch_free(torch, 1 << 20, 0, nullptr);
        gpu_vmm_torch_empty_cache();
        gpu_vmm_close(again);
        gpu_vmm_region_free(region);
        gpu_vmm_pool_free(pool);
        gpu_vmm_close(backend);
        backend = nullptr;
        ++seen;
    }

    ~Held() { end(); }
};

static Held object;

// A static object: it was constructed before the driver was loaded, and is destroyed after the driver.
static void static_object() {
    expected = 1;
    object.fill();
}

// One that is constructed behind the driver is destroyed before it.
static void later_object() {
    static Held first;
    first.fill();
    static Held later;
    later.fill();
    later.is_open = true;
    expected = 2;
}

// Exit handlers that were registered before and after the driver was opened.
static void handlers() {
    static Held *early = new Held, *late = new Held;
    std::atexit([] { early->end(); });
    early->fill();
    late->fill();
    late->is_open = true;
    std::atexit([] { late->end(); });
    expected = 2;
}

// Locals of the main thread are destroyed before the first exit handler: the driver is open.
static void thread_local_of_main() {
    static thread_local Held local;
    local.fill();
    local.is_open = true;
    expected = 1;
}

// Locals of another thread, which end while the process goes on: one before and one after the locals of the driver.
static void thread_local_of_thread() {
    // The main thread opens the driver first: HIP 6.4.3 crashes at exit if the thread that initialized it has ended, without gpu-vmm too.
    static Held whole;
    whole.fill();
    std::thread thread([] {
        static thread_local Held one;
        one.fill();
        static thread_local Held other;
        other.fill();
        one.is_open = other.is_open = true;
    });
    thread.join();
    demand(seen == 2, "the thread's locals were destroyed");
    expected = 3;
}

// A static object that is never emptied: its pool lives until the end.
static void left_behind() {
    static Held *kept = new Held;
    kept->fill();
    expected = 1;
    seen = 1;
}

int main(int count, char **arguments) {
    demand(count > 1, "the first argument is the backend");
    name = arguments[1];
    const struct {
        const char *shown;
        void (*run)();
    } cases[] = {
        {"a static object", static_object},
        {"a static object that is constructed later", later_object},
        {"exit handlers", handlers},
        {"a thread-local object of the main thread", thread_local_of_main},
        {"thread-local objects of another thread", thread_local_of_thread},
        {"objects that are left behind", left_behind},
    };
    int failed = 0;
    for (const auto &one : cases) {
        const pid_t child = fork();
        demand(child >= 0, "a child is started");
        if (child == 0) {
            one.run();
            std::exit(2);
        }
        int status = 0;
        demand(waitpid(child, &status, 0) == child, "the child is waited for");
        if (status != 0) {
            std::fprintf(stderr, "%s: the child ended with status %#x\n", one.shown, static_cast<unsigned>(status));
            failed = 1;
        }
    }
    return failed;
}
