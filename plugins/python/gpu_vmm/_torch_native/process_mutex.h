// A mutex that a forked child does not wait for: a thread of the parent, which the child lacks, may have held it at the fork.
#pragma once

#include <c10/util/Exception.h>

#include <atomic>
#include <cstdint>
#include <mutex>

namespace gpu_vmm {

// The number of the process: each fork adds one in the child.
extern std::atomic<uint64_t> process_number;

class ProcessMutex {
 public:
  // Whether this process may lock it: no other process has. Destructors ask before they lock it.
  bool is_ours() {
    uint64_t owner = 0;
    const uint64_t ours = process_number.load(std::memory_order_relaxed);
    return owner_.compare_exchange_strong(owner, ours, std::memory_order_relaxed) || owner == ours;
  }

  // Throws in a forked child of the process that has locked it first.
  void lock() {
    TORCH_CHECK(
        is_ours(), "gpu-vmm: this process was forked from one that uses PyTorch's memory of GPUs, and cannot use it; start it by ",
        "another method, such as spawn");
    mutex_.lock();
  }

  void unlock() {
    mutex_.unlock();
  }

 private:
  // The number of the process that has locked it; zero for none.
  std::atomic<uint64_t> owner_{0};
  std::mutex mutex_;
};

using Guard = std::lock_guard<ProcessMutex>;

} // namespace gpu_vmm
