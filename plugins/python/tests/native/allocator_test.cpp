// Drives gpu_vmm.torch's allocator class through PyTorch's own functions, on host memory and a fake libcudart.
//
// Arguments: the file of libgpu_vmm_c, the file of the compiled class. The exit status is 0 if every check holds.

#include <gpu_vmm.h>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>

#include "checks.h"
#include "newer.h"
#if GPU_VMM_TORCH >= 211
#include "other_allocator.h"
#endif

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <new>
#include <cstring>
#include <ctime>
#include <sys/wait.h>
#include <unistd.h>
#include <unordered_set>
#include <thread>

// No header declares it; libtorch_cuda calls it.
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*)(c10::DeviceIndex));
}

// Of fake_libcuda.c.
extern "C" thread_local int fake_has_no_context;
extern "C" thread_local int fake_answers;

// As PyTorch's test of its own allocator does: the snapshot and the statistics agree.
static void agree() {
    std::map<size_t, std::map<std::string, int64_t>> expected;
    int64_t reserved = 0;
    for (const auto &segment : native::snapshot().segments) {
        if (segment.device != 0) {
            continue;
        }
        size_t sum = 0, requested = 0;
        for (size_t kind : {size_t{0}, size_t(segment.is_large ? 2 : 1)}) {
            auto &of = expected[kind];
            of["reserved"] += segment.total_size;
            of["allocated"] += segment.allocated_size;
            of["active"] += segment.active_size;
            of["requested"] += segment.requested_size;
            for (const auto &block : segment.blocks) {
                of["blocks"] += block.allocated;
                of["active blocks"] += block.active;
            }
        }
        for (const auto &block : segment.blocks) {
            sum += block.size;
            requested += block.active ? block.requested_size : 0;
        }
        demand(sum == segment.total_size && requested == segment.requested_size, "a segment is the sum of its blocks");
        reserved += segment.total_size;
    }
    const auto stats = native::getDeviceStats(0);
    for (size_t kind = 0; kind < 3; ++kind) {
        auto &of = expected[kind];
        demand(of["reserved"] == stats.reserved_bytes[kind].current, "reserved bytes");
        demand(of["allocated"] == stats.allocated_bytes[kind].current, "allocated bytes");
        demand(of["active"] == stats.active_bytes[kind].current, "active bytes");
        demand(of["requested"] == stats.requested_bytes[kind].current, "requested bytes");
        demand(of["blocks"] == stats.allocation[kind].current, "the number of blocks");
        demand(of["active blocks"] == stats.active[kind].current, "the number of active blocks");
    }
}

static void statistics() {
    now = "statistics";
    {
        auto small = tensor(1000), large = tensor(5 << 20);
        std::memset(large.get(), 7, 5 << 20);
        const auto stats = native::getDeviceStats(0);
        demand(all(stats) == 1024 + (5 << 20), "sizes are rounded up to 512");
        demand(stats.requested_bytes[1].current == 1000 && stats.requested_bytes[2].current == 5 << 20, "small and large blocks");
        demand(stats.allocation[0].current == 2 && stats.reserved_bytes[0].current >= 6 << 20, "the counts");
        agree();
    }
    auto stats = native::getDeviceStats(0);
    demand(all(stats) == 0 && stats.allocated_bytes[0].peak == 1024 + (5 << 20), "the peak stays");
    demand(stats.allocated_bytes[0].freed == 1024 + (5 << 20), "what was freed");
    agree();
    const auto held = stats.reserved_bytes[0].current;
    demand(held > 0, "freed memory is kept");
    native::emptyCache();
    native::resetPeakStats(0);
    native::resetAccumulatedStats(0);
    stats = native::getDeviceStats(0);
    demand(stats.reserved_bytes[0].current == 0 && stats.reserved_bytes[0].peak == 0, "an empty cache holds nothing");
    demand(stats.allocated_bytes[0].peak == 0 && stats.allocation[0].allocated == 0, "everything is reset");
    demand(stats.num_sync_all_streams == 0 && stats.num_device_alloc == 0, "the counters too");
    demand(tensor(0).get() == nullptr && installed().raw_alloc(0) == nullptr, "nothing is null");
    auto block = tensor(4096);
    size_t size = 0;
    auto *inside = static_cast<char *>(block.get()) + 100;
    demand(native::getBaseAllocation(inside, &size) == block.get() && size >= 4096, "the base of an inner address");
    size_t largest = 0;
    native::cacheInfo(0, &largest);
    demand(largest >= size_t{1} << 30, "the largest free block is at least the free memory");
    try {
        installed().raw_delete(inside);
        demand(false, "an inner address is not freed");
    } catch (const c10::Error &error) {
        demand(says(error.what(), "invalid device pointer"), error.what());
    }
}

