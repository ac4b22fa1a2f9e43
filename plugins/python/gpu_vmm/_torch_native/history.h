// The history of allocations with the contexts that PyTorch's recorder gathers, the trackers of traces, and annotations.
#pragma once

#include "library.h"
#include "process_mutex.h"
#include "torch_types.h"

#include <atomic>
#include <deque>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace gpu_vmm {

inline MempoolId_t pool_of(const gpu_vmm_torch_block& block) {
  return {block.pool.first, block.pool.second};
}

class History {
 public:
  void record(
      bool enabled,
      CreateContextFn recorder,
      size_t max_entries,
      RecordContext when,
      bool clear,
      const std::vector<std::string>& skipped);
  bool is_enabled() const {
    return enabled_.load(std::memory_order_relaxed);
  }
  void attach(torch_allocator::AllocatorTraceTracker tracker);
  void annotate(const std::vector<std::pair<std::string, std::string>>& values);
  // Records a text about a live block. Does nothing before PyTorch 2.14, whose history is the first with an entry for it.
  void annotate(const gpu_vmm_torch_block& block, const std::string& text, Context context);

  // True if calls must be recorded: the only cost of a history that is off.
  bool is_on() const {
    return on_.load(std::memory_order_relaxed);
  }

  // Gathers a context, if the recorder wants one at this level. Must be called without any lock: the recorder may wait for
  // Python's.
  Context gather(RecordContext level) const;

  void allocated(const gpu_vmm_torch_block& block, Context context);
  // Must be called before the block is freed, after which another thread may allocate at its address.
  void freed(const gpu_vmm_torch_block& block, Context context);
  void out_of_memory(int device, size_t size, void* stream, size_t free, Context context);
  void snapshot(int device, size_t active, MempoolId_t pool);

  // The context of the allocation of a live block.
  Context context_of(uint64_t address);

  // Records the end of frees that waited for a stream: all whose address is not among `pending`.
  void complete(int device, const std::set<uint64_t>& pending);

  std::vector<TraceEntry> trace(int device);
  std::vector<Annotation> annotations();

 private:
  void add(
      TraceEntry::Action action, int device, uint64_t address, size_t size, void* stream, MempoolId_t pool, Context context,
      const std::string* text = nullptr);
  void update();

  std::atomic<bool> on_{false};
  std::atomic<bool> enabled_{false};
  std::atomic<RecordContext> when_{RecordContext::NEVER};
  std::atomic<CreateContextFn> recorder_{nullptr};
  ProcessMutex mutex_;
  size_t max_entries_ = 0;
  std::set<TraceEntry::Action> skipped_;
  std::vector<torch_allocator::AllocatorTraceTracker> trackers_;
  std::deque<TraceEntry> entries_[kDevices];
  std::deque<Annotation> annotations_;
  std::unordered_map<uint64_t, Context> contexts_;
  std::vector<gpu_vmm_torch_block> waiting_;
  c10::ApproximateClockToUnixTimeConverter clock_;
};

// PyTorch's labels of the calling thread.
std::string& user_metadata();
std::vector<std::string>& compile_contexts();

} // namespace gpu_vmm
