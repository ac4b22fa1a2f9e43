// PyTorch's types, under names that all supported versions share.
//
// Virtual functions that PyTorch has added, removed or changed between versions are declared without `override` in
// allocator.h, in each of their forms: the form that the installed version knows overrides, and the others are never called.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/ApproximateClock.h>

namespace gpu_vmm {

namespace torch_allocator = c10::cuda::CUDACachingAllocator;

using c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingDeviceAllocator::format_size;
using c10::cuda::MempoolId_t;
using torch_allocator::CreateContextFn;
using torch_allocator::RecordContext;
using torch_allocator::SegmentInfo;
using torch_allocator::SnapshotInfo;
using torch_allocator::TraceEntry;
using Annotation = decltype(SnapshotInfo::external_annotations)::value_type;
using Context = std::shared_ptr<c10::GatheredContext>;
using Stat = std::tuple_element_t<0, decltype(DeviceStats::allocation)>;

// The most devices, as in libgpu_vmm_c.
constexpr int kDevices = 64;

// The largest block that PyTorch calls small.
constexpr size_t kSmall = size_t{1} << 20;

// What PyTorch rounds sizes up to in its statistics.
constexpr size_t kRounding = 512;

constexpr size_t rounded(size_t size) {
  return (size + kRounding - 1) / kRounding * kRounding;
}

} // namespace gpu_vmm