static void out_of_memory() {
    now = "out of memory";
    // Observers stay attached.
    static int64_t requested = 0;
    native::attachOutOfMemoryObserver([](int64_t, size_t size, size_t, size_t) { requested = size; });
    native::setMemoryFraction(1.0 / 64, 0); // 64 MiB
    demand(installed().getMemoryFraction(0) == 1.0 / 64, "the fraction");
    for (int round = 0; round < 100; ++round) {
        std::vector<c10::DataPtr> full;
        try {
            for (;;) {
                full.push_back(tensor(7 << 20));
            }
        } catch (const c10::OutOfMemoryError &error) {
            demand(says(error.what(), "CUDA out of memory. Tried to allocate 7.00 MiB. GPU 0 has a total capacity of 4.00 GiB"), error.what());
            demand(says(error.what(), "64.00 MiB allowed; Of the allocated memory"), error.what());
            demand(says(error.what(), "the pool holds"), error.what());
        }
        demand(full.size() >= 4 && requested == 7 << 20, "an error and an observer");
        agree();
    }
    native::setMemoryFraction(1, 0);
    const auto stats = native::getDeviceStats(0);
    demand(stats.num_ooms == 100 && stats.num_alloc_retries == 100, "each is counted");
    demand(all(stats) == 0, "nothing is lost");
    try {
        tensor(size_t{1} << 61);
        demand(false, "it is too much");
    } catch (const c10::OutOfMemoryError &error) {
        demand(says(error.what(), "more than 1EB"), error.what());
    }
}

static void private_pools() {
    now = "private pools";
    const MempoolId_t id{0, 5};
    const auto me = std::this_thread::get_id();
    native::beginAllocateToPool(0, id, [me](cudaStream_t) { return std::this_thread::get_id() == me; });
    auto kept = tensor(3 << 20), freed = tensor(3 << 20);
    void *const freed_address = freed.get();
    std::thread([&] {
        auto other = tensor(3 << 20);
        demand(native::checkPoolLiveAllocations(0, id, {kept.get(), freed_address}), "another thread's block is not in the pool");
    }).join();
    auto checkpoint = native::getCheckpointState(0, id);
    freed.clear();
    auto later = tensor(5 << 20);
    native::endAllocateToPool(0, id);
    auto outside = tensor(3 << 20);
    demand(outside.get() != freed_address, "freed memory of the pool serves the pool alone");
    agree();
    auto delta = native::setCheckpointPoolState(0, checkpoint);
    demand(std::unordered_set<void *>(delta.ptrs_freed.begin(), delta.ptrs_freed.end()) == std::unordered_set<void *>{kept.get(), later.get()},
           "all that was live is reported as freed");
    std::unordered_set<void *> allocated;
    for (auto &data : delta.dataptrs_allocd) {
        allocated.insert(data.get());
        demand(data.get_deleter() == installed().raw_deleter(), "PyTorch exchanges this deleter");
    }
    demand(allocated == (std::unordered_set<void *>{kept.get(), freed_address}), "all of the checkpoint is reported as allocated");
    demand(native::checkPoolLiveAllocations(0, id, allocated), "exactly the checkpoint's blocks are live");
    demand(!native::checkPoolLiveAllocations(0, id, {kept.get()}), "and not fewer");
    agree();
    // As PyTorch does with tensors that are stale now.
    later.release_context();
    kept.release_context();
    size_t segments = 0;
    for (const auto &segment : native::snapshot().segments) {
        segments += segment.owner_private_pool_id == id;
    }
    demand(segments > 0, "the snapshot shows the pool");
    demand(are_numbered(native::snapshot().segments, 0), "NCCL can register the segments in order");
    delta.dataptrs_allocd.clear();
    native::releasePool(0, id);
    outside.clear();
    demand(native::getPoolUseCount(0, id) == 0 && all(native::getDeviceStats(0)) == 0, "nothing is left");
    native::emptyCache();
    demand(native::getDeviceStats(0).reserved_bytes[0].current == 0, "its memory went back");
    for (int wrong = 0; wrong < 3; ++wrong) {
        try {
            wrong == 0 ? native::endAllocateToPool(0, id) : wrong == 1 ? native::releasePool(0, id) : native::releasePool(7, id);
            demand(false, "it is not begun");
        } catch (const c10::Error &error) {
            demand(says(error.what(), wrong == 0 ? "not currently recording" : wrong == 1 ? "private pool" : "did you call init"), error.what());
        }
    }
}

