// Private pools, captures and checkpoints.

#include "allocator.h"
#include "visits.h"

namespace gpu_vmm {

namespace {

gpu_vmm_torch_mempool_id plain(MempoolId_t id) {
  return {id.first, id.second};
}

// The context of a visitor of blocks.
struct Live {
  std::vector<gpu_vmm_torch_block> blocks;
  Visits visits;
};

void collect(void* context, const gpu_vmm_torch_block* block) {
  auto& live = *static_cast<Live*>(context);
  live.visits.add(live.blocks, *block);
}

// A checkpoint of a private pool.
struct Checkpoint final : torch_allocator::AllocatorState {
  explicit Checkpoint(gpu_vmm_torch_checkpoint_state* raw) : state(raw) {}
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;
  ~Checkpoint() override {
    library.gpu_vmm_torch_checkpoint_free(state);
  }

  gpu_vmm_torch_checkpoint_state* state;
};

struct Restored {
  std::vector<gpu_vmm_torch_block> freed;
  std::vector<gpu_vmm_torch_block> allocated;
  Visits visits;
};

void note_freed(void* context, const gpu_vmm_torch_block* block) {
  auto& restored = *static_cast<Restored*>(context);
  restored.visits.add(restored.freed, *block);
}

void note_allocated(void* context, const gpu_vmm_torch_block* block) {
  auto& restored = *static_cast<Restored*>(context);
  restored.visits.add(restored.allocated, *block);
}

} // namespace

void GpuVmmAllocator::beginAllocateToPool(
    c10::DeviceIndex device, MempoolId_t id, std::function<bool(cudaStream_t)> filter) {
  Device& of = at(device);
  of.has_private_pools = true;
  // Each begin is a user, which releasePool removes.
  check(library.gpu_vmm_torch_pool_acquire(device, plain(id)));
  if (!of.diversions.begin(id, std::move(filter))) {
    check(library.gpu_vmm_torch_pool_release(device, plain(id)));
    TORCH_CHECK(false, "beginAllocateToPool: already recording to mempool_id");
  }
  // PyTorch makes the stream that captures the current one before it begins.
  check(library.gpu_vmm_torch_pool_begin(device, plain(id), c10::cuda::getCurrentCUDAStream(device).stream()));
}

void GpuVmmAllocator::endAllocateToPool(c10::DeviceIndex device, MempoolId_t id) {
  TORCH_CHECK(at(device).diversions.end(id), "endAllocatePool: not currently recording to mempool_id");
  check(library.gpu_vmm_torch_pool_end(device, plain(id)));
}

void GpuVmmAllocator::releasePool(c10::DeviceIndex device, MempoolId_t id) {
  at(device);
  const auto status = library.gpu_vmm_torch_pool_release(device, plain(id));
  if (status == GPU_VMM_FORKED) {
    // The pool is the parent's. Destructors call this.
    return;
  }
  check(status);
  if (getPoolUseCount(device, id) == 0) {
    foreign_.release(device, id);
  }
}

int GpuVmmAllocator::getPoolUseCount(c10::DeviceIndex device, MempoolId_t id) {
  at(device);
  uint64_t uses = 0;
  check(library.gpu_vmm_torch_pool_uses(device, plain(id), &uses));
  return static_cast<int>(uses);
}

void GpuVmmAllocator::createOrIncrefPool(c10::DeviceIndex device, MempoolId_t id, std::shared_ptr<CUDAAllocator> allocator) {
  at(device).has_private_pools = true;
  check(library.gpu_vmm_torch_pool_acquire(device, plain(id)));
  if (allocator) {
    foreign_.create(device, id, std::move(allocator));
  }
}

// PyTorch 2.8 keeps the allocator alive itself.
void GpuVmmAllocator::createOrIncrefPool(c10::DeviceIndex device, MempoolId_t id, CUDAAllocator* allocator) {
  createOrIncrefPool(device, id, std::shared_ptr<CUDAAllocator>(std::shared_ptr<void>(), allocator));
}

void GpuVmmAllocator::ensureExistsAndIncrefPool(c10::DeviceIndex device, MempoolId_t id) {
  createOrIncrefPool(device, id, std::shared_ptr<CUDAAllocator>());
}

void GpuVmmAllocator::setUseOnOOM(c10::DeviceIndex device, MempoolId_t id, bool use_on_oom) {
  at(device);
  check(library.gpu_vmm_torch_pool_use_on_oom(device, plain(id), use_on_oom));
  foreign_.set_use_on_oom(device, id, use_on_oom);
}

void GpuVmmAllocator::setUseOnOOM(c10::DeviceIndex device, MempoolId_t id) {
  setUseOnOOM(device, id, true);
}

// Blocks of private pools are never split.
void GpuVmmAllocator::setNoSplit(c10::DeviceIndex, MempoolId_t) {}

bool GpuVmmAllocator::checkPoolLiveAllocations(
    c10::DeviceIndex device, MempoolId_t id, const std::unordered_set<void*>& expected) {
  at(device);
  Live live;
  gpu_vmm_torch_checkpoint_state* state = nullptr;
  check(library.gpu_vmm_torch_checkpoint(device, plain(id), collect, &live, &state));
  library.gpu_vmm_torch_checkpoint_free(state);
  live.visits.check();
  for (const auto& block : live.blocks) {
    if (expected.count(reinterpret_cast<void*>(block.address)) == 0) {
      return false;
    }
  }
  return live.blocks.size() == expected.size();
}

std::shared_ptr<torch_allocator::AllocatorState> GpuVmmAllocator::getCheckpointState(c10::DeviceIndex device, MempoolId_t id) {
  at(device);
  gpu_vmm_torch_checkpoint_state* state = nullptr;
  check(library.gpu_vmm_torch_checkpoint(device, plain(id), nullptr, nullptr, &state));
  return std::make_shared<Checkpoint>(state);
}

// As PyTorch's own allocator does, this reports every block that was live before as freed and every block of the checkpoint as
// allocated; a block that is both is in both lists. PyTorch then takes the deleters of stale tensors away, which must be
// raw_deleter(), and gives the new ones to tensors of the checkpoint.
torch_allocator::CheckpointDelta GpuVmmAllocator::setCheckpointPoolState(
    c10::DeviceIndex device, std::shared_ptr<torch_allocator::AllocatorState> state) {
  at(device);
  auto* checkpoint = dynamic_cast<Checkpoint*>(state.get());
  TORCH_CHECK(checkpoint != nullptr, "setCheckpointPoolState: the state is not one of gpu-vmm");
  Restored restored;
  check(library.gpu_vmm_torch_restore(device, checkpoint->state, note_freed, note_allocated, &restored));
  restored.visits.check();
  auto context = history_.gather(RecordContext::STATE);
  torch_allocator::CheckpointDelta delta;
  for (const auto& block : restored.freed) {
    if (history_.is_on()) {
      history_.freed(block, context);
    }
    tell_profiler(block, -1);
    delta.ptrs_freed.push_back(reinterpret_cast<void*>(block.address));
  }
  for (const auto& block : restored.allocated) {
    if (history_.is_on()) {
      history_.allocated(block, context);
    }
    tell_profiler(block, 1);
    auto* address = reinterpret_cast<void*>(block.address);
    delta.dataptrs_allocd.emplace_back(address, address, raw_deleter(), c10::Device(c10::DeviceType::CUDA, device));
  }
  return delta;
}

} // namespace gpu_vmm
