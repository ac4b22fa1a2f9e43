#include "history.h"

#include <algorithm>
#include <type_traits>

namespace gpu_vmm {

std::string& user_metadata() {
  static thread_local std::string text;
  return text;
}

std::vector<std::string>& compile_contexts() {
  static thread_local std::vector<std::string> texts;
  return texts;
}

namespace {

TraceEntry::Action action_of(const std::string& name, bool& known) {
  static const std::pair<const char*, TraceEntry::Action> names[] = {
      {"alloc", TraceEntry::ALLOC},
      {"free_requested", TraceEntry::FREE_REQUESTED},
      {"free_completed", TraceEntry::FREE_COMPLETED},
      {"segment_alloc", TraceEntry::SEGMENT_ALLOC},
      {"segment_free", TraceEntry::SEGMENT_FREE},
      {"segment_map", TraceEntry::SEGMENT_MAP},
      {"segment_unmap", TraceEntry::SEGMENT_UNMAP},
      {"snapshot", TraceEntry::SNAPSHOT},
      {"oom", TraceEntry::OOM},
#if GPU_VMM_TORCH >= 214
      {"annotate", TraceEntry::ANNOTATE},
#endif
  };
  for (const auto& [text, action] : names) {
    if (name == text) {
      known = true;
      return action;
    }
  }
  known = false;
  return TraceEntry::ALLOC;
}

// Templates, so that the constructors that the installed version lacks are not compiled.
template <class Entry>
Entry entry_of(
    typename Entry::Action action, int device, uint64_t address, size_t size, void* raw, MempoolId_t pool, Context context) {
  const auto index = static_cast<c10::DeviceIndex>(device);
  const auto now = c10::getApproximateTime();
  using Stream = decltype(Entry::stream_);
  auto stream = static_cast<Stream>(raw);
  using Action = typename Entry::Action;
  if constexpr (std::is_constructible_v<
                    Entry, Action, c10::DeviceIndex, size_t, size_t, Stream, MempoolId_t, c10::approx_time_t, Context,
                    std::string, std::string>) {
    std::string compiled = compile_contexts().empty() ? "N/A" : compile_contexts().back();
    return Entry(action, index, address, size, stream, pool, now, std::move(context), std::move(compiled), user_metadata());
  } else if constexpr (std::is_constructible_v<
                           Entry, Action, c10::DeviceIndex, size_t, size_t, Stream, MempoolId_t, c10::approx_time_t, Context,
                           std::string>) {
    std::string compiled = compile_contexts().empty() ? "N/A" : compile_contexts().back();
    return Entry(action, index, address, size, stream, pool, now, std::move(context), std::move(compiled));
  } else if constexpr (std::is_constructible_v<
                           Entry, Action, c10::DeviceIndex, size_t, size_t, Stream, MempoolId_t, c10::approx_time_t, Context>) {
    return Entry(action, index, address, size, stream, pool, now, std::move(context));
  } else {
    return Entry(action, index, address, size, stream, now, std::move(context));
  }
}

template <class Entries>
void push(Entries& entries, typename Entries::value_type entry, size_t max) {
  entries.push_back(std::move(entry));
  while (entries.size() > max) {
    entries.pop_front();
  }
}

} // namespace

void History::record(
    bool enabled,
    CreateContextFn recorder,
    size_t max_entries,
    RecordContext when,
    bool clear,
    const std::vector<std::string>& skipped) {
  TORCH_CHECK(when == RecordContext::NEVER || recorder, "recordHistory: contexts are wanted, but there is no recorder for them");
  Guard guard(mutex_);
  skipped_.clear();
  for (const auto& name : skipped) {
    bool known = false;
    auto action = action_of(name, known);
    if (known) {
      skipped_.insert(action);
    }
  }
  recorder_ = enabled ? recorder : nullptr;
  when_ = enabled ? when : RecordContext::NEVER;
  // PyTorch keeps one entry at least.
  max_entries_ = std::max<size_t>(1, max_entries);
  enabled_ = enabled;
  if (!enabled || clear) {
    for (auto& entries : entries_) {
      entries.clear();
    }
    annotations_.clear();
    waiting_.clear();
  }
  update();
}

void History::update() {
  // Contexts of blocks that are live must be forgotten when they are freed.
  on_ = enabled_ || !trackers_.empty() || !contexts_.empty();
}

void History::attach(torch_allocator::AllocatorTraceTracker tracker) {
  Guard guard(mutex_);
  trackers_.push_back(std::move(tracker));
  update();
}

void History::annotate(const std::vector<std::pair<std::string, std::string>>& values) {
  // A forked child annotates what it does as well.
  if (!is_enabled() || !mutex_.is_ours()) {
    return;
  }
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  Annotation annotation(device, c10::getApproximateTime());
  for (const auto& [key, value] : values) {
    annotation.recordUserMetadata(key, value);
  }
  Guard guard(mutex_);
  push(annotations_, std::move(annotation), max_entries_);
}

Context History::gather(RecordContext level) const {
  if (when_.load(std::memory_order_relaxed) < level) {
    return nullptr;
  }
  auto* recorder = recorder_.load();
  return recorder ? recorder() : nullptr;
}

void History::annotate(const gpu_vmm_torch_block& block, const std::string& text, Context context) {
#if GPU_VMM_TORCH >= 214
  Guard guard(mutex_);
  add(TraceEntry::ANNOTATE, block.device, block.address, block.size, block.stream, pool_of(block), std::move(context), &text);
#endif
}

// The entry has `text` in the place of the thread's metadata, unless it is null.
void History::add(
    TraceEntry::Action action, int device, uint64_t address, size_t size, void* stream, MempoolId_t pool, Context context,
    const std::string* text) {
  if (!enabled_ && trackers_.empty()) {
    return;
  }
  if (when_.load() < RecordContext::ALLOC) {
    context = nullptr;
  }
  auto entry = entry_of<TraceEntry>(action, device, address, size, stream, pool, std::move(context));
#if GPU_VMM_TORCH >= 214
  if (text != nullptr) {
    entry.user_metadata_ = *text;
  }
#endif
  for (const auto& tracker : trackers_) {
    tracker(entry);
  }
  if (enabled_ && skipped_.count(action) == 0) {
    push(entries_[device], std::move(entry), max_entries_);
  }
}

void History::allocated(const gpu_vmm_torch_block& block, Context context) {
  Guard guard(mutex_);
  if (context) {
    contexts_[block.address] = context;
    on_ = true;
  }
  add(TraceEntry::ALLOC, block.device, block.address, block.size, block.stream, pool_of(block), std::move(context));
}

void History::freed(const gpu_vmm_torch_block& block, Context context) {
  Guard guard(mutex_);
  auto found = contexts_.find(block.address);
  if (found != contexts_.end()) {
    if (!context) {
      context = found->second;
    }
    contexts_.erase(found);
    update();
  }
  add(TraceEntry::FREE_REQUESTED, block.device, block.address, block.size, block.stream, pool_of(block), context);
  if (!block.used_elsewhere) {
    add(TraceEntry::FREE_COMPLETED, block.device, block.address, block.size, block.stream, pool_of(block), context);
  } else if (enabled_) {
    waiting_.push_back(block);
  }
}

void History::out_of_memory(int device, size_t size, void* stream, size_t free, Context context) {
  Guard guard(mutex_);
  add(TraceEntry::OOM, device, free, size, stream, {0, 0}, std::move(context));
}

void History::snapshot(int device, size_t active, MempoolId_t pool) {
  Guard guard(mutex_);
  add(TraceEntry::SNAPSHOT, device, 0, active, nullptr, pool, nullptr);
}

Context History::context_of(uint64_t address) {
  Guard guard(mutex_);
  auto found = contexts_.find(address);
  return found == contexts_.end() ? nullptr : found->second;
}

void History::complete(int device, const std::set<uint64_t>& pending) {
  Guard guard(mutex_);
  auto is_done = [&](const gpu_vmm_torch_block& block) {
    if (block.device != device || pending.count(block.address) > 0) {
      return false;
    }
    add(TraceEntry::FREE_COMPLETED, device, block.address, block.size, block.stream, pool_of(block), nullptr);
    return true;
  };
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), is_done), waiting_.end());
}

std::vector<TraceEntry> History::trace(int device) {
  Guard guard(mutex_);
  std::vector<TraceEntry> all(entries_[device].begin(), entries_[device].end());
  auto nanoseconds = clock_.makeConverter();
  for (auto& entry : all) {
    entry.time_.t_ = nanoseconds(entry.time_.approx_t_) / 1000;
  }
  return all;
}

std::vector<Annotation> History::annotations() {
  Guard guard(mutex_);
  std::vector<Annotation> all(annotations_.begin(), annotations_.end());
  auto nanoseconds = clock_.makeConverter();
  for (auto& annotation : all) {
    annotation.time_.t_ = nanoseconds(annotation.time_.approx_t_) / 1000;
  }
  return all;
}

} // namespace gpu_vmm