static void spare_pools() {
#if GPU_VMM_TORCH >= 208
    now = "pools for when memory is short";
    const MempoolId_t id{0, 6};
    native::createOrIncrefPool(0, id);
#if GPU_VMM_TORCH >= 211
    native::setUseOnOOM(0, id, true);
#else
    native::setUseOnOOM(0, id);
#endif
#if GPU_VMM_TORCH >= 210
    native::setNoSplit(0, id);
#endif
    native::beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
    void *const address = tensor(40 << 20).get();
    native::endAllocateToPool(0, id);
    native::releasePool(0, id);
    native::setMemoryFraction(1.0 / 64, 0);
    {
        auto spare = tensor(32 << 20);
        demand(spare.get() == address, "the pool's free block serves a request that nothing else can");
        agree();
    }
    native::setMemoryFraction(1, 0);
    native::releasePool(0, id);
    native::emptyCache();
#endif
}

static void spare_foreign_pools() {
#if GPU_VMM_TORCH >= 211
    now = "pools of other allocators for when memory is short";
    const MempoolId_t id{0, 7};
    const auto other = std::make_shared<OtherAllocator>();
    native::createOrIncrefPool(0, id, other);
    native::setMemoryFraction(1.0 / 1024, 0); // 4 MiB
    native::beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
    void *const address = tensor(40 << 20).get();
    native::endAllocateToPool(0, id);
    native::releasePool(0, id);
    const auto spare = [](size_t size) {
        try {
            return tensor(size);
        } catch (const c10::OutOfMemoryError &) {
            return c10::DataPtr();
        }
    };
    const auto before = all(native::getDeviceStats(0));
    demand(spare(32 << 20).get() == nullptr, "the pool keeps its memory");
    native::setUseOnOOM(0, id, true);
    {
        auto served = spare(32 << 20);
        demand(served.get() == address, "the pool's free block serves a request that nothing else can");
        demand(all(native::getDeviceStats(0)) == before + (32 << 20), "it is counted");
        demand(spare(32 << 20).get() == nullptr, "a block serves one request");
    }
    demand(all(native::getDeviceStats(0)) == before, "it is counted as freed");
    demand(spare(41 << 20).get() == nullptr, "a larger request is not served");
    try {
        installed().raw_alloc_with_stream(32 << 20, reinterpret_cast<cudaStream_t>(4096));
        demand(false, "another stream's request is not served");
    } catch (const c10::OutOfMemoryError &) {
    }
    demand(spare(32 << 20).get() == address, "the block returns to the pool");
    native::setUseOnOOM(0, id, false);
    demand(spare(32 << 20).get() == nullptr, "the pool keeps its memory again");
    native::setMemoryFraction(1, 0);
    demand(other->live == 1, "the pool keeps its block");
    native::releasePool(0, id);
    demand(other->live == 0, "a released pool returns its memory");
#endif
}

