#pragma once

/// @file
/// gpu-vmm for C++17 and later: GPU virtual memory on NVIDIA's driver, AMD's HIP runtime or host memory. Header-only over the C library.
///
/// Errors: a call that fails throws gpu_vmm::error. In a program without exceptions every call returns a gpu_vmm::result, with the value or
/// the error. GPU_VMM_EXCEPTIONS chooses.
///
/// Ownership: classes own what they name and can be moved, not copied. Their ends never throw and report nothing; the classes whose end can
/// fail have a `close()` that reports it: gpu_vmm::block, gpu_vmm::capture, gpu_vmm::followed_region and gpu_vmm::serve::lease. A class that
/// was moved from is empty: its calls fail with error_kind::invalid_argument.
///
/// Order: what was created from a backend stays valid when that is closed, and a block keeps its pool. gpu_vmm::region_ref alone refers to
/// what another object owns.
///
/// Threads and forked children: as in the C header. `get()` of every class returns the object of the C library, for calls of C.

#include "gpu_vmm/backend.hpp"
#include "gpu_vmm/banked_region.hpp"
#include "gpu_vmm/copy_queue.hpp"
#include "gpu_vmm/device_vector.hpp"
#include "gpu_vmm/error.hpp"
#include "gpu_vmm/event.hpp"
#include "gpu_vmm/exchange.hpp"
#include "gpu_vmm/memory_resource.hpp"
#include "gpu_vmm/multicast.hpp"
#include "gpu_vmm/observer.hpp"
#include "gpu_vmm/physical_memory.hpp"
#include "gpu_vmm/pool.hpp"
#include "gpu_vmm/region.hpp"
#include "gpu_vmm/serve.hpp"
#include "gpu_vmm/snapshot.hpp"
#include "gpu_vmm/types.hpp"
