#include "diversions.h"

#include <algorithm>

namespace gpu_vmm {

bool Diversions::begin(MempoolId_t id, Filter filter) {
  Guard guard(mutex_);
  for (const auto& one : list_) {
    if (one.first == id) {
      return false;
    }
  }
  list_.emplace_back(id, std::move(filter));
  count_ = static_cast<int>(list_.size());
  return true;
}

bool Diversions::end(MempoolId_t id) {
  Guard guard(mutex_);
  auto found = std::find_if(list_.begin(), list_.end(), [&](const auto& one) { return one.first == id; });
  if (found == list_.end()) {
    return false;
  }
  list_.erase(found);
  count_ = static_cast<int>(list_.size());
  return true;
}

bool Diversions::find(cudaStream_t stream, MempoolId_t& id) {
  Guard guard(mutex_);
  const auto found = std::find_if(list_.rbegin(), list_.rend(), [&](const auto& one) { return one.second(stream); });
  if (found == list_.rend()) {
    return false;
  }
  id = found->first;
  return true;
}

} // namespace gpu_vmm