static void nested_pools() {
    now = "nested pools";
    const MempoolId_t outer{0, 9}, inner{0, 10};
    const auto begin = [](MempoolId_t id) { native::beginAllocateToPool(0, id, [](cudaStream_t) { return true; }); };
    std::vector<c10::DataPtr> made;
    const auto next = [&] { made.push_back(tensor(4 << 20)); };
    begin(outer);
    next();
    begin(inner);
    next();
    native::endAllocateToPool(0, inner);
    next();
    native::endAllocateToPool(0, outer);
    next();
    demand(native::checkPoolLiveAllocations(0, outer, {made[0].get(), made[2].get()}), "the outer pool serves around the inner one");
    demand(native::checkPoolLiveAllocations(0, inner, {made[1].get()}), "the inner pool serves what is inside");
    made.clear();
    native::releasePool(0, inner);
    native::releasePool(0, outer);
    native::emptyCache();
}

static void ended_pools() {
#if GPU_VMM_TORCH >= 211
    now = "a pool that has ended";
    const MempoolId_t id{0, 8};
    const auto reserved = [] { return native::getDeviceStats(0).reserved_bytes[0].current; };
    native::emptyCache();
    auto kept = tensor(32 << 20);
    const auto before = reserved();
    native::createOrIncrefPool(0, id);
    native::beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
    tensor(40 << 20);
    native::endAllocateToPool(0, id);
    native::releasePool(0, id);
    native::releasePool(0, id);
    kept.clear();
    demand(reserved() == before + (40 << 20), "all is kept");
    native::emptyCache(id);
    demand(reserved() == before, "the memory of the pool is returned, and other memory stays");
    native::emptyCache(id);
    demand(reserved() == before, "it is returned once");
    native::emptyCache();
    demand(reserved() == 0, "all is returned");
#endif
}

static void history() {
    now = "history";
    using Entry = native::TraceEntry;
    static size_t tracked = 0;
    native::attachAllocatorTraceTracker([](const Entry &) { tracked += 1; });
    record(true, gather, 3, native::RecordContext::ALL);
    demand(native::isHistoryEnabled(), "it is on");
    native::recordAnnotation({{"name", "step"}});
    auto block = tensor(3000);
    auto shown = native::snapshot();
    bool has_context = false;
    for (const auto &segment : shown.segments) {
        for (const auto &one : segment.blocks) {
            has_context |= one.allocated && one.requested_size == 3000 && one.context_when_allocated;
        }
    }
    demand(has_context && shown.external_annotations.size() == 1, "blocks have the context of their allocation");
    block.clear();
    tensor(512);
    shown = native::snapshot();
    const auto &trace = shown.device_traces.at(0);
    demand(trace.size() == 3 && trace[1].action_ == Entry::FREE_REQUESTED && trace[2].action_ == Entry::FREE_COMPLETED, "the last three");
    demand(trace[2].size_ == 512 && trace[2].context_, "with sizes and contexts");
    const auto now_us = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch());
    demand(std::llabs(trace[2].time_.t_ - now_us.count()) < 60'000'000, "in microseconds");
    demand(tracked >= 7, "trackers see all of them");
    native::attachAllocatorTraceTracker([](const Entry &) {});
    record(false, nullptr, 1, native::RecordContext::NEVER);
    demand(!native::isHistoryEnabled() && native::snapshot().device_traces.at(0).empty(), "it is off");
}

