// What the parts of the allocator's test share.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

namespace native = c10::cuda::CUDACachingAllocator;
using c10::cuda::MempoolId_t;

inline const char *now = "the start";

inline void demand(bool holds, const char *what) {
    if (!holds) {
        std::fprintf(stderr, "failed in %s: %s\n", now, what);
        std::exit(1);
    }
}

inline bool says(const std::string &text, const char *part) { return text.find(part) != std::string::npos; }

// PyTorch's allocator is the installed one from here on.
inline native::CUDAAllocator &installed() { return *native::get(); }

inline c10::DataPtr tensor(size_t size) { return c10::GetAllocator(c10::DeviceType::CUDA)->allocate(size); }

inline auto all(const c10::CachingDeviceAllocator::DeviceStats &stats) { return stats.allocated_bytes[0].current; }

inline void record(bool enabled, native::CreateContextFn recorder, size_t entries, native::RecordContext when) {
#if GPU_VMM_TORCH >= 211
    native::recordHistory(enabled, recorder, entries, when, true, {});
#elif GPU_VMM_TORCH >= 208
    native::recordHistory(enabled, recorder, entries, when, true);
#else
    native::recordHistory(enabled, recorder, entries, when);
#endif
}

inline std::shared_ptr<c10::GatheredContext> gather() { return std::make_shared<c10::GatheredContext>(); }
