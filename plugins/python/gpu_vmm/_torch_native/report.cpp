// Statistics, snapshots, history.

#include "allocator.h"
#include "visits.h"

#include <algorithm>

namespace gpu_vmm {

namespace {

struct Walked {
  std::vector<gpu_vmm_torch_run> runs;
  std::vector<gpu_vmm_torch_block> blocks;
  Visits visits;
};

void note_run(void* context, const gpu_vmm_torch_run* run) {
  auto& walked = *static_cast<Walked*>(context);
  walked.visits.add(walked.runs, *run);
}

void note_block(void* context, const gpu_vmm_torch_block* block) {
  auto& walked = *static_cast<Walked*>(context);
  walked.visits.add(walked.blocks, *block);
}

// Returns all memory of a device and its blocks, by address.
Walked walk(c10::DeviceIndex device) {
  Walked walked;
  check(library.gpu_vmm_torch_walk(device, note_run, note_block, &walked));
  walked.visits.check();
  return walked;
}

// Adds free memory, as a part of the free block before it if there is one: PyTorch merges free neighbours.
void add_free(SegmentInfo& segment, size_t size) {
  if (size == 0) {
    return;
  }
  if (segment.blocks.empty() || segment.blocks.back().active) {
    segment.blocks.emplace_back();
  }
  segment.blocks.back().size += size;
  segment.total_size += size;
}

// Adds a block as PyTorch shows it: the requested size, rounded up, and what the block occupies beyond that as free.
void add_block(SegmentInfo& segment, const gpu_vmm_torch_block& block, Context context) {
  const bool live = block.state == GPU_VMM_TORCH_LIVE;
  if (block.state == GPU_VMM_TORCH_FREE) {
    add_free(segment, block.capacity);
    return;
  }
  const size_t size = live ? std::min<size_t>(rounded(block.size), block.capacity) : block.capacity;
  segment.blocks.emplace_back();
  auto& info = segment.blocks.back();
  info.size = size;
  info.requested_size = block.size;
  info.allocated = live;
  info.active = true;
  info.context_when_allocated = std::move(context);
  segment.total_size += size;
  segment.active_size += size;
  segment.requested_size += block.size;
  segment.allocated_size += live ? size : 0;
  add_free(segment, block.capacity - size);
}

SegmentInfo segment_at(c10::DeviceIndex device, uint64_t address, bool is_large, bool is_expandable) {
  SegmentInfo segment;
  segment.device = device;
  segment.address = address;
  segment.is_large = is_large;
  segment.is_expandable = is_expandable;
  return segment;
}

// Numbers a segment where the installed version does: the communicators of NCCL register a pool's segments in the order of their numbers,
// which must be the same in all ranks.
template <class Segment>
auto number(Segment& segment, int place, int) -> decltype(segment.registration_counter, void()) {
  segment.registration_counter = place;
}

template <class Segment>
void number(Segment&, int, long) {}

} // namespace

gpu_vmm_torch_usage GpuVmmAllocator::usage(c10::DeviceIndex device) {
  gpu_vmm_torch_usage usage;
  check(library.gpu_vmm_torch_measure(device, &usage));
  return usage;
}

DeviceStats GpuVmmAllocator::getDeviceStats(c10::DeviceIndex device) {
  DeviceStats stats = at(device).statistics.read(usage(device), foreign_.usage(device));
#if GPU_VMM_TORCH >= 213
  if (at(device).has_private_pools) {
    auto blocks = walk(device).blocks;
    const auto others = foreign_.blocks(device);
    blocks.insert(blocks.end(), others.begin(), others.end());
    for (const auto& block : blocks) {
      if (pool_of(block) != MempoolId_t{0, 0}) {
        auto& of_pool = stats.reserved_bytes_by_private_pools[pool_of(block)];
        for (const size_t kind : {size_t{0}, size_t{block.capacity > kSmall ? 2u : 1u}}) {
          auto& stat = of_pool[kind];
          stat.current += static_cast<int64_t>(block.capacity);
          stat.peak = stat.allocated = stat.current;
        }
      }
    }
  }
#endif
  return stats;
}

void GpuVmmAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  at(device).statistics.reset_accumulated(usage(device));
  check(library.gpu_vmm_torch_reset_accumulated(device));
}

void GpuVmmAllocator::resetPeakStats(c10::DeviceIndex device) {
  at(device).statistics.reset_peak(foreign_.usage(device));
  check(library.gpu_vmm_torch_reset_peak(device));
}

size_t GpuVmmAllocator::kept_in_private_pools(c10::DeviceIndex device) {
  size_t kept = 0;
  for (const auto& block : walk(device).blocks) {
    kept += block.state == GPU_VMM_TORCH_FREE ? block.capacity : 0;
  }
  return kept;
}

