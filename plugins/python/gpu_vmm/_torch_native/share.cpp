// Tensors in other processes, for torch.multiprocessing.

#include "allocator.h"

namespace gpu_vmm {

namespace {

// PyTorch's own handles begin with other bytes.
constexpr char kPrefix[] = "gpu-vmm:";

} // namespace

torch_allocator::ShareableHandle GpuVmmAllocator::shareIpcHandle(void* address) {
  gpu_vmm_torch_block block;
  const auto number = reinterpret_cast<uint64_t>(address);
  TORCH_CHECK(find(number, block), "invalid device pointer: ", address);
  char* text = nullptr;
  uint64_t offset = 0;
  check(library.gpu_vmm_torch_export(block.address, &text, &offset));
  torch_allocator::ShareableHandle handle{static_cast<ptrdiff_t>(offset + (number - block.address)), kPrefix};
  handle.handle += text;
  library.gpu_vmm_string_free(text);
  return handle;
}

// The memory of one handle is mapped once, and until the last tensor that uses it is gone.
std::shared_ptr<void> GpuVmmAllocator::getIpcDevPtr(std::string handle) {
  constexpr size_t prefix = sizeof kPrefix - 1;
  TORCH_CHECK(
      handle.compare(0, prefix, kPrefix) == 0,
      "gpu-vmm: the sender of this CUDA tensor does not allocate from gpu-vmm; enable gpu-vmm in both processes, or in none");
  Guard guard(imported_mutex_);
  if (auto found = imported_[handle].lock()) {
    return found;
  }
  gpu_vmm_torch_imported* imported = nullptr;
  uint64_t address = 0;
  const auto status = library.gpu_vmm_torch_import(handle.c_str() + prefix, &imported, &address);
  if (status != GPU_VMM_OK) {
    imported_.erase(handle);
    check(status);
  }
  std::shared_ptr<void> memory(reinterpret_cast<void*>(address), [this, handle, imported](void*) {
    // In a forked child the memory is the parent's.
    if (!imported_mutex_.is_ours()) {
      return;
    }
    {
      Guard guard(imported_mutex_);
      auto found = imported_.find(handle);
      // Another thread may have mapped it again already.
      if (found != imported_.end() && found->second.expired()) {
        imported_.erase(found);
      }
    }
    library.gpu_vmm_torch_imported_free(imported);
  });
  imported_[handle] = memory;
  return memory;
}

} // namespace gpu_vmm
