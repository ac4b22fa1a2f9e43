// Allocating and freeing, and what happens when memory is short.

#include "allocator.h"

#include <c10/core/impl/GPUTrace.h>

#include <dlfcn.h>

namespace gpu_vmm {

namespace {

void delete_block(void* address) {
  allocator().raw_delete(address);
}

void trace_python(void* address, bool is_allocated) {
  const c10::impl::PyInterpreter* interpreter = c10::impl::GPUTrace::get_trace();
  if (C10_UNLIKELY(interpreter != nullptr)) {
    const auto number = reinterpret_cast<uintptr_t>(address);
    if (is_allocated) {
      (*interpreter)->trace_gpu_memory_allocation(c10::kCUDA, number);
    } else {
      (*interpreter)->trace_gpu_memory_deallocation(c10::kCUDA, number);
    }
  }
}

// Returns the current device as PyTorch knows it. It may have no context yet.
c10::DeviceIndex runtime_device() {
  c10::DeviceIndex device = 0;
  const auto error = c10::cuda::GetDevice(&device);
  // The macro calls a function also for a success.
  if (C10_UNLIKELY(error != cudaSuccess)) {
    C10_CUDA_CHECK(error);
  }
  return device;
}

using ContextDevice = int (*)(int*);

// Returns the driver's cuCtxGetDevice, or null if the current context says nothing about the current device: before CUDA 12.0, setting
// a device did not make its context current.
ContextDevice context_device() {
  int version = 0;
  if (cudaRuntimeGetVersion(&version) != cudaSuccess || version < 12000) {
    return nullptr;
  }
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  return driver == nullptr ? nullptr : reinterpret_cast<ContextDevice>(dlsym(driver, "cuCtxGetDevice"));
}

// Returns the one of `count` devices to allocate on. On the host of two H100 GPUs the runtime takes 61 to 71 ns to return it, as long as
// most of an allocation, and the driver 16 to 21 ns.
c10::DeviceIndex device_for_memory(int count) {
  if (count == 1) {
    return 0;
  }
  // If a device has no context, PyTorch records it as the current one and sets it later. An allocation needs it set now.
  c10::cuda::SetTargetDevice();
  static const ContextDevice ask = context_device();
  int device = 0;
  // A thread may have no context yet. The driver's handle of a device is the runtime's number.
  if (C10_LIKELY(ask != nullptr && ask(&device) == 0)) {
    return static_cast<c10::DeviceIndex>(device);
  }
  return runtime_device();
}

// Returns whether memory or addresses are short. PyTorch's callers get the same error for both.
bool is_short(gpu_vmm_status status) {
  return status == GPU_VMM_OUT_OF_MEMORY || status == GPU_VMM_OUT_OF_ADDRESS_SPACE;
}

} // namespace

c10::DataPtr GpuVmmAllocator::allocate(size_t size) {
  constexpr size_t exabyte = size_t{1} << 60;
  TORCH_CHECK_WITH(OutOfMemoryError, size < exabyte, "CUDA out of memory. Tried to allocate more than 1EB memory.");
  if (C10_UNLIKELY(size == 0)) {
    const auto device = count_ == 1 ? c10::DeviceIndex{0} : runtime_device();
    return {nullptr, nullptr, &delete_block, c10::Device(c10::DeviceType::CUDA, device)};
  }
  const auto device = device_for_memory(count_);
  void* address = take(device, size, c10::cuda::getCurrentCUDAStream(device));
  return {address, address, &delete_block, c10::Device(c10::DeviceType::CUDA, device)};
}

c10::DeleterFnPtr GpuVmmAllocator::raw_deleter() const {
  return &delete_block;
}

void GpuVmmAllocator::copy_data(void* to, const void* from, size_t size) const {
  C10_CUDA_CHECK(cudaMemcpy(to, from, size, cudaMemcpyKind::cudaMemcpyDeviceToDevice));
}

void* GpuVmmAllocator::raw_alloc(size_t size) {
  if (size == 0) {
    return nullptr;
  }
  const auto device = device_for_memory(count_);
  return take(device, size, c10::cuda::getCurrentCUDAStream(device));
}

void* GpuVmmAllocator::raw_alloc_with_stream(size_t size, cudaStream_t stream) {
  return size == 0 ? nullptr : take(device_for_memory(count_), size, stream);
}

void GpuVmmAllocator::raw_delete(void* address) {
  if (address != nullptr) {
    give(address);
  }
}

C10_NOINLINE void* GpuVmmAllocator::take(c10::DeviceIndex device, size_t size, cudaStream_t stream) {
  gpu_vmm_torch_block block;
  const Device& of = at(device);
  if (C10_UNLIKELY(history_.is_on() || of.diversions.any() || !of.begun.load(std::memory_order_relaxed))) {
    take_recorded(device, size, stream, block);
  } else {
    const auto status = library.gpu_vmm_torch_allocate(device, size, stream, nullptr, &block);
    if (C10_UNLIKELY(status != GPU_VMM_OK)) {
      take_otherwise(status, device, size, stream, Context(), block);
    }
  }
  tell_profiler(block, 1);
  void* address = reinterpret_cast<void*>(block.address);
  trace_python(address, true);
  return address;
}

// Sets the limit of a device that PYTORCH_ALLOC_CONF states, as PyTorch's own allocator does, unless the program has set one.
void GpuVmmAllocator::begin(c10::DeviceIndex device) {
  Device& of = at(device);
  if (of.begun.load()) {
    return;
  }
  // Other threads' first requests wait until the limit holds.
  Guard guard(of.limiting);
#if GPU_VMM_TORCH >= 210
  const double fraction = torch_allocator::CUDAAllocatorConfig::per_process_memory_fraction();
  if (!of.begun.load() && fraction < 1 && !of.has_limit()) {
    limit(fraction, device);
    of.rejects.store(fraction != initial_fraction_);
  }
#endif
  of.begun.store(true);
}

// Allocates when calls are recorded or diverted to private pools, and a device's first block.
void GpuVmmAllocator::take_recorded(
    c10::DeviceIndex device, size_t size, cudaStream_t stream, gpu_vmm_torch_block& block) {
  begin(device);
  const auto context = history_.gather(RecordContext::STATE);
  MempoolId_t pool;
  if (!at(device).diversions.find(stream, pool)) {
    const auto status = library.gpu_vmm_torch_allocate(device, size, stream, nullptr, &block);
    if (status != GPU_VMM_OK) {
      take_otherwise(status, device, size, stream, context, block);
    }
  } else if (foreign_.allocate(device, pool, size, stream, block)) {
    check(library.gpu_vmm_torch_count(&block, true));
  } else {
    const gpu_vmm_torch_mempool_id id{pool.first, pool.second};
    const auto status = library.gpu_vmm_torch_allocate(device, size, stream, &id, &block);
    if (is_short(status)) {
      throw_out_of_memory(device, size, stream, context);
    }
    check(status);
  }
  if (history_.is_on()) {
    history_.allocated(block, context);
  }
}

// Allocates after everything that frees memory, if `status` says that memory is short.
void GpuVmmAllocator::take_otherwise(
    gpu_vmm_status status, c10::DeviceIndex device, size_t size, cudaStream_t stream, const Context& context,
    gpu_vmm_torch_block& block) {
  if (!is_short(status)) {
    check(status);
  }
  at(device).statistics.retried();
  // Libraries register callbacks that free memory of theirs.
  auto* callbacks = c10::FreeCudaMemoryCallbacksRegistry();
  for (const auto& name : callbacks->Keys()) {
    callbacks->Create(name)->Execute();
  }
  status = library.gpu_vmm_torch_allocate_at_last(device, size, stream, &block);
  if (is_short(status)) {
    if (foreign_.allocate_spare(device, size, stream, block)) {
      check(library.gpu_vmm_torch_count(&block, true));
      return;
    }
    throw_out_of_memory(device, size, stream, context);
  }
  check(status);
}

#if GPU_VMM_TORCH >= 212
// Refuses a request that a limit does not allow which PYTORCH_ALLOC_CONF got after CUDA was initialized, with throw_on_cudamalloc_oom. As
// in PyTorch's own allocator (2.15, on a GPU), other limits come first and are a lack of memory; this is a rejection, which has observers
// of its own, whose exceptions do not replace the error.
void GpuVmmAllocator::throw_rejected(
    c10::DeviceIndex device, size_t size, size_t held, size_t total, const std::string& account) {
  at(device).statistics.rejected();
  std::vector<torch_allocator::OomRejectionObserver> observers;
  {
    Guard guard(observers_mutex_);
    observers = rejection_observers_;
  }
  for (const auto& observer : observers) {
    try {
      observer(device, rounded(size), held, total);
    } catch (const std::exception& error) {
      TORCH_WARN("gpu-vmm: an observer of rejections failed: ", error.what());
    } catch (...) {
      TORCH_WARN("gpu-vmm: an observer of rejections failed");
    }
  }
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "CUDA out of memory. Allocation was preemptively rejected because it would exceed ",
      "per_process_memory_fraction limit. Requested size: ", format_size(size), ". GPU ", static_cast<int>(device),
      " has a total capacity of ", format_size(total), ", and PyTorch holds ", format_size(held), ". gpu-vmm: ", account);
}
#endif

