#pragma once

/// @file
/// What every header of gpu-vmm for C++ needs: the C header, the choice between exceptions and results, and the namespace.

#include "../gpu_vmm.h"

#if defined(_MSVC_LANG) ? _MSVC_LANG < 201703L : __cplusplus < 201703L
#error "gpu_vmm.hpp needs C++17"
#endif
#if GPU_VMM_VERSION_MAJOR != 0 || GPU_VMM_VERSION_MINOR != 1
#error "gpu_vmm.hpp and gpu_vmm.h are of different versions"
#endif

/// 1 if calls that fail throw gpu_vmm::error, 0 if they return a gpu_vmm::result. Define it before the first include to choose; by default
/// it is what the compiler does: 0 with `-fno-exceptions`.
#if !defined(GPU_VMM_EXCEPTIONS)
#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
#define GPU_VMM_EXCEPTIONS 1
#else
#define GPU_VMM_EXCEPTIONS 0
#endif
#endif

// Functions of both kinds have the same names and other results: the inner namespace keeps them apart in a program with both, and the
// versions of this header as well.
#if GPU_VMM_EXCEPTIONS
#define GPU_VMM_BEGIN_NAMESPACE namespace gpu_vmm { inline namespace v0_1 {
#else
#define GPU_VMM_BEGIN_NAMESPACE namespace gpu_vmm { inline namespace v0_1_results {
#endif
#define GPU_VMM_END_NAMESPACE }}
