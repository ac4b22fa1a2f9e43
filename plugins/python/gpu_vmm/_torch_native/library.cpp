#include "library.h"

#include "process_mutex.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <pthread.h>

namespace gpu_vmm {

Library library;

std::atomic<uint64_t> process_number{1};

namespace {

[[maybe_unused]] const int counts_forks = pthread_atfork(nullptr, nullptr, [] { process_number += 1; });

} // namespace

std::string load(const char* path) {
  void* file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (file == nullptr) {
    return dlerror();
  }
#define GPU_VMM_FIND(name)                                               \
  library.name = reinterpret_cast<decltype(&::name)>(dlsym(file, #name)); \
  if (library.name == nullptr) {                                         \
    return std::string(path) + " has no function " #name;                \
  }
  GPU_VMM_FUNCTIONS(GPU_VMM_FIND)
#undef GPU_VMM_FIND
  return {};
}

void check(gpu_vmm_status status) {
  TORCH_CHECK(status == GPU_VMM_OK, "gpu-vmm: ", library.gpu_vmm_last_error());
}

} // namespace gpu_vmm
