// Functions of PyTorch's allocator that are newer than this class.
//
// A compiler lists the pure virtual functions of a class that it cannot create. From that list the builder writes a header that defines
// `Base` with a GPU_VMM_FORWARD for each, names it in GPU_VMM_FORWARDED, and compiles again. Each of the functions passes its arguments
// to PyTorch's own allocator.
#pragma once

#include "torch_types.h"

#include <utility>

namespace gpu_vmm {

// The allocator that was in place before this one: PyTorch's own.
torch_allocator::CUDAAllocator& native();

} // namespace gpu_vmm

#ifdef GPU_VMM_FORWARDED

// Implements a function for one kind of member function, whose types the compiler deduces.
#define GPU_VMM_FORWARD_KIND(Name, Parent, Qualifiers)                             \
  template <class Result, class Class, class... Arguments>                         \
  struct Forward_##Name<Result (Class::*)(Arguments...) Qualifiers> : Parent {     \
    Result Name(Arguments... arguments) Qualifiers override {                      \
      return ::gpu_vmm::native().Name(std::forward<Arguments>(arguments)...);      \
    }                                                                              \
  };

// Defines `Alias`, a class that derives from `Parent` and implements the function `Name`.
#define GPU_VMM_FORWARD(Name, Parent, Alias)              \
  template <class Function>                               \
  struct Forward_##Name;                                  \
  GPU_VMM_FORWARD_KIND(Name, Parent, )                    \
  GPU_VMM_FORWARD_KIND(Name, Parent, const)               \
  GPU_VMM_FORWARD_KIND(Name, Parent, noexcept)            \
  GPU_VMM_FORWARD_KIND(Name, Parent, const noexcept)      \
  using Alias = Forward_##Name<decltype(&torch_allocator::CUDAAllocator::Name)>;

#include GPU_VMM_FORWARDED

#else

namespace gpu_vmm {

using Base = torch_allocator::CUDAAllocator;

} // namespace gpu_vmm

#endif
