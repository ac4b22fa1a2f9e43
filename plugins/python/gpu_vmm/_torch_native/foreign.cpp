#include "foreign.h"

#include <algorithm>
#include <limits>

namespace gpu_vmm {

void Foreign::create(int device, MempoolId_t id, Allocator allocator) {
  Guard guard(mutex_);
  pools_[{device, id}].allocator = std::move(allocator);
  any_ = true;
}

void Foreign::release(int device, MempoolId_t id) {
  if (!any_) {
    return;
  }
  Pool ended;
  {
    Guard guard(mutex_);
    auto found = pools_.find({device, id});
    if (found == pools_.end()) {
      return;
    }
    ended = std::move(found->second);
    pools_.erase(found);
  }
  // Without the lock: the allocator may be Python's.
  for (const auto& [key, block] : ended.free) {
    ended.allocator->raw_delete(reinterpret_cast<void*>(block.address));
  }
}

bool Foreign::take(Pool& pool, size_t size, size_t max, void* stream, gpu_vmm_torch_block& block) {
  auto kept = pool.free.lower_bound({stream, rounded(size)});
  if (kept == pool.free.end() || kept->first.first != stream || kept->first.second > max) {
    return false;
  }
  block = kept->second;
  block.size = size;
  block.state = GPU_VMM_TORCH_LIVE;
  live_[block.address] = {block, pool.allocator};
  pool.free.erase(kept);
  return true;
}

void Foreign::set_use_on_oom(int device, MempoolId_t id, bool value) {
  Guard guard(mutex_);
  auto found = pools_.find({device, id});
  if (found != pools_.end()) {
    found->second.use_on_oom = value;
  }
}

bool Foreign::allocate_spare(int device, size_t size, void* stream, gpu_vmm_torch_block& block) {
  if (!any_) {
    return false;
  }
  Guard guard(mutex_);
  for (auto& [key, pool] : pools_) {
    if (key.first == device && pool.use_on_oom && take(pool, size, std::numeric_limits<size_t>::max(), stream, block)) {
      return true;
    }
  }
  return false;
}

bool Foreign::allocate(int device, MempoolId_t id, size_t size, void* stream, gpu_vmm_torch_block& block) {
  if (!any_) {
    return false;
  }
  Allocator allocator;
  const size_t capacity = rounded(size);
  {
    Guard guard(mutex_);
    auto found = pools_.find({device, id});
    if (found == pools_.end()) {
      return false;
    }
    if (take(found->second, size, capacity + capacity / 8, stream, block)) {
      return true;
    }
    allocator = found->second.allocator;
  }
  void* made = allocator->raw_alloc(capacity);
  TORCH_CHECK_WITH(
      OutOfMemoryError, made != nullptr, "CUDA out of memory. Tried to allocate ", format_size(size),
      " from the allocator of a torch.cuda.MemPool, which has returned none.");
  block = {};
  block.address = reinterpret_cast<uint64_t>(made);
  block.size = size;
  block.capacity = capacity;
  block.stream = stream;
  block.pool = {id.first, id.second};
  block.device = device;
  Guard guard(mutex_);
  live_[block.address] = {block, std::move(allocator)};
  return true;
}

bool Foreign::free(uint64_t address, gpu_vmm_torch_block& block) {
  if (!any_ || !mutex_.is_ours()) {
    return false;
  }
  Allocator allocator;
  {
    Guard guard(mutex_);
    auto found = live_.find(address);
    if (found == live_.end()) {
      return false;
    }
    block = found->second.block;
    allocator = std::move(found->second.allocator);
    live_.erase(found);
    auto pool = pools_.find({block.device, {block.pool.first, block.pool.second}});
    if (pool != pools_.end()) {
      auto kept = block;
      kept.state = GPU_VMM_TORCH_FREE;
      pool->second.free.insert({{block.stream, block.capacity}, kept});
      return true;
    }
  }
  allocator->raw_delete(reinterpret_cast<void*>(address));
  return true;
}

bool Foreign::find(uint64_t address, gpu_vmm_torch_block& block) {
  // A forked child frees tensors of its parent, for which it looks here.
  if (!any_ || !mutex_.is_ours()) {
    return false;
  }
  Guard guard(mutex_);
  for (const auto& [base, live] : live_) {
    if (address >= base && address < base + live.block.capacity) {
      block = live.block;
      return true;
    }
  }
  return false;
}

ForeignUsage Foreign::usage(int device) {
  ForeignUsage usage;
  for (const auto& block : blocks(device)) {
    usage.segments += 1;
    usage.bytes += block.capacity;
  }
  return usage;
}

std::vector<gpu_vmm_torch_block> Foreign::blocks(int device) {
  std::vector<gpu_vmm_torch_block> all;
  if (!any_) {
    return all;
  }
  Guard guard(mutex_);
  for (const auto& [base, live] : live_) {
    if (live.block.device == device) {
      all.push_back(live.block);
    }
  }
  for (const auto& [key, pool] : pools_) {
    for (const auto& [fit, block] : pool.free) {
      if (block.device == device) {
        all.push_back(block);
      }
    }
  }
  std::sort(all.begin(), all.end(), [](const auto& one, const auto& other) { return one.address < other.address; });
  return all;
}

} // namespace gpu_vmm
