// The functions that Python calls.

#include "allocator.h"

#include <cstring>
#include <limits>

namespace gpu_vmm {

namespace {

torch_allocator::CUDAAllocator* before = nullptr;

} // namespace

GpuVmmAllocator& allocator() {
  static auto* const instance = new GpuVmmAllocator();
  return *instance;
}

torch_allocator::CUDAAllocator& native() {
  return *before;
}

} // namespace gpu_vmm

namespace {

int answer(const std::string& text, char* reason, size_t size) {
  std::strncpy(reason, text.c_str(), size - 1);
  reason[size - 1] = '\0';
  return text.empty() ? 0 : 1;
}

} // namespace

// Makes PyTorch allocate from gpu-vmm. `path` is the file of libgpu_vmm_c. Returns 0, or writes the reason and returns 1.
extern "C" C10_EXPORT int gpu_vmm_torch_install(const char* path, char* reason, size_t size) {
  using namespace gpu_vmm;
  try {
    if (torch_allocator::get()->initialized()) {
      return answer("PyTorch's allocator has been used already", reason, size);
    }
    auto failure = load(path);
    if (!failure.empty()) {
      return answer(failure, reason, size);
    }
    // It may be installed already.
    if (torch_allocator::get() != &allocator()) {
      before = torch_allocator::get();
    }
    torch_allocator::allocator.store(&allocator());
    // What c10::GetAllocator returns. PyTorch's own has priority 1 from 2.12 on, and 0 before; a lower priority changes nothing.
    c10::SetAllocator(c10::DeviceType::CUDA, &allocator(), std::numeric_limits<uint8_t>::max());
    return answer("", reason, size);
  } catch (const std::exception& error) {
    return answer(error.what(), reason, size);
  }
}
