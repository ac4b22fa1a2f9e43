#pragma once

/// @file
/// The types of arguments: sizes, streams, kinds of memory, access, and where contents are kept.

#include "error.hpp"

#include <chrono>
#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <vector>

// The types behind cudaStream_t (and CUstream) and hipStream_t, which the vendors' headers define.
struct CUstream_st;
struct ihipStream_t;

GPU_VMM_BEGIN_NAMESPACE

/// A number of bytes: a size, or an offset. Arithmetic saturates: a sum or a product that is too large is the largest number, which every
/// call refuses, and a difference is at least zero.
class bytes {
public:
    /// Zero.
    constexpr bytes() noexcept = default;
    /// A number.
    explicit constexpr bytes(std::uint64_t count) noexcept : count_(count) {}
    /// The size of `count` objects of a type.
    template <class T>
    [[nodiscard]] static constexpr bytes of(std::uint64_t count = 1) noexcept {
        return bytes(sizeof(T)) * count;
    }

    /// Returns the number.
    [[nodiscard]] constexpr std::uint64_t count() const noexcept { return count_; }

    /// The sum.
    friend constexpr bytes operator+(bytes a, bytes b) noexcept { return bytes(a.count_ > most - b.count_ ? most : a.count_ + b.count_); }
    /// The difference, at least zero.
    friend constexpr bytes operator-(bytes a, bytes b) noexcept { return bytes(a.count_ < b.count_ ? 0 : a.count_ - b.count_); }
    /// The product.
    friend constexpr bytes operator*(bytes a, std::uint64_t b) noexcept {
        return bytes(b != 0 && a.count_ > most / b ? most : a.count_ * b);
    }
    /// The product.
    friend constexpr bytes operator*(std::uint64_t a, bytes b) noexcept { return b * a; }
    /// How often a size fits into another one. The divisor must not be zero.
    friend constexpr std::uint64_t operator/(bytes a, bytes b) noexcept { return a.count_ / b.count_; }

    friend constexpr bool operator==(bytes a, bytes b) noexcept { return a.count_ == b.count_; }
    friend constexpr bool operator!=(bytes a, bytes b) noexcept { return a.count_ != b.count_; }
    friend constexpr bool operator<(bytes a, bytes b) noexcept { return a.count_ < b.count_; }
    friend constexpr bool operator<=(bytes a, bytes b) noexcept { return a.count_ <= b.count_; }
    friend constexpr bool operator>(bytes a, bytes b) noexcept { return a.count_ > b.count_; }
    friend constexpr bool operator>=(bytes a, bytes b) noexcept { return a.count_ >= b.count_; }

private:
    static constexpr std::uint64_t most = (std::numeric_limits<std::uint64_t>::max)();
    std::uint64_t count_ = 0;
};

/// Sizes: `64_MiB`. `using namespace gpu_vmm::literals;`
inline namespace literals {
/// Bytes.
constexpr bytes operator""_B(unsigned long long count) noexcept { return bytes(count); }
/// Units of 1024 bytes.
constexpr bytes operator""_KiB(unsigned long long count) noexcept { return bytes(1024) * count; }
/// Units of 1024 KiB.
constexpr bytes operator""_MiB(unsigned long long count) noexcept { return bytes(1024 * 1024) * count; }
/// Units of 1024 MiB.
constexpr bytes operator""_GiB(unsigned long long count) noexcept { return bytes(1024 * 1024 * 1024) * count; }
} // namespace literals

/// A range of offsets.
struct byte_range {
    /// The first offset.
    bytes offset;
    /// The length.
    bytes length;
};

/// An address of a device: a CUdeviceptr, or a pointer for HIP and for host memory.
using device_address = std::uint64_t;

/// The number of a device of a backend.
using device_number = std::uint32_t;

/// The CPU, in calls that set or query access. It is not a device.
inline constexpr device_number cpu = GPU_VMM_DEVICE_HOST;