void GpuVmmAllocator::throw_out_of_memory(
    c10::DeviceIndex device, size_t size, cudaStream_t stream, const Context& context) {
  const std::string account = library.gpu_vmm_last_error();
  Device& of = at(device);
  const auto [free, total] = getMemoryInfo(device);
  const auto now = usage(device);
  const size_t allocated = allocated_bytes(now), held = now.held;
  std::string allowed;
  size_t limit = total;
  [[maybe_unused]] bool is_limited = false;
  {
    Guard guard(of.mutex);
    if (of.fraction) {
      limit = static_cast<size_t>(*of.fraction * static_cast<double>(total));
      allowed = format_size(limit) + " allowed; ";
      is_limited = held + (size + now.page - 1) / now.page * now.page > limit;
    }
  }
#if GPU_VMM_TORCH >= 212
  if (is_limited && of.rejects.load() && torch_allocator::CUDAAllocatorConfig::throw_on_cudamalloc_oom()) {
    throw_rejected(device, size, held, total, account);
  }
#endif
  history_.out_of_memory(device, rounded(size), stream, free, context);
  of.statistics.out_of_memory();
  c10::reportOutOfMemoryToProfiler(
      static_cast<int64_t>(rounded(size)), allocated, held, c10::Device(c10::DeviceType::CUDA, device));
  std::vector<torch_allocator::OutOfMemoryObserver> observers;
  {
    Guard guard(observers_mutex_);
    observers = observers_;
  }
  // Without a lock: an observer may wait for Python's.
  for (const auto& observer : observers) {
    observer(device, rounded(size), limit, free);
  }
  const size_t kept = kept_in_private_pools(device);
  const std::string in_pools =
      kept == 0 ? "" : "with " + format_size(kept) + " allocated in private pools (e.g., CUDA Graphs), ";
  const size_t used = allocated + kept;
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", format_size(size), ". GPU ", static_cast<int>(device),
      " has a total capacity of ", format_size(total), " of which ", format_size(free), " is free. ", allowed,
      "Of the allocated memory ", format_size(used), " is allocated by PyTorch, ", in_pools, "and ",
      format_size(held > used ? held - used : 0), " is reserved by PyTorch but unallocated. gpu-vmm: ", account);
}

