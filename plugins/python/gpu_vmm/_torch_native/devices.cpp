// Limits, access between devices, copies.

#include "allocator.h"

namespace gpu_vmm {

void GpuVmmAllocator::init(int count) {
#if GPU_VMM_TORCH >= 210
  if (!initialized()) {
    initial_fraction_ = torch_allocator::CUDAAllocatorConfig::per_process_memory_fraction();
  }
#endif
  count_ = std::max<int>(count_, std::min(count, kDevices));
#ifdef GPU_VMM_FORWARDED
  // It answers the functions that are newer than this class.
  native().init(count);
#endif
}

bool GpuVmmAllocator::initialized() {
  return count_ > 0;
}

// The pool serves all requests either way, as PyTorch's own allocator does.
void GpuVmmAllocator::enable(bool value) {
  enabled_ = value;
}

bool GpuVmmAllocator::isEnabled() const {
  return enabled_;
}

double GpuVmmAllocator::getMemoryFraction(c10::DeviceIndex device) {
  Device& of = at(device);
  Guard guard(of.mutex);
  return of.fraction.value_or(1.0);
}

void GpuVmmAllocator::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  Device& of = at(device);
  TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction:", fraction, ". Please set within [0, 1].");
  Guard guard(of.limiting);
  limit(fraction, device);
  of.rejects.store(false);
}

// The caller holds `limiting`.
void GpuVmmAllocator::limit(double fraction, c10::DeviceIndex device) {
  Device& of = at(device);
  const auto [free, total] = getMemoryInfo(device);
  check(library.gpu_vmm_torch_set_limit(device, static_cast<uint64_t>(fraction * static_cast<double>(total))));
  Guard guard(of.mutex);
  of.fraction = fraction;
}

std::pair<size_t, size_t> GpuVmmAllocator::getMemoryInfo(c10::DeviceIndex device) {
  c10::cuda::CUDAGuard guard(device);
  size_t free = 0;
  size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {free, total};
}

#if GPU_VMM_TORCH >= 210
// The pool serves all streams from the same memory, which belongs to no stream.
std::vector<torch_allocator::StreamSegmentSize> GpuVmmAllocator::getExpandableSegmentSizes(c10::DeviceIndex device) {
  const auto now = usage(device);
  std::vector<torch_allocator::StreamSegmentSize> sizes;
  sizes.emplace_back(nullptr, true, now.held_small);
  sizes.emplace_back(nullptr, false, now.held - now.held_small);
  return sizes;
}
#endif

void GpuVmmAllocator::enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex owner) {
  c10::cuda::CUDAGuard guard(device);
  const auto error = cudaDeviceEnablePeerAccess(owner, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
  } else {
    C10_CUDA_CHECK(error);
  }
  // The driver's setting covers cudaMalloc alone; mapped memory needs access of its own.
  check(library.gpu_vmm_torch_allow_access(owner, device));
}

cudaError_t GpuVmmAllocator::memcpyAsync(
    void* to, int to_device, const void* from, int from_device, size_t size, cudaStream_t stream, bool peers) {
  if (peers || to_device == from_device) {
    return cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, stream);
  }
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, size, stream);
}

std::string GpuVmmAllocator::name() {
  return "gpu-vmm";
}

} // namespace gpu_vmm
