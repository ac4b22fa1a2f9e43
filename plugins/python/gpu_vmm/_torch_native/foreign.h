// Private pools whose memory comes from an allocator that the user passed to torch.cuda.MemPool, such as NCCL's. They are never
// suspended, and gpu-vmm does not divide their memory: each block is one allocation, which serves requests of nearly its size.
#pragma once

#include "library.h"
#include "process_mutex.h"
#include "statistics.h"
#include "torch_types.h"

#include <atomic>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

namespace gpu_vmm {

class Foreign {
 public:
  using Allocator = std::shared_ptr<torch_allocator::CUDAAllocator>;

  void create(int device, MempoolId_t id, Allocator allocator);
  // Ends a pool. Live blocks return to their allocator when they are freed.
  void release(int device, MempoolId_t id);

  // Allocates from a pool that has an allocator. Returns false if the pool has none.
  bool allocate(int device, MempoolId_t id, size_t size, void* stream, gpu_vmm_torch_block& block);
  // Sets whether the free blocks of a pool serve other requests where memory is short. Does nothing for a pool without an allocator.
  void set_use_on_oom(int device, MempoolId_t id, bool value);
  // Takes a free block of at least `size` bytes and of this stream from a pool that serves other requests. Returns false if there is none.
  bool allocate_spare(int device, size_t size, void* stream, gpu_vmm_torch_block& block);
  bool free(uint64_t address, gpu_vmm_torch_block& block);
  bool find(uint64_t address, gpu_vmm_torch_block& block);

  ForeignUsage usage(int device);
  // All blocks of a device, free ones included, by address.
  std::vector<gpu_vmm_torch_block> blocks(int device);

 private:
  struct Pool {
    Allocator allocator;
    std::multimap<std::pair<void*, uint64_t>, gpu_vmm_torch_block> free;
    bool use_on_oom = false;
  };
  struct Live {
    gpu_vmm_torch_block block;
    Allocator allocator;
  };
  using Key = std::pair<int, MempoolId_t>;

  // Takes the smallest free block of a stream with at least `size` bytes, rounded up, and at most `max`. The caller holds the lock.
  bool take(Pool& pool, size_t size, size_t max, void* stream, gpu_vmm_torch_block& block);

  // False in programs without such pools, which pay for no more than this.
  std::atomic<bool> any_{false};
  ProcessMutex mutex_;
  std::map<Key, Pool> pools_;
  std::unordered_map<uint64_t, Live> live_;
};

} // namespace gpu_vmm