// A segment is memory at consecutive addresses whose blocks belong to one private pool, or to none.
std::vector<SegmentInfo> GpuVmmAllocator::segments(c10::DeviceIndex device, MempoolId_t pool) {
  const auto walked = walk(device);
  const auto& runs = walked.runs;
  const auto& blocks = walked.blocks;
  std::vector<SegmentInfo> all;
  auto block = blocks.begin();
  std::set<uint64_t> pending;
  for (const auto& run : runs) {
    const uint64_t end = run.address + run.size;
    const bool is_large = !run.small;
    all.push_back(segment_at(device, run.address, is_large, true));
    uint64_t place = run.address;
    for (bool is_first = true; run.used && block != blocks.end() && block->address < end; ++block) {
      // A block whose memory is suspended lies in no run; one that moved while the lists were made overlaps another.
      if (block->address < place || block->address + block->capacity > end) {
        continue;
      }
      add_free(all.back(), block->address - place);
      if (!is_first && all.back().owner_private_pool_id != pool_of(*block)) {
        all.push_back(segment_at(device, block->address, is_large, true));
        is_first = true;
      }
      if (is_first) {
        all.back().owner_private_pool_id = pool_of(*block);
        all.back().stream = static_cast<decltype(SegmentInfo::stream)>(block->stream);
        is_first = false;
      }
      add_block(all.back(), *block, history_.context_of(block->address));
      place = block->address + block->capacity;
    }
    add_free(all.back(), end - place);
  }
  for (const auto& one : blocks) {
    if (one.state == GPU_VMM_TORCH_PENDING) {
      pending.insert(one.address);
    }
  }
  history_.complete(device, pending);
  for (const auto& one : foreign_.blocks(device)) {
    all.push_back(segment_at(device, one.address, true, false));
    all.back().owner_private_pool_id = pool_of(one);
    all.back().stream = static_cast<decltype(SegmentInfo::stream)>(one.stream);
    add_block(all.back(), one, history_.context_of(one.address));
  }
  if (pool != MempoolId_t{0, 0}) {
    auto is_other = [&](const SegmentInfo& segment) { return segment.owner_private_pool_id != pool; };
    all.erase(std::remove_if(all.begin(), all.end(), is_other), all.end());
  }
  std::sort(all.begin(), all.end(), [](const auto& one, const auto& other) { return one.address < other.address; });
  return all;
}

SnapshotInfo GpuVmmAllocator::snapshot(MempoolId_t pool, bool include_traces) {
  SnapshotInfo result;
  result.external_annotations = history_.annotations();
  for (int index = 0; index < count_; ++index) {
    const auto device = static_cast<c10::DeviceIndex>(index);
    auto segments_of = segments(device, pool);
    size_t active = 0;
    for (const auto& segment : segments_of) {
      active += segment.active_size;
    }
    result.device_traces.push_back(include_traces ? history_.trace(device) : std::vector<TraceEntry>());
    history_.snapshot(device, active, pool);
    std::move(segments_of.begin(), segments_of.end(), std::back_inserter(result.segments));
  }
  // By address: ranks with the same requests have their blocks at the same places in the range of the pool.
  int place = 0;
  for (auto& segment : result.segments) {
    number(segment, place++, 0);
  }
  auto& settings = result.config_metadata;
  settings = {};
  settings.expandable_segments = true;
  settings.max_split_size = std::numeric_limits<size_t>::max();
  settings.last_allocator_settings = "backend:gpu-vmm";
  return result;
}

SnapshotInfo GpuVmmAllocator::snapshot(MempoolId_t pool) {
  return snapshot(pool, true);
}

SnapshotInfo GpuVmmAllocator::snapshot() {
  return snapshot({0, 0}, true);
}

bool GpuVmmAllocator::isHistoryEnabled() {
  return history_.is_enabled();
}

void GpuVmmAllocator::recordHistory(
    bool enabled, CreateContextFn recorder, size_t max_entries, RecordContext when, bool clear,
    const std::vector<std::string>& skipped) {
  history_.record(enabled, recorder, max_entries, when, clear, skipped);
}

void GpuVmmAllocator::recordHistory(
    bool enabled, CreateContextFn recorder, size_t max_entries, RecordContext when, bool clear) {
  recordHistory(enabled, recorder, max_entries, when, clear, {});
}

void GpuVmmAllocator::recordHistory(bool enabled, CreateContextFn recorder, size_t max_entries, RecordContext when) {
  recordHistory(enabled, recorder, max_entries, when, false, {});
}

void GpuVmmAllocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>>& values) {
  history_.annotate(values);
}

void GpuVmmAllocator::pushCompileContext(std::string& text) {
  if (history_.is_enabled()) {
    compile_contexts().push_back(text);
  }
}

void GpuVmmAllocator::popCompileContext() {
  if (history_.is_enabled() && !compile_contexts().empty()) {
    compile_contexts().pop_back();
  }
}

void GpuVmmAllocator::setUserMetadata(const std::string& text) {
  user_metadata() = text;
}

std::string GpuVmmAllocator::getUserMetadata() {
  return user_metadata();
}

bool GpuVmmAllocator::supportsUserMetadata() {
  return true;
}

void GpuVmmAllocator::annotateMemory(const void* address, const std::string& text) {
  gpu_vmm_torch_block block;
  if (history_.is_enabled() && find(reinterpret_cast<uint64_t>(address), block)) {
    history_.annotate(block, text, history_.gather(RecordContext::ALLOC));
  }
}

std::shared_ptr<c10::GatheredContext> GpuVmmAllocator::getContextForPointer(const void* address) {
  gpu_vmm_torch_block block;
  const bool found = history_.is_on() && find(reinterpret_cast<uint64_t>(address), block);
  return found ? history_.context_of(block.address) : nullptr;
}

void GpuVmmAllocator::attachAllocatorTraceTracker(torch_allocator::AllocatorTraceTracker tracker) {
  history_.attach(std::move(tracker));
}

} // namespace gpu_vmm
