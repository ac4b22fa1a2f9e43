#pragma once

/// @file
/// Errors, and what a call returns: its value, or an exception, or a gpu_vmm::result.

#include "config.hpp"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <variant>

GPU_VMM_BEGIN_NAMESPACE

/// The kinds of errors, which are the statuses of the C library.
enum class error_kind : gpu_vmm_status {
    /// An argument is invalid.
    invalid_argument = GPU_VMM_INVALID_ARGUMENT,
    /// The device is out of memory, or a budget is exhausted.
    out_of_memory = GPU_VMM_OUT_OF_MEMORY,
    /// The process has too little free address space.
    out_of_address_space = GPU_VMM_OUT_OF_ADDRESS_SPACE,
    /// There is no driver, or it does not support the call.
    unsupported = GPU_VMM_UNSUPPORTED,
    /// No block has the address, or nothing has the name.
    not_found = GPU_VMM_NOT_FOUND,
    /// The memory is suspended.
    suspended = GPU_VMM_SUSPENDED,
    /// A file cannot be created, written or read.
    file = GPU_VMM_FILE,
    /// The memory is in use.
    busy = GPU_VMM_BUSY,
    /// The process is a forked child, in which no driver works.
    forked = GPU_VMM_FORKED,
    /// The device is lost to this process.
    device_lost = GPU_VMM_DEVICE_LOST,
    /// Another error of the driver.
    driver = GPU_VMM_DRIVER,
    /// A defect of gpu-vmm.
    internal = GPU_VMM_INTERNAL,
    /// A size, an offset or an address is no multiple of the granularity.
    unaligned = GPU_VMM_UNALIGNED,
    /// A range ends outside of the memory.
    out_of_range = GPU_VMM_OUT_OF_RANGE,
    /// Memory is mapped there already.
    already_mapped = GPU_VMM_ALREADY_MAPPED,
    /// No memory is mapped there.
    not_mapped = GPU_VMM_NOT_MAPPED,
    /// The addresses are in use.
    address_taken = GPU_VMM_ADDRESS_TAKEN,
    /// No device has the number.
    no_such_device = GPU_VMM_NO_SUCH_DEVICE,
    /// The device cannot reach the memory of the other one.
    peer_unreachable = GPU_VMM_PEER_UNREACHABLE,
    /// Access rights are missing.
    access_denied = GPU_VMM_ACCESS_DENIED,
    /// A rollback has failed, and the memory can no longer be used.
    poisoned = GPU_VMM_POISONED,
    /// The other process ended, refused or sent invalid data.
    peer = GPU_VMM_PEER,
    /// The process exits, and its drivers with it.
    exiting = GPU_VMM_EXITING,
    /// The other process did not answer in time.
    timed_out = GPU_VMM_TIMED_OUT,
    /// No process listens at the path.
    no_listener = GPU_VMM_NO_LISTENER,
    /// The process that listened at the path is gone.
    stale_socket = GPU_VMM_STALE_SOCKET,
    /// The process has as many open files as it may.
    out_of_descriptors = GPU_VMM_OUT_OF_DESCRIPTORS,
};

/// An error of a call: its kind, the function that failed, and a text with the numbers and what would have been right.
class error : public std::runtime_error {
public:
    /// The error with which a C function has failed in this thread just now.
    error(gpu_vmm_status status, const char *operation)
        : std::runtime_error(gpu_vmm_last_error()), kind_(static_cast<error_kind>(status)), operation_(operation) {}

    /// An error with a text of its own.
    error(error_kind kind, const char *operation, const char *text) : std::runtime_error(text), kind_(kind), operation_(operation) {}

    /// Returns the kind, by which a program decides.
    [[nodiscard]] error_kind kind() const noexcept { return kind_; }

    /// Returns the name of the function that failed, such as "region::grow".
    [[nodiscard]] const char *operation() const noexcept { return operation_; }

private:
    error_kind kind_;
    const char *operation_;
};

namespace detail {

/// Ends the program because of an error that nothing can receive.
[[noreturn]] inline void abort_with(const char *operation, const char *text) noexcept {
    std::fprintf(stderr, "gpu_vmm::%s: %s\n", operation, text);
    std::abort();
}

} // namespace detail

#if GPU_VMM_EXCEPTIONS

/// What a call returns that can fail: the value, since errors are thrown.
template <class T>
using result = T;

/// The value of a call, in programs that compile with and without exceptions.
#define GPU_VMM_VALUE(call) (call)

#else

/// What a call returns that can fail: the value or the error, as in `std::expected`.
template <class T>
class [[nodiscard]] result {
public:
    /// A value.
    result(T value) : content_(std::in_place_index<0>, std::move(value)) {}
    /// An error.
    result(gpu_vmm::error error) : content_(std::in_place_index<1>, std::move(error)) {}

    /// Returns whether there is a value.
    [[nodiscard]] bool has_value() const noexcept { return content_.index() == 0; }
    /// Returns whether there is a value.
    explicit operator bool() const noexcept { return has_value(); }

