// The private pools that requests of a device are diverted to, by a filter of streams for each: PyTorch's for a graph accepts the
// streams that take part in its capture, that for a torch.cuda.MemPool all streams of one thread.
#pragma once

#include "library.h"
#include "process_mutex.h"
#include "torch_types.h"

#include <atomic>
#include <functional>
#include <vector>

namespace gpu_vmm {

class Diversions {
 public:
  using Filter = std::function<bool(cudaStream_t)>;

  // Returns false if requests are diverted to this pool already.
  bool begin(MempoolId_t id, Filter filter);
  // Returns false if no requests are diverted to this pool.
  bool end(MempoolId_t id);

  // Most programs divert nothing most of the time, and pay for no more than this.
  bool any() const {
    return count_.load(std::memory_order_relaxed) > 0;
  }
  // Finds the pool for a request. If several filters accept the stream, the one that began last decides, as in PyTorch 2.11: the inner
  // one of nested pools serves.
  bool find(cudaStream_t stream, MempoolId_t& id);

 private:
  std::atomic<int> count_{0};
  ProcessMutex mutex_;
  std::vector<std::pair<MempoolId_t, Filter>> list_;
};

} // namespace gpu_vmm
