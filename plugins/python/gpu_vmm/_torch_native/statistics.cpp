#include "statistics.h"

#include <algorithm>

namespace gpu_vmm {

void Statistics::retried() {
  std::lock_guard<SpinLock> guard(lock_);
  stats_.num_alloc_retries += 1;
}

void Statistics::synchronized() {
  std::lock_guard<SpinLock> guard(lock_);
  stats_.num_sync_all_streams += 1;
}

void Statistics::out_of_memory() {
  std::lock_guard<SpinLock> guard(lock_);
  stats_.num_ooms += 1;
}

size_t Statistics::allocated_bytes() {
  std::lock_guard<SpinLock> guard(lock_);
  return static_cast<size_t>(stats_.allocated_bytes[0].current);
}

namespace {

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
  std::lock_guard<SpinLock> guard(lock_);
  DeviceStats stats = stats_;
  const uint64_t blocks[] = {usage.pending_blocks[0] + usage.pending_blocks[1], usage.pending_blocks[0], usage.pending_blocks[1]};
  const uint64_t bytes[] = {usage.pending_bytes[0] + usage.pending_bytes[1], usage.pending_bytes[0], usage.pending_bytes[1]};
  for (size_t kind = 0; kind < 3; ++kind) {
    add_pending(stats.active[kind], stats.allocation[kind], blocks[kind]);
    add_pending(stats.active_bytes[kind], stats.allocated_bytes[kind], bytes[kind]);
    add_pending(stats.requested_bytes[kind], stats_.requested_bytes[kind], bytes[kind]);
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
  std::lock_guard<SpinLock> guard(lock_);
  for (auto* stats : {&stats_.allocation, &stats_.allocated_bytes, &stats_.requested_bytes}) {
    for (auto& stat : *stats) {
      stat.allocated = stat.freed = 0;
    }
  }
  stats_.num_alloc_retries = stats_.num_ooms = stats_.num_sync_all_streams = 0;
  created_ = usage.created;
  released_ = usage.released;
}

void Statistics::reset_peak(const ForeignUsage& foreign) {
  std::lock_guard<SpinLock> guard(lock_);
  for (auto* stats : {&stats_.allocation, &stats_.allocated_bytes, &stats_.requested_bytes}) {
    for (auto& stat : *stats) {
      stat.peak = stat.current;
    }
  }
  foreign_peak_ = foreign.bytes;
}

} // namespace gpu_vmm