    /// Returns the value. Ends the program with the text of the error if there is none.
    [[nodiscard]] T &value() & noexcept { return *checked(); }
    /// Returns the value. Ends the program with the text of the error if there is none.
    [[nodiscard]] const T &value() const & noexcept { return *const_cast<result *>(this)->checked(); }
    /// Returns the value. Ends the program with the text of the error if there is none.
    T value() && noexcept { return std::move(*checked()); }

    /// Returns the value, as value() does.
    [[nodiscard]] T &operator*() & noexcept { return *checked(); }
    /// Returns the value, as value() does.
    [[nodiscard]] const T &operator*() const & noexcept { return value(); }
    /// Returns the value, as value() does.
    [[nodiscard]] T operator*() && noexcept { return std::move(*checked()); }
    /// Returns the value's address, as value() does.
    [[nodiscard]] T *operator->() noexcept { return checked(); }
    /// Returns the value's address, as value() does.
    [[nodiscard]] const T *operator->() const noexcept { return &value(); }

    /// Returns the error. Ends the program if there is none.
    [[nodiscard]] const gpu_vmm::error &error() const noexcept {
        if (const auto *error = std::get_if<1>(&content_)) return *error;
        detail::abort_with("result::error", "there is a value and no error");
    }

private:
    T *checked() noexcept {
        if (T *value = std::get_if<0>(&content_)) return value;
        detail::abort_with(error().operation(), error().what());
    }

    std::variant<T, gpu_vmm::error> content_;
};

/// What a call returns that can fail and has no value.
template <>
class [[nodiscard]] result<void> {
public:
    /// The call succeeded.
    result() = default;
    /// An error.
    result(gpu_vmm::error error) : content_(std::in_place_index<1>, std::move(error)) {}

    /// Returns whether the call succeeded.
    [[nodiscard]] bool has_value() const noexcept { return content_.index() == 0; }
    /// Returns whether the call succeeded.
    explicit operator bool() const noexcept { return has_value(); }

    /// Ends the program with the text of the error if there is one.
    void value() const noexcept {
        if (!has_value()) detail::abort_with(error().operation(), error().what());
    }

    /// Returns the error. Ends the program if there is none.
    [[nodiscard]] const gpu_vmm::error &error() const noexcept {
        if (const auto *error = std::get_if<1>(&content_)) return *error;
        detail::abort_with("result::error", "there is no error");
    }

private:
    std::variant<std::monostate, gpu_vmm::error> content_;
};

/// The value of a call, in programs that compile with and without exceptions.
#define GPU_VMM_VALUE(call) (call).value()

#endif

namespace detail {

/// Ends a call without a value.
inline result<void> finish(const char *operation, gpu_vmm_status status) {
#if GPU_VMM_EXCEPTIONS
    if (status != GPU_VMM_OK) throw error(status, operation);
#else
    if (status != GPU_VMM_OK) return error(status, operation);
    return {};
#endif
}

/// Ends a call with a value.
template <class T>
result<T> finish(const char *operation, gpu_vmm_status status, T value) {
#if GPU_VMM_EXCEPTIONS
    if (status != GPU_VMM_OK) throw error(status, operation);
    return value;
#else
    if (status != GPU_VMM_OK) return error(status, operation);
    return result<T>(std::move(value));
#endif
}

/// Ends a call that this header refuses itself.
template <class T>
result<T> refuse(const char *operation, error_kind kind, const char *text) {
#if GPU_VMM_EXCEPTIONS
    throw error(kind, operation, text);
#else
    return error(kind, operation, text);
#endif
}

/// Calls a C function without a result.
template <class... Parameters, class... Arguments>
result<void> call(const char *operation, gpu_vmm_status (*function)(Parameters...), Arguments... arguments) {
    return finish(operation, function(arguments...));
}

template <class First, class... Others>
struct last : last<Others...> {};
template <class Only>
struct last<Only> {
    using type = Only;
};

/// Calls a C function whose last parameter receives the result, and makes a value of it.
template <class Value, class... Parameters, class... Arguments>
result<Value> get(const char *operation, gpu_vmm_status (*function)(Parameters...), Arguments... arguments) {
    std::remove_pointer_t<typename last<Parameters...>::type> received{};
    const gpu_vmm_status status = function(arguments..., &received);
    return finish(operation, status, static_cast<Value>(received));
}

} // namespace detail

/// What the memory resources of `std::pmr` and `cuda::mr` throw, as their users expect.
class bad_alloc : public std::bad_alloc {
public:
    /// The reason.
    explicit bad_alloc(error reason) : reason_(std::move(reason)) {}
    /// Returns the text of the error.
    [[nodiscard]] const char *what() const noexcept override { return reason_.what(); }
    /// Returns the error.
    [[nodiscard]] const error &reason() const noexcept { return reason_; }

private:
    error reason_;
};

/// Returns the version of the library, such as "0.1.0". GPU_VMM_VERSION_MAJOR and the others are the header's.
[[nodiscard]] inline const char *library_version() noexcept { return gpu_vmm_version(); }

GPU_VMM_END_NAMESPACE