/// A stream of CUDA or HIP. It does not own the stream.
class stream {
public:
    /// The default stream.
    constexpr stream() noexcept = default;
    /// The default stream.
    constexpr stream(std::nullptr_t) noexcept {}
    /// A cudaStream_t or CUstream.
    constexpr stream(CUstream_st *handle) noexcept : handle_(handle) {}
    /// A hipStream_t.
    constexpr stream(ihipStream_t *handle) noexcept : handle_(handle) {}
    /// A handle of either vendor.
    constexpr stream(void *handle) noexcept : handle_(handle) {}
    /// A class that converts to cudaStream_t, such as `rmm::cuda_stream_view`.
    template <class S, std::enable_if_t<std::is_class_v<S> && std::is_convertible_v<const S &, CUstream_st *>, int> = 0>
    constexpr stream(const S &other) : handle_(static_cast<CUstream_st *>(other)) {}
    /// A class whose `get()` returns a cudaStream_t, such as `cuda::stream_ref`.
    template <class S, std::enable_if_t<!std::is_convertible_v<const S &, CUstream_st *>
                                            && std::is_same_v<decltype(std::declval<const S &>().get()), CUstream_st *>, int> = 0>
    constexpr stream(const S &other) : handle_(other.get()) {}

    /// Returns the vendor's handle.
    [[nodiscard]] constexpr void *get() const noexcept { return handle_; }

private:
    void *handle_ = nullptr;
};

/// Where memory is.
enum class location : std::uint32_t {
    /// The device's own memory.
    device = GPU_VMM_LOCATION_DEVICE,
    /// Host memory on a NUMA node that the driver chooses.
    host = GPU_VMM_LOCATION_HOST,
    /// Host memory on a given NUMA node.
    host_node = GPU_VMM_LOCATION_HOST_NODE,
};

/// The handles by which memory can be exported.
enum class handle_types : std::uint32_t {
    /// None.
    none = 0,
    /// File descriptors, for processes of one Linux machine.
    fd = GPU_VMM_HANDLE_FD,
    /// Fabric handles, for machines whose GPUs share a fabric.
    fabric = GPU_VMM_HANDLE_FABRIC,
};

/// Both.
constexpr handle_types operator|(handle_types a, handle_types b) noexcept {
    return static_cast<handle_types>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}

/// The access of a device to memory.
enum class access : std::uint32_t {
    /// No reads and no writes.
    none = GPU_VMM_ACCESS_NONE,
    /// Reads only.
    read = GPU_VMM_ACCESS_READ,
    /// Reads and writes.
    read_write = GPU_VMM_ACCESS_READ_WRITE,
};

/// A kind of memory. The default is memory of device 0 that cannot be exported.
struct memory_properties {
    /// The device that owns the memory. For host memory, the device that copies to and from it.
    device_number device = 0;
    /// Where the memory is.
    gpu_vmm::location location = gpu_vmm::location::device;
    /// The NUMA node for location::host_node, else zero.
    std::uint32_t node = 0;
    /// The handles by which the memory can be exported.
    gpu_vmm::handle_types handle_types = gpu_vmm::handle_types::none;
    /// Whether the driver may compress the memory.
    bool compressible = false;
    /// Whether a network card can access the memory without the host.
    bool remote_dma = false;
};

/// Where the contents of suspended memory are kept.
class backing_store {
public:
    /// Nowhere: the contents are lost.
    [[nodiscard]] static backing_store discard() { return {}; }
    /// Ordinary memory, which the resume frees.
    [[nodiscard]] static backing_store host() { return backing_store("host"); }
    /// Ordinary memory that stays for the next suspension, which is then faster.
    [[nodiscard]] static backing_store host_kept() { return backing_store("host-kept"); }
    /// Page-locked memory, which is slow to create the first time, fast from then on, and stays as well.
    [[nodiscard]] static backing_store pinned() { return backing_store("pinned"); }
    /// An unnamed file in the directory for temporary files.
    [[nodiscard]] static backing_store file() { return backing_store("file"); }
    /// An unnamed file in a folder.
    [[nodiscard]] static backing_store file(const std::string &folder) { return backing_store("file:" + folder); }
    /// An unnamed file in each of several folders, whose disks then work at the same time.
    [[nodiscard]] static backing_store files(const std::vector<std::string> &folders) {
#if defined(_WIN32)
        const char *separator = ";";
#else
        const char *separator = ":";
#endif
        std::string list = "files";
        for (const std::string &folder : folders) list += (list.size() == 5 ? ":" : separator) + folder;
        return backing_store(list);
    }

