// The functions of CUDA's or HIP's runtime that the process has loaded. The library is linked to neither.

#pragma once

#include <cstddef>

namespace tms {

// The status codes of both runtimes.
enum RuntimeStatus { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, UNKNOWN_ERROR = 999 };

enum class Vendor { CUDA, HIP };

// Returns a function of the vendor's runtime, such as "Malloc" for cudaMalloc or hipMalloc: the runtime's own, also if this library
// exports the same name. Null if the process has not loaded the runtime.
void *runtime_function(Vendor vendor, const char *name);

// Returns the thread's current device, or 0 without a runtime.
int current_device(Vendor vendor);

// Waits for all work of a device, if the process has loaded a runtime. Returns whether it waited.
bool synchronize(int device);

}  // namespace tms