static void devices() {
    now = "devices";
    c10::cuda::CUDAGuard guard(0);
    auto block = tensor(1 << 20), other = tensor(1 << 20);
    demand(native::memcpyAsync(other.get(), 0, block.get(), 0, 1 << 20, nullptr, false) == cudaSuccess, "a copy");
    demand(native::memcpyAsync(other.get(), 0, block.get(), 1, 1 << 20, nullptr, false) == cudaSuccess, "a copy from a peer");
    native::recordStream(block, c10::cuda::getDefaultCUDAStream(0));
    for (int wrong = 0; wrong < 3; ++wrong) {
        try {
            wrong == 0 ? installed().enablePeerAccess(0, 1)
                       : wrong == 1 ? (void)installed().raw_alloc_with_stream(size_t{1} << 50, nullptr)
                                    : (void)native::getDeviceStats(5);
            demand(false, "it is refused");
        } catch (const c10::Error &error) {
            demand(says(error.what(), wrong == 2 ? "did you call init" : "gpu-vmm: "), error.what());
        }
    }
    demand(installed().name() == "gpu-vmm" && installed().isEnabled(), "its name");
}

static std::atomic<size_t> largest_new{SIZE_MAX};

// The class and PyTorch take this one, too.
void *operator new(size_t size) {
    void *memory = size > largest_new ? nullptr : std::malloc(size);
    if (memory == nullptr) {
        throw std::bad_alloc();
    }
    return memory;
}

void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, size_t) noexcept { std::free(memory); }

// The library calls visitors that add to a vector, and has no memory for it.
static void visitors_without_memory() {
    now = "visitors without memory";
    std::vector<c10::DataPtr> blocks;
    const MempoolId_t id{0, 11};
    native::beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
    std::unordered_set<void *> live;
    for (int block = 0; block < 300; ++block) {
        blocks.push_back(tensor(512));
        live.insert(blocks.back().get());
    }
    native::endAllocateToPool(0, id);
    for (int call = 0; call < 2; ++call) {
        bool thrown = false;
        largest_new = 4096;
        try {
            call == 0 ? (void)native::snapshot() : (void)native::checkPoolLiveAllocations(0, id, live);
        } catch (const std::bad_alloc &) {
            thrown = true;
        }
        largest_new = SIZE_MAX;
        demand(thrown, "the exception of a visitor reaches the caller");
    }
    demand(native::checkPoolLiveAllocations(0, id, live), "nothing has changed");
    blocks.clear();
    native::releasePool(0, id);
    native::emptyCache();
}

// A child is forked while another thread holds the lock of the diversions, and of the history.
static void forked_child() {
    now = "a forked child";
    std::atomic<bool> held{false}, go_on{false};
    const MempoolId_t id{0, 12};
    auto block = tensor(512);
    record(true, gather, 3, native::RecordContext::ALL);
    native::beginAllocateToPool(0, id, [&](cudaStream_t) {
        held = true;
        while (!go_on) {
            std::this_thread::yield();
        }
        return false;
    });
    std::thread holder([] { tensor(512); });
    while (!held) {
        std::this_thread::yield();
    }
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        try {
            tensor(512);
            _exit(2);
        } catch (const c10::Error &error) {
            if (!says(error.what(), "this process was forked")) {
                _exit(3);
            }
        }
        // As destructors do.
        block.clear();
        native::releasePool(0, id);
        native::recordAnnotation({{"name", "step"}});
        _exit(0);
    }
    int status = 0;
    demand(child > 0 && waitpid(child, &status, 0) == child && status == 0, "the child waits for no lock");
    go_on = true;
    holder.join();
    native::endAllocateToPool(0, id);
    native::releasePool(0, id);
    record(false, nullptr, 1, native::RecordContext::NEVER);
}