    /// Returns the name that the C library knows, null for none.
    [[nodiscard]] const char *c_str() const noexcept { return is_kept_ ? name_.c_str() : nullptr; }

private:
    backing_store() = default;
    // A name with a zero byte names no store: cut there, it would be another one.
    explicit backing_store(const std::string &name) : name_(name.find('\0') == std::string::npos ? name : ""), is_kept_(true) {}

    std::string name_;
    bool is_kept_ = false;
};

namespace detail {

/// The common part of the classes that own an object of the C library. It frees the object, and moving it leaves an empty one behind:
/// calls with an empty one are invalid arguments, and freeing it does nothing.
template <class Object, void (*Free)(Object *)>
class owner {
public:
    /// The type of the object in the C library.
    using c_type = Object;

    /// An empty one.
    owner() noexcept = default;
    /// Owns an object of the C library from now on.
    explicit owner(Object *object) noexcept : object_(object) {}

    /// Returns the object, for functions of the C library.
    [[nodiscard]] Object *get() const noexcept { return object_.get(); }
    /// Gives up the object, which the caller must free.
    [[nodiscard]] Object *release() noexcept { return object_.release(); }
    /// Returns whether there is an object.
    explicit operator bool() const noexcept { return object_ != nullptr; }

private:
    struct freeing {
        void operator()(Object *object) const noexcept { Free(object); }
    };
    std::unique_ptr<Object, freeing> object_;
};

/// A text for the C library. One with a zero byte is an invalid argument and not a shorter text.
inline const char *c_text(const std::string &text) noexcept { return text.find('\0') == std::string::npos ? text.c_str() : nullptr; }

/// A text that the caller owns.
inline std::string take_text(char *text) {
    struct freeing {
        void operator()(char *owned) const noexcept { gpu_vmm_string_free(owned); }
    };
    const std::unique_ptr<char, freeing> owned(text);
    return text == nullptr ? std::string() : std::string(text);
}

/// Calls a C function whose last parameter receives a text.
template <class... Parameters, class... Arguments>
result<std::string> get_text(const char *operation, gpu_vmm_status (*function)(Parameters...), Arguments... arguments) {
    char *received = nullptr;
    const gpu_vmm_status status = function(arguments..., &received);
    return finish(operation, status, take_text(received));
}

inline std::uint64_t milliseconds(std::chrono::milliseconds time) noexcept {
    return time.count() < 0 ? 0 : static_cast<std::uint64_t>(time.count());
}

inline gpu_vmm_properties to_c(const memory_properties &properties) noexcept {
    gpu_vmm_properties c{};
    c.device = properties.device;
    c.location = static_cast<std::uint32_t>(properties.location);
    c.node = properties.node;
    c.handle_types = static_cast<std::uint32_t>(properties.handle_types);
    c.compressible = properties.compressible;
    c.remote_dma = properties.remote_dma;
    return c;
}

inline memory_properties from_c(const gpu_vmm_properties &c) noexcept {
    memory_properties properties;
    properties.device = c.device;
    properties.location = static_cast<location>(c.location);
    properties.node = c.node;
    properties.handle_types = static_cast<handle_types>(c.handle_types);
    properties.compressible = c.compressible;
    properties.remote_dma = c.remote_dma;
    return properties;
}

} // namespace detail

GPU_VMM_END_NAMESPACE
