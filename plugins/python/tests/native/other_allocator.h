// An allocator as a user passes it to torch.cuda.MemPool, of ordinary memory. What gpu-vmm does not call does nothing. From PyTorch 2.11 on.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdlib>

class OtherAllocator : public c10::cuda::CUDACachingAllocator::CUDAAllocator {
    using Id = c10::DeviceIndex;
    using Pool = c10::cuda::MempoolId_t;
    using State = c10::cuda::CUDACachingAllocator::AllocatorState;
    using Context = c10::cuda::CUDACachingAllocator::CreateContextFn;
    using When = c10::cuda::CUDACachingAllocator::RecordContext;
    using Sizes = std::vector<c10::cuda::CUDACachingAllocator::StreamSegmentSize>;
    using Snapshot = c10::cuda::CUDACachingAllocator::SnapshotInfo;
    using Shareable = c10::cuda::CUDACachingAllocator::ShareableHandle;
    using Observer = c10::cuda::CUDACachingAllocator::OutOfMemoryObserver;
    using Tracker = c10::cuda::CUDACachingAllocator::AllocatorTraceTracker;
    using Delta = c10::cuda::CUDACachingAllocator::CheckpointDelta;

  public:
    int live = 0;

    void *raw_alloc(size_t size) override { return ++live, std::malloc(size); }
    void raw_delete(void *address) override { --live, std::free(address); }

    c10::DataPtr allocate(size_t) override { return {}; }
    void copy_data(void *, const void *, size_t) const override {}
    void *raw_alloc_with_stream(size_t, cudaStream_t) override { return nullptr; }
    void init(int) override {}
    bool initialized() override { return true; }
    double getMemoryFraction(Id) override { return 1; }
    void setMemoryFraction(double, Id) override {}
    Sizes getExpandableSegmentSizes(Id) override { return {}; }
    void enable(bool) override {}
    bool isEnabled() const override { return true; }
    void emptyCache(Pool) override {}
    void cacheInfo(Id, size_t *) override {}
    void *getBaseAllocation(void *, size_t *) override { return nullptr; }
    void recordStream(const c10::DataPtr &, c10::cuda::CUDAStream) override {}
    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(Id) override { return {}; }
    void resetAccumulatedStats(Id) override {}
    void resetPeakStats(Id) override {}
    Snapshot snapshot(Pool, bool) override { return {}; }
    void beginAllocateToPool(Id, Pool, std::function<bool(cudaStream_t)>) override {}
    void endAllocateToPool(Id, Pool) override {}
    void releasePool(Id, Pool) override {}
    Shareable shareIpcHandle(void *) override { return {}; }
    std::shared_ptr<void> getIpcDevPtr(std::string) override { return {}; }
    void recordHistory(bool, Context, size_t, When, bool, const std::vector<std::string> &) override {}
    void attachOutOfMemoryObserver(Observer) override {}
#if GPU_VMM_TORCH >= 212
    void attachOomRejectionObserver(c10::cuda::CUDACachingAllocator::OomRejectionObserver) override {}
#endif
    void attachAllocatorTraceTracker(Tracker) override {}
    void enablePeerAccess(Id, Id) override {}
    cudaError_t memcpyAsync(void *, int, const void *, int, size_t, cudaStream_t, bool) override { return cudaSuccess; }
    std::shared_ptr<State> getCheckpointState(Id, Pool) override { return {}; }
    Delta setCheckpointPoolState(Id, std::shared_ptr<State>) override { return {}; }
    std::string name() override { return "another"; }
};
