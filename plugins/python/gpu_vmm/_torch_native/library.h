// The functions of libgpu_vmm_c that the allocator calls, found in the file that the Python package has loaded already.
#pragma once

#include <gpu_vmm.h>

#include <string>

namespace gpu_vmm {

#define GPU_VMM_FUNCTIONS(each)    \
  each(gpu_vmm_last_error)         \
  each(gpu_vmm_torch_allocate)     \
  each(gpu_vmm_torch_allocate_at_last) \
  each(gpu_vmm_torch_deallocate)   \
  each(gpu_vmm_torch_record_use)   \
  each(gpu_vmm_torch_find)         \
  each(gpu_vmm_torch_pool_acquire) \
  each(gpu_vmm_torch_pool_release) \
  each(gpu_vmm_torch_pool_begin)   \
  each(gpu_vmm_torch_pool_end)     \
  each(gpu_vmm_torch_pool_uses)    \
  each(gpu_vmm_torch_pool_use_on_oom) \
  each(gpu_vmm_torch_checkpoint)   \
  each(gpu_vmm_torch_restore)      \
  each(gpu_vmm_torch_checkpoint_free) \
  each(gpu_vmm_torch_measure)      \
  each(gpu_vmm_torch_reset_peak)   \
  each(gpu_vmm_torch_reset_accumulated) \
  each(gpu_vmm_torch_count)        \
  each(gpu_vmm_torch_set_limit)    \
  each(gpu_vmm_torch_allow_access) \
  each(gpu_vmm_torch_collect)      \
  each(gpu_vmm_torch_collect_ended) \
  each(gpu_vmm_torch_walk)         \
  each(gpu_vmm_torch_export)       \
  each(gpu_vmm_torch_import)       \
  each(gpu_vmm_torch_imported_free) \
  each(gpu_vmm_string_free)

// Each member is named like its function.
struct Library {
#define GPU_VMM_MEMBER(name) decltype(&::name) name;
  GPU_VMM_FUNCTIONS(GPU_VMM_MEMBER)
#undef GPU_VMM_MEMBER
};

extern Library library;

// Finds the functions. Returns an empty text, or the reason why one is missing.
std::string load(const char* path);

// Throws PyTorch's error with the library's text, unless the status is GPU_VMM_OK.
void check(gpu_vmm_status status);

} // namespace gpu_vmm
