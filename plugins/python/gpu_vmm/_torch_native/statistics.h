// The statistics of one device, by PyTorch's rules.
#pragma once

#include "library.h"
#include "spin_lock.h"
#include "torch_types.h"

#include <algorithm>
#include <mutex>

namespace gpu_vmm {

// The memory of private pools with an allocator of their own, which libgpu_vmm_c does not know.
struct ForeignUsage {
  size_t segments = 0;
  size_t bytes = 0;
};

// A quantity of live blocks: of small ones and of large ones. What PyTorch shows beyond these numbers follows from them.
class Quantity {
 public:
  void add(bool large, int64_t amount) {
    current_[large] += amount;
    peak_[1 + large] = std::max(peak_[1 + large], current_[large]);
    peak_[0] = std::max(peak_[0], current());
  }

  void remove(bool large, int64_t amount) {
    current_[large] -= amount;
    freed_[large] += amount;
  }

  int64_t current() const {
    return current_[0] + current_[1];
  }

  // Writes all, small and large, in PyTorch's order.
  template <class Stats>
  void read(Stats& stats) const;
  void reset_accumulated();
  void reset_peak();

 private:
  int64_t current_[2] = {};
  int64_t freed_[2] = {};
  // What was live at the last reset of the accumulated amounts.
  int64_t before_[2] = {};
  int64_t peak_[3] = {};
};

class alignas(128) Statistics {
 public:
  void allocated(const gpu_vmm_torch_block& block) {
    const bool large = is_large(block);
    std::lock_guard<SpinLock> guard(lock_);
    blocks_.add(large, 1);
    bytes_.add(large, static_cast<int64_t>(rounded(block.size)));
    requested_.add(large, static_cast<int64_t>(block.size));
  }

  void freed(const gpu_vmm_torch_block& block) {
    const bool large = is_large(block);
    std::lock_guard<SpinLock> guard(lock_);
    blocks_.remove(large, 1);
    bytes_.remove(large, static_cast<int64_t>(rounded(block.size)));
    requested_.remove(large, static_cast<int64_t>(block.size));
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
  // A block of a private pool may serve a smaller request, but lies where its capacity belongs.
  static bool is_large(const gpu_vmm_torch_block& block) {
    return block.capacity > kSmall;
  }

  SpinLock lock_;
  // Kept on each call. The other amounts follow from these and from the library's. Memory that waits for other streams counts as
  // active, as in PyTorch; peaks of it are not recorded.
  Quantity blocks_;
  Quantity bytes_;
  Quantity requested_;
  int64_t retries_ = 0;
  int64_t synchronizations_ = 0;
  int64_t errors_ = 0;
  // The counters of the library at the last reset.
  uint64_t created_ = 0;
  uint64_t released_ = 0;
  size_t foreign_peak_ = 0;
};

} // namespace gpu_vmm
