//! A macro for backends that wrap another one. It implements the methods that the wrapper does not change.

/// Implements methods of a backend's traits by calling the same method of a field.
///
/// `forward!(inner: Backend)` implements all methods of that trait, `forward!(inner: vendor, devices)` only the listed ones. A
/// backend that wraps another one, for example to count its calls, implements only the methods that differ:
///
/// ```
/// # use gpu_vmm_core as gpu_vmm;
/// use gpu_vmm::{Backend, Bytes, CopyCalls, DeviceId, MemoryCalls, Result, Stream, SyncCalls, extend::forward};
/// # use gpu_vmm_core::Event;
/// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
///
/// /// Counts the waits for devices.
/// #[derive(Clone, Debug)]
/// struct Counting<B> {
///     inner: B,
///     waits: Arc<AtomicU64>,
/// }
///
/// // SAFETY: every call is forwarded to the inner backend, which meets the requirements.
/// unsafe impl<B: Backend> Backend for Counting<B> {
///     forward!(inner: Backend);
/// }
/// unsafe impl<B: Backend> MemoryCalls for Counting<B> {
///     type Handle = B::Handle;
///     type Reservation = B::Reservation;
///     forward!(inner: MemoryCalls);
/// }
/// unsafe impl<B: Backend> CopyCalls for Counting<B> {
///     forward!(inner: CopyCalls);
/// }
/// unsafe impl<B: Backend> SyncCalls for Counting<B> {
///     forward!(inner: synchronize_stream, event, is_capturing, queries_spoil_captures);
///
///     fn synchronize(&self, device: DeviceId) -> Result<()> {
///         self.waits.fetch_add(1, Ordering::Relaxed);
///         self.inner.synchronize(device)
///     }
/// }
/// ```
///
/// The `unsafe` of the implementation covers the forwarded methods: they have the safety requirements of the inner backend's.
#[macro_export]
#[doc(hidden)]
macro_rules! forward {
    ($field:tt: Backend) => {
        $crate::forward!($field: vendor, instance, driver, devices, memory_info, can_access, capabilities, quirks);
        $crate::forward!($field: unmaps_runs, granularity, granularity_of, recommended_granularity, check_host_access);
        $crate::forward!($field: reservation_unit, drop_log, deferred);
    };
    ($field:tt: MemoryCalls) => {
        $crate::forward!($field: create, import, import_fabric, adopt, reserve, allocate_plain, free_plain);
    };
    ($field:tt: CopyCalls) => {
        $crate::forward!($field: copy_from_host, copy_to_host, copy, fill, pin, copy_stream);
    };
    ($field:tt: SyncCalls) => {
        $crate::forward!($field: synchronize, synchronize_stream, event, is_capturing);
        $crate::forward!($field: queries_spoil_captures, waits_spoil_captures);
    };
    ($field:tt: $($method:ident),+ $(,)?) => {
        $($crate::forward!(@ $method $field);)+
    };

    (@ vendor $field:tt) => { $crate::forward!(@safe $field vendor() -> $crate::Vendor); };
    (@ instance $field:tt) => { $crate::forward!(@safe $field instance() -> $crate::extend::InstanceId); };
    (@ driver $field:tt) => { $crate::forward!(@safe $field driver() -> $crate::DriverInfo); };
    (@ devices $field:tt) => { $crate::forward!(@safe $field devices() -> &[$crate::Device]); };
    (@ memory_info $field:tt) => {
        $crate::forward!(@safe $field memory_info(device: $crate::DeviceId) -> $crate::Result<$crate::MemoryInfo>);
    };
    (@ can_access $field:tt) => {
        $crate::forward!(@safe $field can_access(device: $crate::DeviceId, owner: $crate::DeviceId)
            -> $crate::Result<bool>);
    };
    (@ capabilities $field:tt) => {
        $crate::forward!(@safe $field capabilities(device: $crate::DeviceId)
            -> $crate::Result<::std::vec::Vec<$crate::Capability>>);
    };
    (@ quirks $field:tt) => { $crate::forward!(@safe $field quirks() -> ::std::vec::Vec<$crate::Quirk>); };
    (@ unmaps_runs $field:tt) => { $crate::forward!(@safe $field unmaps_runs() -> bool); };
    (@ granularity $field:tt) => { $crate::forward!(@safe $field granularity() -> $crate::Granularity); };
    (@ granularity_of $field:tt) => {
        $crate::forward!(@safe $field granularity_of(operation: $crate::Operation, properties: &$crate::Properties)
            -> $crate::Result<$crate::Granularity>);
    };
    (@ recommended_granularity $field:tt) => {
        $crate::forward!(@safe $field recommended_granularity(
            operation: $crate::Operation,
            properties: &$crate::Properties
        ) -> $crate::Result<$crate::Granularity>);
    };
    (@ check_host_access $field:tt) => {
        $crate::forward!(@safe $field check_host_access(operation: $crate::Operation, properties: &$crate::Properties)
            -> $crate::Result<()>);
    };
    (@ reservation_unit $field:tt) => {
        $crate::forward!(@safe $field reservation_unit() -> $crate::Granularity);
    };
    (@ drop_log $field:tt) => { $crate::forward!(@safe $field drop_log() -> &$crate::extend::DropLog); };
    (@ deferred $field:tt) => { $crate::forward!(@safe $field deferred() -> &$crate::extend::Deferred); };

    (@ create $field:tt) => {
        $crate::forward!(@unsafe $field create(size: $crate::Bytes, properties: &$crate::Properties)
            -> $crate::Result<Self::Handle>);
    };
    // The types of imported descriptors differ between operating systems.
    (@ import $field:tt) => {
        #[cfg(unix)]
        $crate::forward!(@unsafe $field import(
            from: ::std::os::fd::BorrowedFd<'_>,
            size: $crate::Bytes,
            properties: &$crate::Properties
        ) -> $crate::Result<Self::Handle>);
        #[cfg(windows)]
        $crate::forward!(@unsafe $field import_win32(
            from: ::std::os::windows::io::BorrowedHandle<'_>,
            size: $crate::Bytes,
            properties: &$crate::Properties
        ) -> $crate::Result<Self::Handle>);
    };
    (@ import_fabric $field:tt) => {
        $crate::forward!(@unsafe $field import_fabric(
            handle: &$crate::FabricHandle,
            size: $crate::Bytes,
            properties: &$crate::Properties
        ) -> $crate::Result<Self::Handle>);
    };
    (@ adopt $field:tt) => {
        $crate::forward!(@unsafe $field adopt(at: $crate::Address) -> $crate::Result<Self::Handle>);
    };
    (@ reserve $field:tt) => {
        $crate::forward!(@unsafe $field reserve(
            size: $crate::Bytes,
            alignment: $crate::Alignment,
            hint: ::std::option::Option<$crate::Address>
        ) -> $crate::Result<Self::Reservation>);
    };
    (@ allocate_plain $field:tt) => {
        $crate::forward!(@safe $field allocate_plain(device: $crate::DeviceId, size: $crate::Bytes)
            -> $crate::Result<$crate::Address>);
    };
    (@ free_plain $field:tt) => {
        $crate::forward!(@unsafe $field free_plain(device: $crate::DeviceId, at: $crate::Address, size: $crate::Bytes)
            -> $crate::Result<()>);
    };

    (@ copy_from_host $field:tt) => {
        $crate::forward!(@unsafe $field copy_from_host(device: $crate::DeviceId, to: $crate::Address, from: &[u8])
            -> $crate::Result<()>);
    };
    (@ copy_to_host $field:tt) => {
        $crate::forward!(@unsafe $field copy_to_host(device: $crate::DeviceId, to: &mut [u8], from: $crate::Address)
            -> $crate::Result<()>);
    };
    (@ copy $field:tt) => {
        $crate::forward!(@unsafe $field copy(
            device: $crate::DeviceId,
            to: $crate::Address,
            from: $crate::Address,
            length: $crate::Bytes
        ) -> $crate::Result<()>);
    };
    (@ fill $field:tt) => {
        $crate::forward!(@unsafe $field fill(
            device: $crate::DeviceId,
            at: $crate::Address,
            length: $crate::Bytes,
            value: u8
        ) -> $crate::Result<()>);
    };
    (@ pin $field:tt) => {
        $crate::forward!(@safe $field pin(size: $crate::Bytes) -> $crate::Result<::std::boxed::Box<dyn $crate::Pinned>>);
    };
    (@ copy_stream $field:tt) => {
        $crate::forward!(@safe $field copy_stream(device: $crate::DeviceId)
            -> $crate::Result<::std::boxed::Box<dyn $crate::CopyStream>>);
    };

    (@ synchronize $field:tt) => {
        $crate::forward!(@safe $field synchronize(device: $crate::DeviceId) -> $crate::Result<()>);
    };
    (@ synchronize_stream $field:tt) => {
        $crate::forward!(@safe $field synchronize_stream(device: $crate::DeviceId, stream: $crate::Stream<'_>)
            -> $crate::Result<()>);
    };
    (@ event $field:tt) => {
        $crate::forward!(@safe $field event(device: $crate::DeviceId)
            -> $crate::Result<::std::boxed::Box<dyn $crate::Event>>);
    };
    (@ is_capturing $field:tt) => {
        $crate::forward!(@safe $field is_capturing(stream: $crate::Stream<'_>) -> $crate::Result<bool>);
    };
    (@ waits_spoil_captures $field:tt) => {
        $crate::forward!(@safe $field waits_spoil_captures() -> bool);
    };
    (@ queries_spoil_captures $field:tt) => {
        $crate::forward!(@safe $field queries_spoil_captures() -> bool);
    };

    (@safe $field:tt $method:ident($($name:ident: $type:ty),*) -> $returned:ty) => {
        fn $method(&self, $($name: $type),*) -> $returned {
            self.$field.$method($($name),*)
        }
    };
    (@unsafe $field:tt $method:ident($($name:ident: $type:ty),*) -> $returned:ty) => {
        unsafe fn $method(&self, $($name: $type),*) -> $returned {
            // SAFETY: the caller meets the same requirements.
            unsafe { self.$field.$method($($name),*) }
        }
    };
}
