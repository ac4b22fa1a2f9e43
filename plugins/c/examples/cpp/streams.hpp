// Streams for the examples: of CUDA's driver, and the default stream on other backends. Programs have streams of their own.

#pragma once

#include <dlfcn.h>
#include <gpu_vmm.hpp>

#include <cstring>

class example_stream {
public:
    explicit example_stream(const gpu_vmm::backend &backend) {
        if (std::strcmp(backend.name(), "cuda") != 0) return;
        void *const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
        void *context = nullptr;
        const auto retain = reinterpret_cast<int (*)(void **, int)>(::dlsym(driver, "cuDevicePrimaryCtxRetain"));
        const auto set_current = reinterpret_cast<int (*)(void *)>(::dlsym(driver, "cuCtxSetCurrent"));
        const auto create = reinterpret_cast<int (*)(CUstream_st **, unsigned)>(::dlsym(driver, "cuStreamCreate"));
        // After an error it is the default stream.
        (void)(retain(&context, 0) == 0 && set_current(context) == 0 && create(&stream_, 1));
    }
    operator CUstream_st *() const { return stream_; }

private:
    CUstream_st *stream_ = nullptr;
};
