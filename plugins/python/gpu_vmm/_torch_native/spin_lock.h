// A lock for a few additions: cheaper than std::mutex, whose unlocking is a second atomic operation.
#pragma once

#include <atomic>
#include <thread>

namespace gpu_vmm {

class SpinLock {
 public:
  void lock() {
    for (int tries = 0; held_.exchange(true, std::memory_order_acquire);) {
      while (held_.load(std::memory_order_relaxed)) {
        // The thread that holds it may have lost its processor.
        if (++tries % 64 == 0) {
          std::this_thread::yield();
        }
      }
    }
  }

  void unlock() {
    held_.store(false, std::memory_order_release);
  }

 private:
  std::atomic<bool> held_{false};
};

} // namespace gpu_vmm
