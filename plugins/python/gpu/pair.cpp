// Times pairs of an allocation and a free through PyTorch's c10::Allocator, for pair.py: Python's own calls would take longer than these.

#include <c10/core/Allocator.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAStream.h>

#include <chrono>

namespace {

template <typename Work>
double time_of(size_t count, Work work) {
  const auto start = std::chrono::steady_clock::now();
  for (size_t each = 0; each < count; ++each) {
    work();
  }
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
  return took.count() / static_cast<double>(count);
}

// Makes the compiler compute a value that nothing uses.
template <typename Value>
void use(const Value& value) {
  asm volatile("" : : "g"(&value) : "memory");
}

void no_deleter(void*) {}

} // namespace

// Returns the nanoseconds that a pair takes.
extern "C" __attribute__((visibility("default"))) double pair_time(size_t size, size_t count) {
  c10::Allocator* const allocator = c10::GetAllocator(c10::DeviceType::CUDA);
  return time_of(count, [=] { const auto block = allocator->allocate(size); });
}

// Returns the nanoseconds of what every allocator of PyTorch does in a pair, without an allocation: it takes the current stream, checks
// for profilers and tracers twice, and makes the pointer.
extern "C" __attribute__((visibility("default"))) double least_time(size_t count) {
  static char memory;
  const auto check = [] {
    use(c10::memoryProfilingEnabled());
    use(c10::impl::GPUTrace::get_trace());
  };
  return time_of(count, [=] {
    use(c10::cuda::getCurrentCUDAStream(0).stream());
    check();
    const c10::DataPtr block{&memory, &memory, &no_deleter, c10::Device(c10::DeviceType::CUDA, 0)};
    use(block);
    check();
  });
}
