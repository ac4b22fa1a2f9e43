//! Causes of errors: one variant for each violated rule, with its numbers and its text.

use super::driver::{DriverError, LoadAttempt, list};
use super::{Error, ExtensionError};
use crate::types::{
    Access, Address, AddressRange, Alignment, BankId, Bytes, DeviceId, Granularity, OffsetRange, Vendor,
};
use std::sync::Arc;

/// The cause of an [`Error`], with the numbers that it prints.
///
/// A variant without a [`DriverError`] whose text does not name the driver comes from a check before any driver call: nothing
/// has changed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Detail {
    /// A size of zero.
    #[error("the size is zero; pass at least one byte")]
    ZeroSize,
    /// A size, an offset or an address that is not a multiple of the granularity.
    #[error(
        "{what} {value:#x} is not a multiple of the granularity ({granularity}); the next lower multiple is {:#x}",
        value - value % granularity.bytes().0
    )]
    Unaligned {
        /// The name of the number: `size`, `offset`, `length`, `address`.
        what: &'static str,
        /// The number.
        value: u64,
        /// The granularity.
        granularity: Granularity,
    },
    /// An alignment that no reservation can have.
    #[error("alignment {} is not a power of two of at most {}", alignment.0, Alignment::MAX)]
    BadAlignment {
        /// The alignment.
        alignment: Bytes,
    },
    /// An offset and a length, or an address and a size, whose sum exceeds 64 bits.
    #[error("{base:#x} + {length:#x} exceeds 2^64 - 1")]
    Overflow {
        /// The offset or address.
        base: u64,
        /// The length.
        length: u64,
    },
    /// A range that lies wholly or partly outside of the region, the memory or the multicast object.
    #[error("{range} ends at {}, beyond the limit of {limit}", range.end())]
    OutOfRange {
        /// The range.
        range: OffsetRange,
        /// The size of the region, the memory or the multicast object.
        limit: Bytes,
    },
    /// A reservation for which the process has too few free addresses.
    #[error("no {requested} of addresses are free ({source}); {advice}")]
    OutOfAddresses {
        /// The requested size.
        requested: Bytes,
        /// What would help, with the limit of the process's address space if there is one.
        advice: String,
        /// The error of the driver or the operating system.
        source: DriverError,
    },
    /// A reservation larger than the address space.
    #[error("{size} of addresses exceeds the address space of a process ({limit})")]
    ExceedsAddressSpace {
        /// The requested size.
        size: Bytes,
        /// The largest possible size.
        limit: Bytes,
    },
    /// A request for more memory than the device has in total.
    #[error("the requested {requested} exceeds the memory of {device} ({total:#})")]
    ExceedsDevice {
        /// The requested size.
        requested: Bytes,
        /// The device.
        device: DeviceId,
        /// The total memory of the device.
        total: Bytes,
    },
    /// A range that overlaps an existing mapping.
    #[error("{range} overlaps the mapping of {mapping}; unmap that one first")]
    AlreadyMapped {
        /// The range.
        range: OffsetRange,
        /// The existing mapping.
        mapping: OffsetRange,
    },
    /// A range that is not fully mapped.
    #[error(
        "{range} is not fully mapped: nothing is mapped at offset {hole}; the region has {mapped} mapped, the last of it up to \
         offset {end}"
    )]
    NotMapped {
        /// The range.
        range: OffsetRange,
        /// The first offset at which nothing is mapped.
        hole: Bytes,
        /// The amount of memory mapped in the region.
        mapped: Bytes,
        /// The end of the region's last mapping.
        end: Bytes,
    },
    /// No memory that the driver has a handle of is mapped at an address.
    #[error("no physical memory with a handle is mapped at {address}: {reason}")]
    NoMemoryAt {
        /// The address.
        address: Address,
        /// What is there, or what the driver says.
        reason: String,
    },
    /// A range that covers only a part of a mapping, although whole mappings are required.
    #[error("{range} cuts the mapping of {mapping}; drivers unmap and protect whole mappings only")]
    PartialMapping {
        /// The range.
        range: OffsetRange,
        /// The mapping.
        mapping: OffsetRange,
    },
    /// A handle that would be mapped across the border of two reservations, which HIP refuses.
    #[error(
        "{range} crosses the border of two reservations at offset {border}; map one handle up to it and another from it on"
    )]
    CrossesReservation {
        /// The range.
        range: OffsetRange,
        /// The offset at which the next reservation begins.
        border: Bytes,
    },
    /// A required address that is not free. The addresses that the driver returned instead have been freed.
    #[error("the driver returned address {offered} instead of {wanted}, which was required")]
    AddressTaken {
        /// The required address.
        wanted: Address,
        /// The address that the driver returned.
        offered: Address,
    },
    /// A growth beyond the reservation, when the addresses after it are not free. The addresses that the driver returned instead
    /// have been freed.
    #[error(
        "0..{requested} exceeds the reservation of {reserved}, and the driver returned {offered} instead of the addresses \
         behind it, from {wanted} on; reserve more addresses when the region is built, or let it move (grow_or_move, a movable vector)"
    )]
    OutgrewReservation {
        /// The end of the region after the growth.
        requested: Bytes,
        /// The size of the reservation.
        reserved: Bytes,
        /// The first address after the reservation.
        wanted: Address,
        /// The address that the driver returned.
        offered: Address,
    },
    /// No address was available that other processes can reserve too. The addresses that the driver returned instead have been
    /// freed.
    ///
    /// A kernel with 39-bit address spaces, as on some ARM systems, has no such addresses, and a driver may ignore address hints.
    #[error(
        "none of {tries} addresses in {window}, which other processes can reserve as well, was free: \
         for {wanted} the driver returned {offered}"
    )]
    NotRestorable {
        /// The number of addresses that were requested.
        tries: u32,
        /// The range from which they were chosen.
        window: AddressRange,
        /// The last requested address.
        wanted: Address,
        /// The address that the driver returned.
        offered: Address,
    },
    /// No range of free addresses below a limit. The addresses that the driver returned instead have been freed.
    #[error("no {size} of addresses below {limit} are free: the driver returned {offered}")]
    NotBelow {
        /// The size of the requested addresses.
        size: Bytes,
        /// The limit.
        limit: Address,
        /// The address that the driver returned last, or the one that growth needs.
        offered: Address,
    },
    /// A device that the backend does not have.
    #[error("{device} does not exist; the {vendor} backend has {count}")]
    NoSuchDevice {
        /// The device.
        device: DeviceId,
        /// The backend's vendor.
        vendor: Vendor,
        /// The number of its devices.
        count: u32,
    },
    /// A device that cannot access another device's memory.
    #[error("{device} cannot reach the memory of {owner}")]
    PeerUnreachable {
        /// The device without access.
        device: DeviceId,
        /// The device that owns the memory.
        owner: DeviceId,
    },
    /// A device that lacks the access that the operation needs.
    #[error("{device} has {have} at offset {offset} and needs {need}")]
    NoAccess {
        /// The device.
        device: DeviceId,
        /// The offset of the memory.
        offset: Bytes,
        /// The access that the device has there.
        have: Access,
        /// The access that it needs.
        need: Access,
    },
    /// A number of elements whose size exceeds 2^64 - 1 bytes.
    #[error("{count} elements of {element} bytes exceed 2^64 - 1 bytes")]
    TooManyElements {
        /// The number of elements.
        count: usize,
        /// The size of one element in bytes.
        element: usize,
    },
    /// An index that is not below the length.
    #[error("index {index} is not below the length {length}")]
    NoSuchElement {
        /// The index.
        index: usize,
        /// The length.
        length: usize,
    },
    /// A part of a region that cannot be exported as a tensor.
    #[error("{reason}")]
    BadTensor {
        /// The mistake, and the correct form.
        reason: String,
    },
    /// Tensors that still use memory of the region.
    #[error(
        "{count} {} of this region {} still in use elsewhere; drop {} first",
        if *count == 1 { "tensor" } else { "tensors" },
        if *count == 1 { "is" } else { "are" },
        if *count == 1 { "it" } else { "them" }
    )]
    Exported {
        /// The number of these tensors.
        count: usize,
    },
    /// Memory that another backend, or another instance of this backend, created.
    #[error("the memory belongs to {theirs}, not to {ours}; create it with the latter")]
    ForeignHandle {
        /// The backend of the handle.
        theirs: String,
        /// The backend of the region or the multicast object.
        ours: String,
    },
    /// An event that cannot be recorded on a stream, because the stream belongs to another device or context.
    #[error("the stream belongs to {theirs}, and the event to {ours}; create an event for {theirs}")]
    ForeignStream {
        /// The device or context of the stream.
        theirs: String,
        /// The device or context of the event.
        ours: String,
    },
    /// Devices that cannot form a multicast team.
    #[error("{why}")]
    BadTeam {
        /// The reason.
        why: String,
    },
    /// A device that this process has not added to the multicast team.
    #[error("{device} is not in the team; the devices of this process in it are: {team}")]
    NotInTeam {
        /// The device.
        device: DeviceId,
        /// The devices that this process has added.
        team: String,
    },
    /// A range of a multicast object to which memory of the device is already bound.
    #[error("{range} overlaps the binding of {binding} for {device}; unbind that one first")]
    AlreadyBound {
        /// The device that owns the memory.
        device: DeviceId,
        /// The range.
        range: OffsetRange,
        /// The existing binding.
        binding: OffsetRange,
    },
    /// A place of a multicast object to which no memory of the device is bound.
    #[error("no memory of {device} is bound {place}")]
    NotBound {
        /// The device.
        device: DeviceId,
        /// The place.
        place: String,
    },
    /// A bank that does not exist or was removed.
    #[error("{bank} does not exist; existing banks: {existing}")]
    NoSuchBank {
        /// The bank.
        bank: BankId,
        /// The banks that exist.
        existing: String,
    },
    /// A request for more memory than the device has free.
    #[error("{device} is out of memory (requested {requested}, free {free:#} of {total:#}): {source}")]
    OutOfMemory {
        /// The device.
        device: DeviceId,
        /// The requested size.
        requested: Bytes,
        /// The free memory, as the driver reports it.
        free: Bytes,
        /// The total memory of the device.
        total: Bytes,
        /// The driver's error.
        source: DriverError,
    },
    /// More pages than the budget of a [`PageList`](crate::PageList) allows.
    #[error(
        "{requested} exceeds the page list's budget of {budget}, with {held} held, {free} of them free; drop pages or raise the \
         budget"
    )]
    BudgetExhausted {
        /// The size of the requested pages.
        requested: Bytes,
        /// The size of all pages of the list, free and in use.
        held: Bytes,
        /// The size of its free pages.
        free: Bytes,
        /// The budget.
        budget: Bytes,
    },
    /// An operation that this backend, device or driver version does not support.
    #[error("not supported: {reason}")]
    Unsupported {
        /// The reason.
        reason: String,
    },
    /// The vendor's library could not be loaded.
    #[error(
        "the {vendor} backend found no usable library ({what}); if it is elsewhere, set {variable} to its path; tried:{}",
        list(tried)
    )]
    LibraryNotFound {
        /// The vendor.
        vendor: Vendor,
        /// A description of the library.
        what: &'static str,
        /// The environment variable that can name the library to load.
        variable: &'static str,
        /// The attempts in order, with the loader's messages.
        tried: Vec<LoadAttempt>,
    },
    /// A library that was loaded but cannot be used.
    #[error("the {vendor} backend cannot use {library}: {reason}")]
    LibraryRefused {
        /// The vendor.
        vendor: Vendor,
        /// The library.
        library: String,
        /// The reason.
        reason: String,
    },
    /// A driver that works but has no device.
    #[error("the {vendor} backend has no device: {reason}")]
    NoDevice {
        /// The vendor.
        vendor: Vendor,
        /// The driver's message.
        reason: String,
    },
    /// A call in a child that was forked after the backend was opened; drivers do not work there.
    #[error("this process was forked after the driver was opened; open GPUs after fork, or use exec")]
    Forked,
    /// A call while the process exits. Its drivers have ended or are about to, and release all memory.
    #[error("the process exits and its driver ends; free memory before that, or leave it to the driver")]
    Exiting,
    /// Memory of another process that cannot be imported, because a property of it differs from what this process has or expects.
    #[error("the exporter's {what} is {theirs}; {ours}")]
    Mismatch {
        /// The property that differs, such as `vendor`, `device`, `location`, `granularity` or `version`.
        what: &'static str,
        /// The exporter's value.
        theirs: String,
        /// The importer's value, as a clause.
        ours: String,
    },
    /// A range whose state could not be restored after an earlier failure.
    #[error("{range} cannot be used since an earlier rollback failed: {cause}")]
    Poisoned {
        /// The range.
        range: OffsetRange,
        /// The earlier failure.
        cause: String,
    },
    /// An operation that failed and whose rollback failed too. The affected range is [poisoned](Detail::Poisoned).
    #[error("{}; the rollback failed as well: {undo}", error.detail())]
    RollbackFailed {
        /// Why the operation failed.
        error: Error,
        /// Why the rollback failed.
        undo: Error,
    },
    /// A suspended region, which has addresses but no memory.
    #[error("the region of {reserved} at {address} is suspended; resume it first")]
    Suspended {
        /// The first address of the region.
        address: Address,
        /// The size of its reservation.
        reserved: Bytes,
    },
    /// A suspended region that has lost its addresses: another reservation took them while the driver released the memory. The
    /// contents are kept.
    #[error(
        "the region is suspended and its contents are saved, but other reservations took some of its addresses \
         ({reserved} at {address}); resume it when they are free: {source}"
    )]
    AddressesLost {
        /// The first address of the region.
        address: Address,
        /// The size of its reservation.
        reserved: Bytes,
        /// The error that names the lost addresses: a [`Detail::AddressTaken`].
        source: Error,
    },
    /// Memory that is also referenced elsewhere, so that it could not be freed, or could not be restored as the same memory.
    #[error("the memory of {range} {holder}")]
    StillReferenced {
        /// The range at which it is mapped in the region.
        range: OffsetRange,
        /// The holder of the other reference, and what would be right.
        holder: &'static str,
    },
    /// Mappings with different access that one mapping is to replace.
    #[error(
        "{range} would become one mapping, and its access differs: {device} has {one} and {other}; make it equal first"
    )]
    AccessDiffers {
        /// The range.
        range: OffsetRange,
        /// The device whose access differs.
        device: DeviceId,
        /// Its access at the start of the range.
        one: Access,
        /// Its access further on.
        other: Access,
    },
    /// A growth into the guard after the region.
    #[error(
        "the region ends at {end}, followed by its guard of {guard}; reserve more addresses, or let it move"
    )]
    Guarded {
        /// The end of the region.
        end: Address,
        /// The size of the guard.
        guard: Bytes,
    },
    /// A backing store with too little free space for the contents of suspended memory.
    #[error("the backing store is full: {needed} needed, {free} of {capacity} free")]
    BackingStoreFull {
        /// The size of the contents.
        needed: Bytes,
        /// The free space.
        free: Bytes,
        /// The total space.
        capacity: Bytes,
    },
    /// A file operation that failed.
    #[error("{path}: {source}")]
    File {
        /// The path of the file.
        path: String,
        /// The operating system's error.
        source: DriverError,
    },
    /// A wait for a device or stream that is impossible while a stream captures work into a graph.
    #[error("{}", capturing(source.as_ref()))]
    Capturing {
        /// The driver's error; `None` if gpu-vmm knew of the capture and did not call the driver.
        source: Option<DriverError>,
    },
    /// A change of memory that an [observer](crate::BackingObserver) of the region has refused.
    #[error("an observer refuses the change from {range} on: {reason}")]
    Vetoed {
        /// The first range that would have changed.
        range: OffsetRange,
        /// The observer's reason.
        reason: String,
    },
    /// An [observer](crate::BackingObserver) that panicked after a change. Only the [drop log](crate::Backend::drop_log) has it.
    #[error("an observer panicked after the change: {text}")]
    ObserverPanicked {
        /// The panic's text.
        text: String,
    },
    /// A call of an [observer](crate::BackingObserver) to a region that another call uses.
    #[error(
        "the region is in use by another call, for which an observer does not wait; call after the observer has returned"
    )]
    Notifying,
    /// A device or context that has failed permanently, for example after a fault in a kernel.
    #[error("the device is lost to this process: {source}")]
    DeviceLost {
        /// The driver's error.
        source: DriverError,
    },
    /// A driver call that reported success but did something else.
    #[error("the driver broke its contract: {what}")]
    DriverContractViolated {
        /// What the driver did.
        what: String,
    },
    /// A call of a driver or the operating system that failed while the process had as many open files as `RLIMIT_NOFILE` allows. Drivers
    /// need descriptors, and have no code for their lack.
    #[error(
        "{source} ({context}); the process has no descriptor left: close some files, or raise RLIMIT_NOFILE (ulimit -n)"
    )]
    OutOfDescriptors {
        /// The driver's error.
        source: DriverError,
        /// The arguments of the call.
        context: String,
    },
    /// Any other error of a driver or of the operating system.
    #[error("{source} ({context})")]
    Driver {
        /// The driver's error.
        source: DriverError,
        /// The arguments of the call.
        context: String,
    },
    /// An error of an extension, such as gpu-vmm-share or gpu-vmm-pool.
    #[error(transparent)]
    Extension(Arc<dyn ExtensionError>),
}

/// Explains why a wait is impossible and what to do.
fn capturing(source: Option<&DriverError>) -> String {
    let answer = source.map(|source| format!(" ({source})")).unwrap_or_default();
    format!("cannot wait while a stream captures into a graph{answer}; end the capture first")
}
