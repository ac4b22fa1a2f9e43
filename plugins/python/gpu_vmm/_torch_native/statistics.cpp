#include "statistics.h"

#include <algorithm>

namespace gpu_vmm {

namespace {

// Writes all, small and large, in PyTorch's order.
template <class Stats>
void read(const gpu_vmm_torch_quantity& quantity, Stats& stats) {
  for (size_t kind = 0; kind < 2; ++kind) {
    auto& stat = stats[1 + kind];
    stat.current = static_cast<int64_t>(quantity.live[kind]);
    stat.peak = static_cast<int64_t>(quantity.peak[kind]);
    stat.allocated = static_cast<int64_t>(quantity.allocated[kind]);
    stat.freed = static_cast<int64_t>(quantity.freed[kind]);
  }
  stats[0].current = stats[1].current + stats[2].current;
  stats[0].peak = static_cast<int64_t>(quantity.peak_of_all);
  stats[0].allocated = stats[1].allocated + stats[2].allocated;
  stats[0].freed = stats[1].freed + stats[2].freed;
}

// What is active is allocated or waits for work on another stream.
void add_pending(Stat& active, const Stat& allocated, uint64_t pending) {
  active = allocated;
  active.current += static_cast<int64_t>(pending);
  active.peak = std::max(active.peak, active.current);
  active.freed -= static_cast<int64_t>(pending);
}

Stat of_memory(uint64_t current, uint64_t peak) {
  Stat stat;
  stat.current = static_cast<int64_t>(current);
  stat.peak = static_cast<int64_t>(std::max(current, peak));
  return stat;
}

} // namespace

DeviceStats Statistics::read(const gpu_vmm_torch_usage& usage, const ForeignUsage& foreign) {
  Guard guard(mutex_);
  DeviceStats stats;
  gpu_vmm::read(usage.live.blocks, stats.allocation);
  gpu_vmm::read(usage.live.bytes, stats.allocated_bytes);
  gpu_vmm::read(usage.live.requested, stats.requested_bytes);
  stats.num_alloc_retries = retries_;
  stats.num_sync_all_streams = synchronizations_;
  stats.num_ooms = errors_;
#if GPU_VMM_TORCH >= 212
  stats.num_oom_rejections = rejections_;
#endif
  const uint64_t blocks[] = {usage.pending_blocks[0] + usage.pending_blocks[1], usage.pending_blocks[0], usage.pending_blocks[1]};
  const uint64_t bytes[] = {usage.pending_bytes[0] + usage.pending_bytes[1], usage.pending_bytes[0], usage.pending_bytes[1]};
  for (size_t kind = 0; kind < 3; ++kind) {
    add_pending(stats.active[kind], stats.allocation[kind], blocks[kind]);
    add_pending(stats.active_bytes[kind], stats.allocated_bytes[kind], bytes[kind]);
    add_pending(stats.requested_bytes[kind], Stat(stats.requested_bytes[kind]), bytes[kind]);
  }
  foreign_peak_ = std::max(foreign_peak_, foreign.bytes);
  const uint64_t large = usage.held - usage.held_small;
  stats.reserved_bytes[0] = of_memory(usage.held + foreign.bytes, usage.peak_held + foreign_peak_);
  stats.reserved_bytes[1] = of_memory(usage.held_small, usage.held_small);
  stats.reserved_bytes[2] = of_memory(large + foreign.bytes, large + foreign.bytes);
  stats.reserved_bytes[0].allocated = static_cast<int64_t>((usage.created - created_) * usage.page);
  stats.reserved_bytes[0].freed = static_cast<int64_t>((usage.released - released_) * usage.page);
  // PyTorch counts no segments for memory that it maps piece by piece.
  stats.segment[0] = stats.segment[2] = of_memory(foreign.segments, foreign.segments);
  stats.num_device_alloc = static_cast<int64_t>(usage.created - created_);
  stats.num_device_free = static_cast<int64_t>(usage.released - released_);
  return stats;
}

void Statistics::reset_accumulated(const gpu_vmm_torch_usage& usage) {
  retries_ = errors_ = rejections_ = synchronizations_ = 0;
  Guard guard(mutex_);
  created_ = usage.created;
  released_ = usage.released;
}

void Statistics::reset_peak(const ForeignUsage& foreign) {
  Guard guard(mutex_);
  foreign_peak_ = foreign.bytes;
}

} // namespace gpu_vmm