// Writes what another process reads.
static void other_process(char **arguments) {
    now = "another process";
    auto first = tensor(5000), block = tensor(9 << 20);
    auto *bytes = static_cast<unsigned char *>(block.get());
    for (size_t at = 0; at < 9 << 20; ++at) {
        bytes[at] = static_cast<unsigned char>(at * 7);
    }
    const auto handle = native::shareIpcHandle(bytes);
    demand(native::shareIpcHandle(bytes).handle == handle.handle, "a block has one handle");
    demand(native::shareIpcHandle(bytes + 512).offset == handle.offset + 512, "an inner address has another offset");
    char name[] = "/tmp/gpu-vmm-handle-XXXXXX";
    const int file = mkstemp(name);
    demand(file >= 0 && write(file, handle.handle.data(), handle.handle.size()) == static_cast<ssize_t>(handle.handle.size()), "a file");
    close(file);
    const auto command = std::string(arguments[0]) + " " + arguments[1] + " " + arguments[2] + " receive " + name + " " +
        std::to_string(handle.offset);
    const int status = std::system(command.c_str());
    unlink(name);
    demand(status == 0, "the other process sees the block");
    demand(bytes[100] == 0xEE, "and this one sees what it has written");
    try {
        native::getIpcDevPtr("c a handle of cudaMalloc");
        demand(false, "it is none of gpu-vmm");
    } catch (const c10::Error &error) {
        demand(says(error.what(), "enable gpu-vmm in both processes"), error.what());
    }
}

static void receive(const char *name, size_t offset) {
    now = "the receiver";
    std::string handle(1 << 20, '\0');
    FILE *file = std::fopen(name, "r");
    demand(file != nullptr, name);
    handle.resize(std::fread(handle.data(), 1, handle.size(), file));
    std::fclose(file);
    auto memory = native::getIpcDevPtr(handle);
    demand(native::getIpcDevPtr(handle) == memory, "a handle is mapped once");
    auto *bytes = static_cast<unsigned char *>(memory.get()) + offset;
    for (size_t at = 0; at < 9 << 20; ++at) {
        demand(bytes[at] == static_cast<unsigned char>(at * 7), "the bytes of the sender");
    }
    bytes[100] = 0xEE;
    memory.reset();
    demand(native::getIpcDevPtr(handle) != nullptr, "it is mapped again after the last use");
}

// Host memory has one device: the second one is seen in the error.
static bool allocates_on_the_second() {
    try {
        installed().raw_delete(installed().raw_alloc(512));
        return false;
    } catch (const c10::Error &error) {
        demand(says(error.what(), "device 1"), error.what());
        return true;
    }
}

static bool has_context[] = {true, true};

static void current_device() {
    now = "the current device";
    const auto device_of_nothing = [] { return tensor(0).device().index(); };
    const auto check_and_ask_driver = [](bool second) {
        const int before = fake_answers;
        demand(allocates_on_the_second() == second, "memory is the current device's");
        return fake_answers > before;
    };
    demand(check_and_ask_driver(false) && device_of_nothing() == 0, "the driver reports the first device");
    c10::cuda::SetDevice(1);
    demand(check_and_ask_driver(true) && device_of_nothing() == 1, "the driver reports the second device");
    fake_has_no_context = 1;
    demand(!check_and_ask_driver(true), "the runtime reports the device of a thread without a context");
    c10::cuda::SetDevice(0);
    demand(!check_and_ask_driver(false), "the runtime reports the first device");
    fake_has_no_context = 0;
    // PyTorch notes a device that has no context as the current one, and the runtime's stays.
    has_context[1] = false;
    c10::cuda::MaybeSetDevice(1);
    const int before = fake_answers;
    demand(device_of_nothing() == 1 && fake_answers == before, "no memory needs no context");
    int device = -1;
    demand(cudaGetDevice(&device) == cudaSuccess && device == 0, "the device is noted alone");
    demand(check_and_ask_driver(true), "memory needs the device that was noted");
    has_context[1] = true;
    c10::cuda::SetDevice(0);
    demand(check_and_ask_driver(false), "the first device again");
}

