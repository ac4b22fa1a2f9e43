#pragma once

/// @file
/// File descriptors of exported memory.

#include "types.hpp"

#if !defined(_WIN32)
#include <unistd.h>
#endif

GPU_VMM_BEGIN_NAMESPACE

/// A file descriptor, which it closes at its end.
class descriptor {
public:
    /// None.
    descriptor() noexcept = default;
    /// Owns a descriptor from now on.
    explicit descriptor(int fd) noexcept : fd_(fd) {}
    /// Takes the other one's.
    descriptor(descriptor &&other) noexcept : fd_(other.release()) {}
    /// Closes its own and takes the other one's.
    descriptor &operator=(descriptor &&other) noexcept {
        descriptor taken(std::move(other));
        std::swap(fd_, taken.fd_);
        return *this;
    }
    ~descriptor() {
#if !defined(_WIN32)
        if (fd_ >= 0) (void)::close(fd_);
#endif
    }

    /// Returns the descriptor, -1 for none.
    [[nodiscard]] int get() const noexcept { return fd_; }
    /// Gives up the descriptor, which the caller must close.
    [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
    /// Returns whether there is one.
    explicit operator bool() const noexcept { return fd_ >= 0; }

private:
    int fd_ = -1;
};

GPU_VMM_END_NAMESPACE