void GpuVmmAllocator::give(void* address) {
  const auto number = reinterpret_cast<uint64_t>(address);
  if (C10_UNLIKELY(history_.is_on())) {
    record_freed(number);
  }
  gpu_vmm_torch_block block;
  const auto status = library.gpu_vmm_torch_deallocate(number, &block);
  if (C10_UNLIKELY(status != GPU_VMM_OK) && !give_otherwise(status, number, block)) {
    return;
  }
  tell_profiler(block, -1);
  trace_python(address, false);
}

void GpuVmmAllocator::record_freed(uint64_t address) {
  auto context = history_.gather(RecordContext::ALL);
  gpu_vmm_torch_block block;
  if (find(address, block) && block.address == address) {
    history_.freed(block, std::move(context));
  }
}

// Returns false if nothing was freed.
bool GpuVmmAllocator::give_otherwise(gpu_vmm_status status, uint64_t address, gpu_vmm_torch_block& block) {
  if (status == GPU_VMM_FORKED) {
    // The memory is the parent's.
    return false;
  }
  if (status == GPU_VMM_NOT_FOUND) {
    TORCH_CHECK(foreign_.free(address, block), "invalid device pointer: ", reinterpret_cast<void*>(address));
    check(library.gpu_vmm_torch_count(&block, false));
  } else {
    // The block is freed; the pool reuses its memory only when the device is idle.
    TORCH_WARN("gpu-vmm: ", library.gpu_vmm_last_error());
  }
  return true;
}

