// The exported functions: those of torch_memory_saver's Python package, and the allocation functions of both runtimes for LD_PRELOAD.

#include "runtime.h"
#include "saver.h"
#include "settings.h"

#include <cstdlib>
#include <exception>

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace tms;

namespace {

// Runs an allocation; no exception of C++ reaches the caller.
int allocate(void **address, size_t size, int device) {
    if (!address) {
        return INVALID_VALUE;
    }
    *address = nullptr;
    std::string error;
    int status = OUT_OF_MEMORY;
    try {
        status = Saver::instance().allocate(address, size, device, error);
    } catch (const std::exception &exception) {
        error = exception.what();
    }
    if (status != SUCCESS) {
        say("allocate", error);
    }
    return status;
}

int allocate_here(Vendor vendor, void **address, size_t size) {
    if (thread_settings().interesting) {
        return allocate(address, size, current_device(vendor));
    }
    auto real = reinterpret_cast<int (*)(void **, size_t)>(runtime_function(vendor, "Malloc"));
    return real ? real(address, size) : NOT_INITIALIZED;
}

int free_here(Vendor vendor, void *address) {
    if (Saver::instance().release(address)) {
        return SUCCESS;
    }
    auto real = reinterpret_cast<int (*)(void *)>(runtime_function(vendor, "Free"));
    return real ? real(address) : NOT_INITIALIZED;
}

// Runs pause or resume. Returns 0, or 1 after an error if errors are returned.
int change(const char *what, const char *tag, std::string (Saver::*run)(const std::string &)) {
    std::string text;
    try {
        text = (Saver::instance().*run)(tag ? tag : "");
    } catch (const std::exception &exception) {
        text = exception.what();
    }
    if (text.empty()) {
        return 0;
    }
    say(what, text);
    if (!process_settings().return_errors) {
        exit(1);
    }
    return 1;
}

}  // namespace

EXPORT int cudaMalloc(void **address, size_t size) { return allocate_here(Vendor::CUDA, address, size); }
EXPORT int cudaFree(void *address) { return free_here(Vendor::CUDA, address); }
EXPORT int hipMalloc(void **address, size_t size) { return allocate_here(Vendor::HIP, address, size); }
EXPORT int hipFree(void *address) { return free_here(Vendor::HIP, address); }

// For torch.cuda.memory.CUDAPluggableAllocator. Returns null if memory is short.
EXPORT void *tms_torch_malloc(ssize_t size, int device, void *) {
    void *address = nullptr;
    return size >= 0 && allocate(&address, static_cast<size_t>(size), device) == SUCCESS ? address : nullptr;
}

EXPORT void tms_torch_free(void *address, ssize_t, int, void *) {
    if (address && !Saver::instance().release(address)) {
        say("free", "no allocation begins at the address");
    }
}

EXPORT void tms_set_interesting_region(bool interesting) { thread_settings().interesting = interesting; }
EXPORT bool tms_get_interesting_region() { return thread_settings().interesting; }
EXPORT const char *tms_get_current_tag() { return thread_settings().tag.c_str(); }
EXPORT void tms_set_enable_cpu_backup(bool enable) { thread_settings().cpu_backup = enable; }
EXPORT bool tms_get_enable_cpu_backup() { return thread_settings().cpu_backup; }
EXPORT void tms_set_enable_disk_backup(bool enable) { thread_settings().disk_backup = enable; }
EXPORT bool tms_get_enable_disk_backup() { return thread_settings().disk_backup; }
EXPORT const char *tms_get_cpu_backup_backend() { return thread_settings().cpu_kind == Kind::MMAP ? "mmap" : "pinned"; }
EXPORT void tms_set_retain_cpu_backup(bool retain) { process_settings().retain = retain; }
EXPORT bool tms_get_retain_cpu_backup() { return process_settings().retain; }
EXPORT void set_memory_margin_bytes(uint64_t bytes) { process_settings().margin = bytes; }

EXPORT void tms_set_current_tag(const char *tag) {
    if (tag) {
        thread_settings().tag = tag;
    } else {
        say("set the tag", "it is null; the tag stays");
    }
}

EXPORT void tms_set_cpu_backup_backend(const char *name) {
    if (!find_kind(name, thread_settings().cpu_kind)) {
        say("set the CPU backend", std::string(name ? name : "null") + " is none; use pinned or mmap");
    }
}

EXPORT void tms_set_disk_backup_dir(const char *directory) {
    if (directory) {
        process_settings().set_directory(directory);
    } else {
        say("set the directory", "it is null; the directory stays");
    }
}

EXPORT int tms_pause(const char *tag) { return change("pause", tag, &Saver::pause); }
EXPORT int tms_resume(const char *tag) { return change("resume", tag, &Saver::resume); }

EXPORT uint8_t *tms_get_cpu_backup_pointer(const uint8_t *address, uint64_t size) {
    return Saver::instance().backup_of(address, size);
}

// Sets whether tms_pause and tms_resume return 1 after an error. Without it, they end the process as the original does.
EXPORT void gpu_vmm_tms_return_errors(bool enable) { process_settings().return_errors = enable; }
