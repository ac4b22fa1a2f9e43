// The statistics of one device, by PyTorch's rules.
#pragma once

#include "library.h"
#include "spin_lock.h"
#include "torch_types.h"

#include <mutex>

namespace gpu_vmm {

// The memory of private pools with an allocator of their own, which libgpu_vmm_c does not know.
struct ForeignUsage {
  size_t segments = 0;
  size_t bytes = 0;
};

class alignas(128) Statistics {
 public:
  void allocated(const gpu_vmm_torch_block& block) {
    std::lock_guard<SpinLock> guard(lock_);
    for (size_t kind : {size_t{0}, kind_of(block)}) {
      stats_.allocation[kind].increase(1);
      stats_.allocated_bytes[kind].increase(rounded(block.size));
      stats_.requested_bytes[kind].increase(block.size);
    }
  }

  void freed(const gpu_vmm_torch_block& block) {
    std::lock_guard<SpinLock> guard(lock_);
    for (size_t kind : {size_t{0}, kind_of(block)}) {
      stats_.allocation[kind].decrease(1);
      stats_.allocated_bytes[kind].decrease(rounded(block.size));
      stats_.requested_bytes[kind].decrease(block.size);
    }
  }

  void retried();
  void synchronized();
  void out_of_memory();

  // The bytes that are allocated now.
  size_t allocated_bytes();

  DeviceStats read(const gpu_vmm_torch_usage& usage, const ForeignUsage& foreign);
  void reset_accumulated(const gpu_vmm_torch_usage& usage);
  void reset_peak(const ForeignUsage& foreign);

 private:
  // The index of a block's pool in PyTorch's arrays: 1 for small blocks, 2 for large ones. A block of a private pool may serve a
  // smaller request, but lies where its capacity belongs.
  static size_t kind_of(const gpu_vmm_torch_block& block) {
    return block.capacity <= kSmall ? 1 : 2;
  }

  SpinLock lock_;
  // Kept on each call: allocation, allocated_bytes, requested_bytes and the counters. The others follow from them and from the
  // library's amounts. Memory that waits for other streams counts as active, as in PyTorch; peaks of it are not recorded.
  DeviceStats stats_;
  // The counters of the library at the last reset.
  uint64_t created_ = 0;
  uint64_t released_ = 0;
  size_t foreign_peak_ = 0;
};

} // namespace gpu_vmm
