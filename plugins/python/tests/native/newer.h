// Tests of what PyTorch has added to its allocator since 2.9. A test of a version that lacks the function does nothing.
#pragma once

#include "checks.h"

#include <c10/cuda/CUDAStream.h>

#include <array>
#include <stdexcept>
#include <vector>

// Must run before the first allocation. run.py sets the variable.
inline void configured_limit() {
#if GPU_VMM_TORCH >= 210
    now = "the limit of PYTORCH_ALLOC_CONF";
    demand(installed().getMemoryFraction(0) == 1, "it is not set yet");
    tensor(512);
    demand(installed().getMemoryFraction(0) == 0.5, "the first allocation sets it");
    native::setMemoryFraction(0.75, 0);
    tensor(512);
    demand(installed().getMemoryFraction(0) == 0.75, "the program's own limit stays");
    native::setMemoryFraction(1, 0);
    native::emptyCache();
    native::resetPeakStats(0);
    native::resetAccumulatedStats(0);
#endif
}

// Returns whether the segments of a snapshot are numbered in their order.
template <class Segment>
auto are_numbered(const std::vector<Segment> &segments, int) -> decltype(segments[0].registration_counter, bool()) {
    for (size_t place = 0; place < segments.size(); ++place) {
        if (segments[place].registration_counter != static_cast<int64_t>(place)) {
            return false;
        }
    }
    return true;
}

template <class Segment>
bool are_numbered(const std::vector<Segment> &, long) {
    return true;
}

#if GPU_VMM_TORCH >= 212
// Observers stay attached.
inline std::array<size_t, 4> rejected;
inline int errors;

// Allocates until memory is short, and returns the error's text.
inline std::string fill() {
    std::vector<c10::DataPtr> full;
    try {
        for (;;) {
            full.push_back(tensor(7 << 20));
        }
    } catch (const c10::OutOfMemoryError &error) {
        return error.what();
    }
}
#endif

// In a process of its own: the limit must be set between the start of CUDA and the first allocation.
inline void rejections() {
#if GPU_VMM_TORCH >= 212
    now = "requests that are rejected";
    native::attachOomRejectionObserver([](int64_t, size_t, size_t, size_t) { throw std::runtime_error("the observer's own"); });
    native::attachOomRejectionObserver([](int64_t device, size_t size, size_t held, size_t total) {
        rejected = {static_cast<size_t>(device), size, held, total};
    });
    native::attachOutOfMemoryObserver([](int64_t, size_t, size_t, size_t) { errors += 1; });
    native::setAllocatorSettings("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.015625"); // 64 MiB
    const auto text = fill();
    demand(says(text, "preemptively rejected") && says(text, "Requested size: 7.00 MiB") && says(text, "the pool holds"), text.c_str());
    demand(rejected[0] == 0 && rejected[1] == 7 << 20 && rejected[3] == size_t{4} << 30, "the observer learns of it after one that fails");
    demand(rejected[2] > 50 << 20 && rejected[2] <= 64 << 20, "and of the memory that is held");
    auto stats = native::getDeviceStats(0);
    demand(stats.num_oom_rejections == 1 && stats.num_ooms == 0 && errors == 0, "it is no lack of memory");
    native::setAllocatorSettings("throw_on_cudamalloc_oom:False,per_process_memory_fraction:0.015625");
    demand(says(fill(), "Tried to allocate 7.00 MiB") && errors == 1, "nothing is rejected without the setting");
    native::setAllocatorSettings("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.015625");
    native::setMemoryFraction(1.0 / 64, 0);
    demand(says(fill(), "Tried to allocate 7.00 MiB") && errors == 2, "nor beyond a limit of the program's own");
    stats = native::getDeviceStats(0);
    demand(stats.num_oom_rejections == 1 && stats.num_ooms == 2, "each is counted once");
    native::resetAccumulatedStats(0);
    demand(native::getDeviceStats(0).num_oom_rejections == 0, "the counter is reset");
#endif
}

inline void annotations() {
#if GPU_VMM_TORCH >= 212
    now = "annotations";
    record(true, gather, 10, native::RecordContext::ALL);
    auto block = tensor(3000);
    demand(native::getContextForPointer(block.get()) != nullptr, "a live block has a context");
    demand(native::getContextForPointer(&block) == nullptr, "other memory has none");
#if GPU_VMM_TORCH >= 214
    demand(native::supportsUserMetadata(), "it keeps metadata");
    native::setUserMetadata("the thread's");
    native::annotateMemory(block.get(), "packed");
    native::annotateMemory(&block, "other memory");
    const auto trace = native::snapshot().device_traces.at(0);
    const auto &last = trace.back();
    demand(trace.size() == 2 && last.action_ == native::TraceEntry::ANNOTATE && last.user_metadata_ == "packed", "an entry");
    demand(last.addr_ == reinterpret_cast<size_t>(block.get()) && last.size_ == 3000 && last.context_, "of the block");
    native::setUserMetadata("");
    native::recordHistory(true, gather, 10, native::RecordContext::ALL, true, {"annotate"});
    native::annotateMemory(block.get(), "skipped");
    demand(native::snapshot().device_traces.at(0).empty(), "the entries can be left out");
#endif
    block.clear();
    record(false, nullptr, 1, native::RecordContext::NEVER);
#endif
}

inline void private_pool_statistics() {
#if GPU_VMM_TORCH >= 213
    now = "statistics of private pools";
    const MempoolId_t id{0, 11};
    demand(native::getDeviceStats(0).reserved_bytes_by_private_pools.empty(), "there is none");
    native::beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
    auto small = tensor(1000), large = tensor(3 << 20);
    tensor(5 << 20);
    native::endAllocateToPool(0, id);
    auto outside = tensor(7 << 20);
    auto of = native::getDeviceStats(0).reserved_bytes_by_private_pools;
    demand(of.size() == 1 && of.count(id) == 1, "other memory is in none");
    const auto &amounts = of.at(id);
    demand(amounts[1].current >= 1024 && amounts[1].current <= 1 << 20, "the small block");
    demand(amounts[2].current >= 8 << 20 && amounts[2].current < 12 << 20, "the large block and the freed one");
    demand(amounts[0].current == amounts[1].current + amounts[2].current, "their sum");
    small.clear();
    large.clear();
    native::releasePool(0, id);
    demand(native::getDeviceStats(0).reserved_bytes_by_private_pools.empty(), "it has ended");
    outside.clear();
    native::emptyCache();
#endif
}

// What torch.accelerator.memory calls.
inline void accelerator() {
#if GPU_VMM_TORCH >= 209
    now = "torch.accelerator";
    auto *allocator = c10::getDeviceAllocator(c10::DeviceType::CUDA);
    demand(allocator == &installed() && allocator->initialized(), "the allocator of the accelerator");
    auto block = tensor(1 << 20);
    demand(allocator->getDeviceStats(0).allocated_bytes[0].current == 1 << 20, "its statistics");
    allocator->recordStream(block, c10::cuda::getDefaultCUDAStream(0));
    block.clear();
    allocator->emptyCache();
    allocator->resetPeakStats(0);
    allocator->resetAccumulatedStats(0);
    demand(allocator->getDeviceStats(0).reserved_bytes[0].peak == 0, "they are reset");
#if GPU_VMM_TORCH >= 210
    demand(allocator->getMemoryInfo(0) == std::pair<size_t, size_t>(size_t{1} << 30, size_t{4} << 30), "the memory of the device");
#endif
#endif
}