static void threads() {
    now = "threads";
    std::vector<std::thread> all_threads;
    for (int thread = 0; thread < 8; ++thread) {
        all_threads.emplace_back([thread] {
            std::vector<c10::DataPtr> own(16);
            for (int round = 0; round < 4000; ++round) {
                const size_t size = size_t{1} << (9 + (round * 7 + thread) % 13);
                auto &one = own[round % 16];
                one = tensor(size);
                *static_cast<char *>(one.get()) = static_cast<char>(thread);
                if (round % 500 == 0) {
                    native::getDeviceStats(0);
                    native::snapshot();
                }
                demand(*static_cast<volatile char *>(one.get()) == static_cast<char>(thread), "no block has two owners");
            }
        });
    }
    for (auto &thread : all_threads) {
        thread.join();
    }
    demand(all(native::getDeviceStats(0)) == 0, "all is freed");
    agree();
}

// The time of this thread alone: the machine may be busy.
static double processor_time() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

static void time_pairs() {
    const int pairs = 200'000, rounds = 9;
    const size_t sizes[] = {512, 64 << 10, 512 << 10, 2 << 20, 16 << 20, 100 << 20};
    std::vector<void *> kept;
    for (const size_t size : sizes) {
        // Other live blocks, as in a program.
        for (int block = 0; block < 20; ++block) {
            kept.push_back(installed().raw_alloc(size));
        }
    }
    for (const size_t size : sizes) {
        // The shortest: other programs prolong a round.
        double least = 1e9;
        for (int round = 0; round < rounds; ++round) {
            const double begin = processor_time();
            for (int pair = 0; pair < pairs; ++pair) {
                installed().raw_delete(installed().raw_alloc(size));
            }
            least = std::min(least, (processor_time() - begin) / pairs);
        }
        std::printf("a pair of raw_alloc and raw_delete of %g KiB takes %.1f ns\n", static_cast<double>(size) / 1024, least);
    }
    for (void *block : kept) {
        installed().raw_delete(block);
    }
}

int main(int count, char **arguments) {
    demand(count >= 3, "two files are named");
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex device) { return has_context[device]; });
    void *library = dlopen(arguments[1], RTLD_NOW);
    demand(library != nullptr, arguments[1]);
    auto configure = reinterpret_cast<decltype(&gpu_vmm_torch_configure)>(dlsym(library, "gpu_vmm_torch_configure"));
    gpu_vmm_pool_options options = {};
    options.page = 2 << 20;
    options.shareable = true;
    demand(configure("host", &options) == GPU_VMM_OK, "the host backend");
    void *built = dlopen(arguments[2], RTLD_NOW);
    demand(built != nullptr, dlerror());
    auto install = reinterpret_cast<int (*)(const char *, char *, size_t)>(dlsym(built, "gpu_vmm_torch_install"));
    char reason[256];
    demand(install("/nothing", reason, sizeof reason) == 1 && says(reason, "/nothing"), "a missing library is reported");
    demand(install(arguments[1], reason, sizeof reason) == 0, reason);
    demand(!native::get()->initialized(), "nothing is initialized yet");
    native::init(2);
    if (count == 4 && std::string(arguments[3]) == "rejections") {
        rejections();
        std::puts("requests are rejected");
        return 0;
    }
    configured_limit();
    demand(install(arguments[1], reason, sizeof reason) == 1 && says(reason, "used already"), "it is too late then");
    if (count == 6) {
        receive(arguments[4], std::strtoull(arguments[5], nullptr, 10));
        return 0;
    }
    if (count > 3) {
        time_pairs();
        return 0;
    }
    statistics();
    out_of_memory();
    private_pools();
    spare_pools();
    spare_foreign_pools();
    nested_pools();
    ended_pools();
    history();
    annotations();
    private_pool_statistics();
    accelerator();
    devices();
    current_device();
    visitors_without_memory();
    forked_child();
    other_process(arguments);
    threads();
    std::puts("every check holds");
    return 0;
}
