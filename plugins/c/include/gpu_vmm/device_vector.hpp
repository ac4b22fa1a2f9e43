#pragma once

/// @file
/// A vector in device memory that grows in place.

#include "region.hpp"

#include <cstring>

GPU_VMM_BEGIN_NAMESPACE

/// A vector of one device. It grows in place: pointers stay valid, and no element is copied, except on devices without virtual memory
/// management, where data() changes. Its functions copy between the host and the device and wait for that, not for work on streams. One
/// thread at a time may use it.
template <class T>
class device_vector {
    static_assert(std::is_trivially_copyable_v<T>, "elements are copied as bytes");
    static_assert(!std::is_same_v<std::remove_cv_t<T>, bool>, "std::vector<bool> has no bytes to copy; use std::uint8_t");

public:
    /// The type of the elements.
    using value_type = T;

    /// An empty vector without a device, which cannot grow.
    device_vector() noexcept = default;
    /// Takes the other one's elements and leaves it empty.
    device_vector(device_vector &&other) noexcept : region_(std::move(other.region_)), size_(std::exchange(other.size_, 0)) {}
    /// Takes the other one's elements and leaves it empty.
    device_vector &operator=(device_vector &&other) noexcept {
        region_ = std::move(other.region_);
        size_ = std::exchange(other.size_, 0);
        return *this;
    }

    /// Creates an empty vector that can grow to `reserve` bytes of addresses, zero for the size of the device's memory.
    [[nodiscard]] static result<device_vector> create(const backend &backend, bytes reserve = {}, device_number device = 0) {
        device_vector made;
        gpu_vmm_region *region = nullptr;
        const gpu_vmm_status status = gpu_vmm_region_new(backend.get(), device, reserve.count(), &region);
        made.region_ = gpu_vmm::region(region);
        return detail::finish("device_vector::create", status, std::move(made));
    }

    /// Creates an empty vector in a region with options.
    [[nodiscard]] static result<device_vector> create(const backend &backend, const region_options &options) {
        device_vector made;
        const gpu_vmm_region_options c = detail::to_c(options);
        gpu_vmm_region *region = nullptr;
        const gpu_vmm_status status = gpu_vmm_region_reserve(backend.get(), &c, &region);
        made.region_ = gpu_vmm::region(region);
        return detail::finish("device_vector::create", status, std::move(made));
    }

    /// Returns the number of elements.
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    /// Returns whether there are no elements.
    [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
    /// Returns the address of the first element, for kernels; null before the vector has a region.
    [[nodiscard]] T *data() const noexcept {
        device_address address = 0;
        (void)gpu_vmm_region_address(region_.get(), &address);
        return reinterpret_cast<T *>(static_cast<std::uintptr_t>(address));
    }
    /// Returns the number of elements for which there is memory; zero while the vector is suspended.
    [[nodiscard]] std::size_t capacity() const noexcept { return elements(gpu_vmm_region_size); }
    /// Returns the number of elements to which the vector can grow in place.
    [[nodiscard]] std::size_t max_size() const noexcept { return elements(gpu_vmm_region_reserved); }
    /// Returns the region, for all of its operations, such as region_ref::suspend and region_ref::tensor.
    [[nodiscard]] region_ref region() const noexcept { return region_; }

    /// Creates memory for at least a number of elements.
    result<void> reserve(std::size_t count) { return detail::finish("device_vector::reserve", grow(count)); }

    /// Sets the number of elements. New ones are zero. Memory of removed ones stays until shrink_to_fit.
    result<void> resize(std::size_t count) {
        gpu_vmm_status status = grow(count);
        if (status == GPU_VMM_OK && count > size_) {
            status = gpu_vmm_region_fill(region_.get(), offset(size_), offset(count) - offset(size_), 0);
        }
        if (status == GPU_VMM_OK) size_ = count;
        return detail::finish("device_vector::resize", status);
    }

    /// Removes all elements.
    void clear() noexcept { size_ = 0; }

    /// Appends elements of the host.
    result<void> append(const T *from, std::size_t count) {
        const std::size_t size = count > max_count - size_ ? max_count : size_ + count;
        gpu_vmm_status status = grow(size);
        if (status == GPU_VMM_OK && count > 0) status = gpu_vmm_region_write(region_.get(), offset(size_), from, offset(count));
        if (status == GPU_VMM_OK) size_ = size;
        return detail::finish("device_vector::append", status);
    }
    /// Appends elements of the host.
    result<void> append(const std::vector<T> &from) { return append(from.data(), from.size()); }
    /// Appends one element, by a copy to the device: append many at a time where that is possible.
    result<void> push_back(const T &value) { return append(&value, 1); }

    /// Copies elements of the host to the vector, from the element `first` on.
    result<void> write(std::size_t first, const T *from, std::size_t count) {
        if (!has(first, count)) return beyond<void>("device_vector::write");
        if (count == 0) return detail::finish("device_vector::write", GPU_VMM_OK);
        return detail::call("device_vector::write", gpu_vmm_region_write, region_.get(), offset(first), from, offset(count));
    }
    /// Copies elements to the host, from the element `first` on.
    result<void> read(std::size_t first, T *to, std::size_t count) const {
        if (!has(first, count)) return beyond<void>("device_vector::read");
        if (count == 0) return detail::finish("device_vector::read", GPU_VMM_OK);
        return detail::call("device_vector::read", gpu_vmm_region_read, region_.get(), offset(first), to, offset(count));
    }
    /// Copies one element to the host.
    [[nodiscard]] result<T> at(std::size_t index) const {
        T value{};
        if (!has(index, 1)) return beyond<T>("device_vector::at");
        const gpu_vmm_status status = gpu_vmm_region_read(region_.get(), offset(index), &value, sizeof(T));
        return detail::finish("device_vector::at", status, value);
    }
    /// Copies all elements to the host.
    [[nodiscard]] result<std::vector<T>> to_host() const {
        std::vector<T> elements(size_);
        const gpu_vmm_status status = size_ == 0 ? GPU_VMM_OK : gpu_vmm_region_read(region_.get(), 0, elements.data(), offset(size_));
        return detail::finish("device_vector::to_host", status, std::move(elements));
    }

    /// Returns memory behind the last element to the driver after a wait for the devices, and returns the number of bytes.
    result<bytes> shrink_to_fit() {
        return detail::get<bytes>("device_vector::shrink_to_fit", gpu_vmm_region_shrink, region_.get(), offset(size_), false);
    }

private:
    static constexpr std::size_t max_count = (std::numeric_limits<std::size_t>::max)();

    static std::uint64_t offset(std::size_t count) noexcept { return bytes::of<T>(count).count(); }

    [[nodiscard]] bool has(std::size_t first, std::size_t count) const noexcept { return first <= size_ && count <= size_ - first; }

    template <class V>
    static result<V> beyond(const char *operation) {
        return detail::refuse<V>(operation, error_kind::out_of_range, "the elements end behind the last one of the vector");
    }

    std::size_t elements(gpu_vmm_status (*function)(const gpu_vmm_region *, std::uint64_t *)) const noexcept {
        std::uint64_t size = 0;
        (void)function(region_.get(), &size);
        return static_cast<std::size_t>(size / sizeof(T));
    }

    gpu_vmm_status grow(std::size_t count) noexcept {
        return count <= size_ ? GPU_VMM_OK : gpu_vmm_region_grow(region_.get(), offset(count));
    }

    gpu_vmm::region region_;
    std::size_t size_ = 0;
};

GPU_VMM_END_NAMESPACE
