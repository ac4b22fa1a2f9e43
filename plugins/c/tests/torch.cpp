// Calls the functions for PyTorch as PyTorch does, with its C++ types.
//
// The first argument is the backend. The exit status is 0 if every check holds.

#include "../include/gpu_vmm.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

// The types to which CUDAPluggableAllocator casts the addresses that its setters get.
using MempoolId = std::pair<unsigned long long, unsigned long long>;
using Begin = void(int, MempoolId, std::function<bool(void *)>);
using End = void(int, MempoolId);

static void demand(bool holds, const char *what) {
    if (!holds) {
        std::fprintf(stderr, "failed: %s; the last error is: %s\n", what, gpu_vmm_last_error());
        std::exit(1);
    }
}

static bool says(const std::string &text, const char *part) { return text.find(part) != std::string::npos; }

template <class F> static F *driver(const char *name) {
    static void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    demand(library != nullptr, "libcuda.so.1 is loaded");
    auto *found = reinterpret_cast<F *>(dlsym(library, name));
    demand(found != nullptr, name);
    return found;
}

// A real capture: memory allocated on the stream belongs to its graph until that is released.
static void capture(gpu_vmm_pool *pool, Begin *begin, End *end, End *release) {
    void *context = nullptr, *stream = nullptr, *graph = nullptr;
    demand(driver<int(void **, int)>("cuDevicePrimaryCtxRetain")(&context, 0) == 0, "the context is retained");
    demand(driver<int(void *)>("cuCtxSetCurrent")(context) == 0, "the context is current");
    demand(driver<int(void **, unsigned)>("cuStreamCreate")(&stream, 1) == 0, "a stream is created");
    const MempoolId id{0, 8};
    auto tag = [&](void *block) {
        gpu_vmm_block found;
        demand(gpu_vmm_find(pool, reinterpret_cast<std::uint64_t>(block), &found) == GPU_VMM_OK, "the block is found");
        return std::string(found.tag);
    };
    // As torch.cuda.graph does: in the global mode, in which no thread of the process may query an event.
    begin(0, id, [](void *) { return true; });
    demand(driver<int(void *, int)>("cuStreamBeginCapture_v2")(stream, 0) == 0, "a capture begins");
    void *one = gpu_vmm_torch_alloc(3 << 20, 0, stream);
    demand(tag(one) == "torch graphs", "an allocation on the capturing stream belongs to the graph");
    void *outside = gpu_vmm_torch_alloc(3 << 20, 0, nullptr);
    demand(tag(outside) == "torch", "an allocation on another stream does not");
    gpu_vmm_torch_free(one, 3 << 20, 0, stream);
    demand(gpu_vmm_torch_alloc(3 << 20, 0, stream) == one, "freed memory serves the same graph again");
    gpu_vmm_torch_free(outside, 3 << 20, 0, nullptr);
    std::uint64_t bytes = 0;
    demand(gpu_vmm_trim(pool, 0, &bytes) == GPU_VMM_OK, "trim works during a capture");
    demand(tag(one) == "torch graphs", "the graph's memory stays");
    demand(driver<int(void *, void **)>("cuStreamEndCapture")(stream, &graph) == 0, "the capture ends without an error");
    end(0, id);
    gpu_vmm_torch_free(one, 3 << 20, 0, stream);
    demand(tag(one) == "torch graphs", "freed memory stays the graph's while the graph exists");
    void *other = gpu_vmm_torch_alloc(3 << 20, 0, stream);
    demand(other != one, "freed memory of the graph serves no other request");
    release(0, id);
    gpu_vmm_block found;
    demand(gpu_vmm_find(pool, reinterpret_cast<std::uint64_t>(one), &found) == GPU_VMM_NOT_FOUND, "it is freed with the graph");
    gpu_vmm_torch_free(other, 3 << 20, 0, stream);
    demand(driver<int(void *)>("cuGraphDestroy")(graph) == 0, "the graph is destroyed");
    demand(gpu_vmm_forget_stream(pool, stream) == GPU_VMM_OK, "the stream is forgotten");
    demand(driver<int(void *)>("cuStreamDestroy_v2")(stream) == 0, "the stream is destroyed");
}

