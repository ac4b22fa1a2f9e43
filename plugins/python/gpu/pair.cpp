// Times pairs of an allocation and a free through PyTorch's c10::Allocator, for pair.py: Python's own calls would take longer than these.

#include <c10/core/Allocator.h>

#include <chrono>

// Returns the nanoseconds that a pair takes.
extern "C" __attribute__((visibility("default"))) double pair_time(size_t size, size_t count) {
  c10::Allocator* const allocator = c10::GetAllocator(c10::DeviceType::CUDA);
  const auto start = std::chrono::steady_clock::now();
  for (size_t each = 0; each < count; ++each) {
    const auto block = allocator->allocate(size);
  }
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
  return took.count() / static_cast<double>(count);
}
