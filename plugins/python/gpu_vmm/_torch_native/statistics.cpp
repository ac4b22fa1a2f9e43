#include "statistics.h"

namespace gpu_vmm {

template <class Stats>
void Quantity::read(Stats& stats) const {
  for (size_t kind = 0; kind < 2; ++kind) {
    auto& stat = stats[1 + kind];
    stat.current = current_[kind];
    stat.peak = peak_[1 + kind];
    stat.freed = freed_[kind];
    stat.allocated = current_[kind] + freed_[kind] - before_[kind];
  }
  stats[0].current = current();
  stats[0].peak = peak_[0];
  stats[0].freed = stats[1].freed + stats[2].freed;
  stats[0].allocated = stats[1].allocated + stats[2].allocated;
}

void Quantity::reset_accumulated() {
  for (size_t kind = 0; kind < 2; ++kind) {
    before_[kind] = current_[kind];
    freed_[kind] = 0;
  }
}

void Quantity::reset_peak() {
  peak_[0] = current();
  peak_[1] = current_[0];
  peak_[2] = current_[1];
}

void Statistics::retried() {
  std::lock_guard<SpinLock> guard(lock_);
  retries_ += 1;
}

void Statistics::synchronized() {
  std::lock_guard<SpinLock> guard(lock_);
  synchronizations_ += 1;
}

void Statistics::out_of_memory() {
  std::lock_guard<SpinLock> guard(lock_);
  errors_ += 1;
}

size_t Statistics::allocated_bytes() {
  std::lock_guard<SpinLock> guard(lock_);
  return static_cast<size_t>(bytes_.current());
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
  DeviceStats stats;
  blocks_.read(stats.allocation);
  bytes_.read(stats.allocated_bytes);
  requested_.read(stats.requested_bytes);
  stats.num_alloc_retries = retries_;
  stats.num_sync_all_streams = synchronizations_;
  stats.num_ooms = errors_;
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
  std::lock_guard<SpinLock> guard(lock_);
  for (auto* quantity : {&blocks_, &bytes_, &requested_}) {
    quantity->reset_accumulated();
  }
  retries_ = errors_ = synchronizations_ = 0;
  created_ = usage.created;
  released_ = usage.released;
}

void Statistics::reset_peak(const ForeignUsage& foreign) {
  std::lock_guard<SpinLock> guard(lock_);
  for (auto* quantity : {&blocks_, &bytes_, &requested_}) {
    quantity->reset_peak();
  }
  foreign_peak_ = foreign.bytes;
}

} // namespace gpu_vmm
