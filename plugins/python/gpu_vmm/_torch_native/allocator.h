// PyTorch's allocator on gpu-vmm: every virtual function of c10::cuda::CUDACachingAllocator::CUDAAllocator.
//
// | file | subject |
// |---|---|
// | allocate.cpp | allocating and freeing, and what happens when memory is short |
// | pools.cpp | private pools, captures and checkpoints |
// | report.cpp | statistics, snapshots, history |
// | devices.cpp | limits, access between devices, copies |
// | share.cpp | tensors in other processes |
// | install.cpp | the functions that Python calls |
// | class.cpp | all of them, as the builder compiles them |
#pragma once

#include "diversions.h"
#include "foreign.h"
#include "forward.h"
#include "history.h"
#include "library.h"
#include "process_mutex.h"
#include "statistics.h"
#include "torch_types.h"

#include <optional>
#include <unordered_set>

namespace gpu_vmm {

class GpuVmmAllocator final : public Base {
 public:
  // allocate.cpp
  c10::DataPtr allocate(size_t size) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, size_t size) const override;
  void* raw_alloc(size_t size) override;
  void* raw_alloc_with_stream(size_t size, cudaStream_t stream) override;
  void raw_delete(void* address) override;
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override;
  void recordStream(const c10::DataPtr& data, c10::Stream stream);
  void* getBaseAllocation(void* address, size_t* size) override;
  void cacheInfo(c10::DeviceIndex device, size_t* largest) override;
  void emptyCache(MempoolId_t pool);
  void emptyCache();
  void attachOutOfMemoryObserver(torch_allocator::OutOfMemoryObserver observer) override;
#if GPU_VMM_TORCH >= 212
  void attachOomRejectionObserver(torch_allocator::OomRejectionObserver observer) override;
#endif

  // pools.cpp
  void beginAllocateToPool(c10::DeviceIndex device, MempoolId_t id, std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, MempoolId_t id) override;
  void releasePool(c10::DeviceIndex device, MempoolId_t id) override;
  int getPoolUseCount(c10::DeviceIndex device, MempoolId_t id);
  void createOrIncrefPool(c10::DeviceIndex device, MempoolId_t id, std::shared_ptr<CUDAAllocator> allocator);
  void createOrIncrefPool(c10::DeviceIndex device, MempoolId_t id, CUDAAllocator* allocator);
  void ensureExistsAndIncrefPool(c10::DeviceIndex device, MempoolId_t id);
  void setUseOnOOM(c10::DeviceIndex device, MempoolId_t id, bool use_on_oom);
  void setUseOnOOM(c10::DeviceIndex device, MempoolId_t id);
  void setNoSplit(c10::DeviceIndex device, MempoolId_t id);
  bool checkPoolLiveAllocations(c10::DeviceIndex device, MempoolId_t id, const std::unordered_set<void*>& expected) override;
  std::shared_ptr<torch_allocator::AllocatorState> getCheckpointState(c10::DeviceIndex device, MempoolId_t id) override;
  torch_allocator::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device, std::shared_ptr<torch_allocator::AllocatorState> state) override;

  // report.cpp
  DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  SnapshotInfo snapshot(MempoolId_t pool, bool include_traces);
  SnapshotInfo snapshot(MempoolId_t pool);
  SnapshotInfo snapshot();
  bool isHistoryEnabled() override;
  void recordHistory(
      bool enabled, CreateContextFn recorder, size_t max_entries, RecordContext when, bool clear,
      const std::vector<std::string>& skipped);
  void recordHistory(bool enabled, CreateContextFn recorder, size_t max_entries, RecordContext when, bool clear);
  void recordHistory(bool enabled, CreateContextFn recorder, size_t max_entries, RecordContext when);
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& values) override;
  void pushCompileContext(std::string& text);
  void popCompileContext();
  bool supportsUserMetadata();
  void setUserMetadata(const std::string& text);
  std::string getUserMetadata();
  void annotateMemory(const void* address, const std::string& text);
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* address);
  void attachAllocatorTraceTracker(torch_allocator::AllocatorTraceTracker tracker) override;

  // devices.cpp
  void init(int count) override;
  bool initialized() override;
  void enable(bool value);
  bool isEnabled() const;
  double getMemoryFraction(c10::DeviceIndex device);
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device);
#if GPU_VMM_TORCH >= 210
  std::vector<torch_allocator::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device);