void GpuVmmAllocator::report(const gpu_vmm_torch_block& block, int64_t size) {
  const auto device = static_cast<c10::DeviceIndex>(block.device);
  const auto now = usage(device);
  c10::reportMemoryUsageToProfiler(
      reinterpret_cast<void*>(block.address), size, allocated_bytes(now), now.held,
      c10::Device(c10::DeviceType::CUDA, device));
}

void GpuVmmAllocator::recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  // Memory of other allocators, such as another process's, has its own rules for reuse.
  if (data.get() == nullptr || data.get_deleter() != &delete_block) {
    return;
  }
  const auto status = library.gpu_vmm_torch_record_use(reinterpret_cast<uint64_t>(data.get()), stream.stream());
  gpu_vmm_torch_block block;
  if (status == GPU_VMM_NOT_FOUND && foreign_.find(reinterpret_cast<uint64_t>(data.get()), block)) {
    // The block may serve another request at once, so the stream's work is waited for here.
    C10_CUDA_CHECK(cudaStreamSynchronize(stream.stream()));
    return;
  }
  check(status);
}

void GpuVmmAllocator::recordStream(const c10::DataPtr& data, c10::Stream stream) {
  recordStream(data, c10::cuda::CUDAStream(stream));
}

bool GpuVmmAllocator::find(uint64_t address, gpu_vmm_torch_block& block) {
  return library.gpu_vmm_torch_find(address, &block) == GPU_VMM_OK || foreign_.find(address, block);
}

void* GpuVmmAllocator::getBaseAllocation(void* address, size_t* size) {
  gpu_vmm_torch_block block;
  TORCH_CHECK(find(reinterpret_cast<uint64_t>(address), block), "invalid device pointer: ", address);
  if (size != nullptr) {
    *size = block.capacity;
  }
  return reinterpret_cast<void*>(block.address);
}

void GpuVmmAllocator::cacheInfo(c10::DeviceIndex device, size_t* largest) {
  // Any free memory of the pool serves a request of any size, at new addresses.
  const auto [free, total] = getMemoryInfo(device);
  const auto now = usage(device);
  const size_t used = allocated_bytes(now);
  *largest = std::max({*largest, free, now.held > used ? now.held - used : 0});
}

void GpuVmmAllocator::emptyCache(MempoolId_t pool) {
  // PyTorch names a torch.cuda.MemPool that has ended, in its destructor.
  if (pool != MempoolId_t{0, 0}) {
    const auto status = library.gpu_vmm_torch_collect_ended();
    if (status != GPU_VMM_FORKED) {
      check(status);
    }
    return;
  }
  for (int device = 0; device < count_; ++device) {
    devices_[device].statistics.synchronized();
  }
  check(library.gpu_vmm_torch_collect());
}

void GpuVmmAllocator::emptyCache() {
  emptyCache({0, 0});
}

void GpuVmmAllocator::attachOutOfMemoryObserver(torch_allocator::OutOfMemoryObserver observer) {
  Guard guard(observers_mutex_);
  observers_.push_back(std::move(observer));
}

#if GPU_VMM_TORCH >= 212
void GpuVmmAllocator::attachOomRejectionObserver(torch_allocator::OomRejectionObserver observer) {
  Guard guard(observers_mutex_);
  rejection_observers_.push_back(std::move(observer));
}
#endif

} // namespace gpu_vmm