// A block of another device than the first, found by an address inside it and shared.
static void second_device(const char *backend) {
    gpu_vmm_backend *opened = nullptr;
    std::uint32_t devices = 0;
    demand(gpu_vmm_open(backend, &opened) == GPU_VMM_OK, "the backend is opened");
    demand(gpu_vmm_backend_devices(opened, &devices) == GPU_VMM_OK, "it has devices");
    gpu_vmm_close(opened);
    if (devices < 2) {
        return;
    }
    gpu_vmm_torch_block block, found;
    demand(gpu_vmm_torch_allocate(1, 3 << 20, nullptr, nullptr, &block) == GPU_VMM_OK, "device 1 has memory");
    demand(gpu_vmm_torch_find(block.address + 4096, &found) == GPU_VMM_OK, "an address inside the block is found");
    demand(found.device == 1 && found.address == block.address, "with its device and its block");
    char *handle = nullptr;
    std::uint64_t offset = 0;
    demand(gpu_vmm_torch_export(block.address, &handle, &offset) == GPU_VMM_OK, "the block is shared");
    gpu_vmm_string_free(handle);
    demand(gpu_vmm_torch_deallocate(block.address, nullptr) == GPU_VMM_OK, "it is freed");
}

int main(int count, char **arguments) {
    const char *backend = count > 1 ? arguments[1] : nullptr;
    gpu_vmm_pool_options options = {};
    options.budget = 512u << 20;
    options.shareable = true;
    demand(gpu_vmm_torch_configure("vulkan", &options) == GPU_VMM_INVALID_ARGUMENT, "an unknown backend is an error");
    demand(says(gpu_vmm_last_error(), "vulkan"), "the error names it");
    demand(gpu_vmm_torch_configure(backend, &options) == GPU_VMM_OK, "PyTorch's pools are configured");

    // As torch::cuda::CUDAPluggableAllocator::malloc and raw_delete.
    void *block = gpu_vmm_torch_alloc(1 << 20, 0, nullptr);
    demand(block != nullptr && reinterpret_cast<std::uintptr_t>(block) % 512 == 0, "a tensor has memory");
    demand(gpu_vmm_torch_alloc(0, 0, nullptr) == nullptr, "an empty tensor has none");
    gpu_vmm_torch_free(nullptr, 0, 0, nullptr);
    demand(gpu_vmm_torch_configure(backend, &options) == GPU_VMM_BUSY, "after an allocation, configure fails");

    // Errors are exceptions with a text.
    bool thrown = false;
    try {
        gpu_vmm_torch_alloc(600 << 20, 0, nullptr);
    } catch (const std::runtime_error &error) {
        thrown = says(error.what(), "out of memory") && says(error.what(), "the pool's budget is 512 MiB");
    }
    demand(thrown, "more than the budget is a std::runtime_error with the statistics");
    thrown = false;
    try {
        gpu_vmm_torch_alloc(1, 4711, nullptr);
    } catch (const std::runtime_error &error) {
        thrown = says(error.what(), "4711");
    }
    demand(thrown, "an unknown device is a std::runtime_error");
    thrown = false;
    try {
        gpu_vmm_torch_alloc(-1, 0, nullptr);
    } catch (const std::runtime_error &error) {
        thrown = says(error.what(), "-1");
    }
    demand(thrown, "a negative size is a std::runtime_error");

    // Each thread's tag.
    gpu_vmm_pool *pool = nullptr;
    demand(gpu_vmm_torch_pool(0, &pool) == GPU_VMM_OK, "device 0 has a pool");
    gpu_vmm_block found;
    demand(gpu_vmm_find(pool, reinterpret_cast<std::uint64_t>(block), &found) == GPU_VMM_OK, "the block is found");
    demand(std::strcmp(found.tag, "torch") == 0, "the block has the default tag");
    demand(gpu_vmm_torch_set_tag("weights") == GPU_VMM_OK, "a tag is set");
    void *weights = gpu_vmm_torch_alloc(3 << 20, 0, nullptr);
    demand(gpu_vmm_torch_set_tag(nullptr) == GPU_VMM_OK, "the tag is reset");
    const auto place = reinterpret_cast<std::uint64_t>(weights);
    demand(gpu_vmm_find(pool, place, &found) == GPU_VMM_OK && std::strcmp(found.tag, "weights") == 0, "the block has the tag");
    gpu_vmm_torch_record_stream(weights, nullptr);

    // Suspend and resume.
    const char text[] = "weights";
    char back[sizeof text];
    std::uint64_t bytes = 0;
    demand(gpu_vmm_write(pool, place, text, sizeof text) == GPU_VMM_OK, "the block is written");
    demand(gpu_vmm_suspend(pool, "weights", "host", &bytes) == GPU_VMM_OK && bytes >= 3 << 20, "the tag is suspended");
    demand(gpu_vmm_suspend(pool, "weights", "host", &bytes) == GPU_VMM_OK && bytes == 0, "the tag is already suspended");
    // Overwrite the released memory, so that the contents can only come from the store.
    void *other = gpu_vmm_torch_alloc(20 << 20, 0, nullptr);
    const std::string others(20 << 20, '\xEE');
    demand(gpu_vmm_write(pool, reinterpret_cast<std::uint64_t>(other), others.data(), others.size()) == GPU_VMM_OK, "overwritten");
    gpu_vmm_torch_free(other, 20 << 20, 0, nullptr);
    gpu_vmm_torch_empty_cache();
    demand(gpu_vmm_resume(pool, "weights", &bytes) == GPU_VMM_OK && bytes >= 3 << 20, "the tag is resumed");
    demand(gpu_vmm_resume(pool, "weights", &bytes) == GPU_VMM_OK && bytes == 0, "the tag is already resumed");
    std::memset(back, 0xFF, sizeof back); // reveals a read that copies nothing
    demand(gpu_vmm_read(pool, place, back, sizeof back) == GPU_VMM_OK, "the block is read");
    demand(std::memcmp(text, back, sizeof text) == 0, "the contents are restored");
    demand(gpu_vmm_resume(pool, "unknown", &bytes) == GPU_VMM_NOT_FOUND, "an unknown tag is an error");

    // The functions of a memory pool, which return null if memory is short.
    void *alloc = nullptr, *free = nullptr, *again = nullptr;
    demand(gpu_vmm_torch_functions("cache", &alloc, &free) == GPU_VMM_OK, "a tag has functions");
    demand(gpu_vmm_torch_functions("cache", &again, &free) == GPU_VMM_OK && again == alloc, "a tag keeps its functions");
    auto *raw_alloc = reinterpret_cast<void *(*)(std::ptrdiff_t, int, void *)>(alloc);
    auto *raw_free = reinterpret_cast<void (*)(void *, std::ptrdiff_t, int, void *)>(free);
    void *segment = raw_alloc(20 << 20, 0, nullptr);
    demand(gpu_vmm_find(pool, reinterpret_cast<std::uint64_t>(segment), &found) == GPU_VMM_OK, "a segment is found");
    demand(std::strcmp(found.tag, "cache") == 0, "the segment has the tag");
    demand(raw_alloc(600 << 20, 0, nullptr) == nullptr, "more than the budget returns null");
    demand(says(gpu_vmm_last_error(), "out of memory"), "the last error has a text");
    raw_free(segment, 20 << 20, 0, nullptr);

    // Captures, with PyTorch's own types by value.
    auto *begin = reinterpret_cast<Begin *>(reinterpret_cast<void *>(&gpu_vmm_torch_begin_allocate_to_pool));
    auto *end = reinterpret_cast<End *>(reinterpret_cast<void *>(&gpu_vmm_torch_end_allocate_to_pool));
    auto *release = reinterpret_cast<End *>(reinterpret_cast<void *>(&gpu_vmm_torch_release_pool));
    begin(0, MempoolId{0, 7}, [](void *) { return true; });
    void *outside = gpu_vmm_torch_alloc(4096, 0, nullptr);
    demand(gpu_vmm_find(pool, reinterpret_cast<std::uint64_t>(outside), &found) == GPU_VMM_OK, "a block is found");
    demand(std::strcmp(found.tag, "torch") == 0, "a block of a stream that does not capture belongs to no graph");
    end(0, MempoolId{0, 7});
    release(0, MempoolId{0, 7});
    release(0, MempoolId{1, 1});
    if (backend != nullptr && std::strcmp(backend, "cuda") == 0) {
        capture(pool, begin, end, release);
    }

    second_device(backend);
    gpu_vmm_torch_free(outside, 4096, 0, nullptr);
    gpu_vmm_torch_free(weights, 3 << 20, 0, nullptr);
    gpu_vmm_torch_free(block, 1 << 20, 0, nullptr);
    // A foreign pointer changes nothing.
    gpu_vmm_torch_free(&options, 1, 0, nullptr);
    demand(says(gpu_vmm_last_error(), "is not the address of a block"), "a foreign pointer is an error");
    gpu_vmm_torch_empty_cache();
    char *statistics = nullptr;
    demand(gpu_vmm_pool_stats(pool, &statistics) == GPU_VMM_OK, "the pool has statistics");
    demand(says(statistics, "\"live\":0") && says(statistics, "\"held\":0"), statistics);
    gpu_vmm_string_free(statistics);
    gpu_vmm_pool_free(pool);
    std::puts("passed");
}
