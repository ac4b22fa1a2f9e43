// The statistics of one device, by PyTorch's rules.
#pragma once

#include "library.h"
#include "process_mutex.h"
#include "torch_types.h"

#include <atomic>

namespace gpu_vmm {

// The memory of private pools with an allocator of their own, which libgpu_vmm_c does not know.
struct ForeignUsage {
  size_t segments = 0;
  size_t bytes = 0;
};

// What the library does not count. The amounts of live blocks are the library's. Memory that waits for other streams counts as active,
// as in PyTorch; peaks of it are not recorded.
class Statistics {
 public:
  void retried() {
    retries_ += 1;
  }

  void synchronized() {
    synchronizations_ += 1;
  }

  void out_of_memory() {
    errors_ += 1;
  }

  // A request that the setting throw_on_cudamalloc_oom has refused.
  void rejected() {
    rejections_ += 1;
  }

  DeviceStats read(const gpu_vmm_torch_usage& usage, const ForeignUsage& foreign);
  void reset_accumulated(const gpu_vmm_torch_usage& usage);
  void reset_peak(const ForeignUsage& foreign);

 private:
  std::atomic<int64_t> retries_{0};
  std::atomic<int64_t> synchronizations_{0};
  std::atomic<int64_t> errors_{0};
  std::atomic<int64_t> rejections_{0};
  // For all that follows.
  ProcessMutex mutex_;
  // The counters of the library at the last reset.
  uint64_t created_ = 0;
  uint64_t released_ = 0;
  size_t foreign_peak_ = 0;
};

// Returns the bytes of live blocks.
inline size_t allocated_bytes(const gpu_vmm_torch_usage& usage) {
  return usage.live.bytes.live[0] + usage.live.bytes.live[1];
}

} // namespace gpu_vmm