#endif
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex owner) override;
  cudaError_t memcpyAsync(
      void* to, int to_device, const void* from, int from_device, size_t size, cudaStream_t stream, bool peers) override;
  std::string name() override;

  // share.cpp
  torch_allocator::ShareableHandle shareIpcHandle(void* address) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;

 private:
  struct Device {
    Statistics statistics;
    Diversions diversions;
    // True after the first request.
    std::atomic<bool> begun{false};
    // True once the device has had a private pool.
    std::atomic<bool> has_private_pools{false};
    // Held while a limit is set, so that limits take effect in the order of the calls. `mutex` is taken inside it.
    ProcessMutex limiting;
    // True if requests beyond the limit can be rejections.
    std::atomic<bool> rejects{false};
    ProcessMutex mutex;
    std::optional<double> fraction;

    bool has_limit() {
      Guard guard(mutex);
      return fraction.has_value();
    }
  };

  C10_ALWAYS_INLINE Device& at(c10::DeviceIndex device) {
    TORCH_CHECK(0 <= device && device < count_, "Invalid device argument ", static_cast<int>(device), ": did you call init?");
    return devices_[device];
  }
  void* take(c10::DeviceIndex device, size_t size, cudaStream_t stream);
  void take_recorded(c10::DeviceIndex device, size_t size, cudaStream_t stream, gpu_vmm_torch_block& block);
  void take_otherwise(
      gpu_vmm_status status, c10::DeviceIndex device, size_t size, cudaStream_t stream, const Context& context,
      gpu_vmm_torch_block& block);
  void begin(c10::DeviceIndex device);
  void limit(double fraction, c10::DeviceIndex device);
#if GPU_VMM_TORCH >= 212
  [[noreturn]] void throw_rejected(
      c10::DeviceIndex device, size_t size, size_t held, size_t total, const std::string& account);
#endif
  [[noreturn]] void throw_out_of_memory(c10::DeviceIndex device, size_t size, cudaStream_t stream, const Context& context);
  void give(void* address);
  bool find(uint64_t address, gpu_vmm_torch_block& block);
  bool give_otherwise(gpu_vmm_status status, uint64_t address, gpu_vmm_torch_block& block);
  void record_freed(uint64_t address);
  // Tells PyTorch's profiler of a block that is allocated, or freed if `sign` is -1.
  C10_ALWAYS_INLINE void tell_profiler(const gpu_vmm_torch_block& block, int64_t sign) {
    if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
      report(block, sign * static_cast<int64_t>(rounded(block.size)));
    }
  }
  void report(const gpu_vmm_torch_block& block, int64_t size);
  gpu_vmm_torch_usage usage(c10::DeviceIndex device);
  std::vector<SegmentInfo> segments(c10::DeviceIndex device, MempoolId_t pool);
  size_t kept_in_private_pools(c10::DeviceIndex device);

  std::atomic<int> count_{0};
  // The limit of PYTORCH_ALLOC_CONF when CUDA was initialized.
  double initial_fraction_ = 1;
  std::atomic<bool> enabled_{true};
  Device devices_[kDevices];
  History history_;
  Foreign foreign_;
  ProcessMutex observers_mutex_;
  std::vector<torch_allocator::OutOfMemoryObserver> observers_;
#if GPU_VMM_TORCH >= 212
  std::vector<torch_allocator::OomRejectionObserver> rejection_observers_;
#endif
  ProcessMutex imported_mutex_;
  std::unordered_map<std::string, std::weak_ptr<void>> imported_;
};

// The process's allocator, which lives until the process ends: PyTorch frees tensors while it ends.
GpuVmmAllocator& allocator();

} // namespace gpu_vmm
