// What the test programs of C++ share: checks that end the program, and the program's backend. They compile with and without exceptions.

#pragma once

#include "gpu_vmm.hpp"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>

inline void demand(bool holds, const char *what) {
    if (!holds) {
        std::fprintf(stderr, "failed: %s; the last error is: %s\n", what, gpu_vmm_last_error());
        std::exit(1);
    }
}

// The value of a call that must succeed.
#define VALUE(call) GPU_VMM_VALUE(call)

// A call that must fail with a kind of error.
#if GPU_VMM_EXCEPTIONS
#define FAILS(expected, call)                                                     \
    do {                                                                          \
        bool has_failed = false;                                                  \
        try {                                                                     \
            (void)(call);                                                         \
        } catch (const gpu_vmm::error &error) {                                   \
            has_failed = true;                                                    \
            demand(error.kind() == gpu_vmm::error_kind::expected, #call ": " #expected); \
            demand(std::strlen(error.what()) > 0, "an error has a text");         \
            demand(std::strlen(error.operation()) > 0, "an error names its function"); \
        }                                                                         \
        demand(has_failed, #call " fails");                                       \
    } while (false)
#else
#define FAILS(expected, call)                                                     \
    do {                                                                          \
        const auto outcome = (call);                                              \
        demand(!outcome, #call " fails");                                         \
        demand(outcome.error().kind() == gpu_vmm::error_kind::expected, #call ": " #expected); \
        demand(std::strlen(outcome.error().what()) > 0, "an error has a text");   \
        demand(std::strlen(outcome.error().operation()) > 0, "an error names its function"); \
    } while (false)
#endif

// The backend that the first argument names.
inline gpu_vmm::backend backend_of(int count, char **arguments) {
    // Line-buffered, so that the output is complete even if a driver ends the process.
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    return VALUE(gpu_vmm::backend::open(count > 1 ? arguments[1] : nullptr));
}

// A path for a file of this process in the directory for temporary files.
inline std::string temporary(const char *name) {
    const char *const folder = std::getenv("TMPDIR");
    return std::string(folder == nullptr ? "/tmp" : folder) + "/gpu-vmm-cpp-" + std::to_string(::getpid()) + "-" + name;
}
