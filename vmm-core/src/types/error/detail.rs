//! What is behind an error, one variant for each rule that was broken, with its numbers and its text.

use super::driver::{DriverError, LoadAttempt, list};
use super::{Error, ExtensionError};
use crate::types::{
    Access, Address, AddressRange, Alignment, BankId, Bytes, DeviceId, Granularity, OffsetRange, Vendor,
};
use std::sync::Arc;

/// What is behind an [`Error`], with the numbers that it prints.
///
/// A variant without a [`DriverError`] comes from a check before any driver call, but for those whose text names the driver:
/// nothing has changed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Detail {
    /// A size of zero.
    #[error("the size is zero; pass at least one byte")]
    ZeroSize,
    /// A size, an offset or an address that is no multiple of what it must be.
    #[error(
        "{what} {value:#x} is not a multiple of the granularity ({granularity}); the next lower multiple is {:#x}",
        value - value % granularity.bytes().0
    )]
    Unaligned {
        /// Which of the numbers: `size`, `offset`, `length`, `address`.
        what: &'static str,
        /// The number.
        value: u64,
        /// What it must be a multiple of.
        granularity: Granularity,
    },
    /// An alignment that no reservation can have.
    #[error("alignment {} is not a power of two of at most {}", alignment.0, Alignment::MAX)]
    BadAlignment {
        /// The alignment.
        alignment: Bytes,
    },
    /// An offset and a length, or an address and a size, whose sum does not fit 64 bits.
    #[error("{base:#x} + {length:#x} exceeds 2^64 - 1")]
    Overflow {
        /// The offset or address.
        base: u64,
        /// The length.
        length: u64,
    },
    /// A part that lies, wholly or partly, outside of the region, the memory or the multicast object.
    #[error("{range} ends at {}, beyond the limit of {limit}", range.end())]
    OutOfRange {
        /// The part.
        range: OffsetRange,
        /// How much there is.
        limit: Bytes,
    },
    /// A reservation larger than any address space.
    #[error("{size} of addresses exceed the address space of a process ({limit})")]
    AddressSpaceExhausted {
        /// How much.
        size: Bytes,
        /// The most that could be.
        limit: Bytes,
    },
    /// More memory than the device has, free or not.
    #[error("{requested} exceeds the memory of {device} ({total})")]
    ExceedsDevice {
        /// How much memory.
        requested: Bytes,
        /// The device.
        device: DeviceId,
        /// All that the device has.
        total: Bytes,
    },
    /// A mapping is there already.
    #[error("{range} overlaps the mapping of {mapping}; unmap that one first")]
    AlreadyMapped {
        /// The part.
        range: OffsetRange,
        /// The mapping in the way.
        mapping: OffsetRange,
    },
    /// Nothing is mapped in some of the part.
    #[error(
        "{range} is not fully mapped: nothing is mapped at offset {hole}; the region has {mapped} mapped, the last of it up to \
         offset {end}"
    )]
    NotMapped {
        /// The part.
        range: OffsetRange,
        /// The first offset at which nothing is mapped.
        hole: Bytes,
        /// How much of the region is mapped.
        mapped: Bytes,
        /// Where the region's last mapping ends.
        end: Bytes,
    },
    /// A part that cuts through a mapping, where whole mappings are needed.
    #[error("{range} cuts the mapping of {mapping}; drivers unmap and protect whole mappings only")]
    PartialMapping {
        /// The part.
        range: OffsetRange,
        /// The mapping that is cut.
        mapping: OffsetRange,
    },
    /// One handle across the border of two reservations, which HIP refuses.
    #[error(
        "{range} crosses the border of two reservations at offset {seam}; map one handle up to it and another from it on"
    )]
    CrossesReservation {
        /// The part.
        range: OffsetRange,
        /// Where the next reservation begins.
        seam: Bytes,
    },
    /// The address that had to be had is taken. What was offered instead has been given back.
    #[error("the driver returned address {offered} instead of {wanted}, which was required")]
    AddressTaken {
        /// The address that had to be.
        wanted: Address,
        /// The address that the driver gave for it.
        offered: Address,
    },
    /// A region would grow beyond its reservation, and the addresses behind that are taken. What was offered instead has been
    /// given back.
    #[error(
        "0..{asked} exceeds the reservation of {reserved}, and the driver returned {offered} instead of the addresses \
         behind it, from {wanted} on; reserve more addresses when the region is built, or let it move (grow_or_move, DeviceVec::movable)"
    )]
    OutgrewReservation {
        /// The end that the region would have.
        asked: Bytes,
        /// How many addresses it has.
        reserved: Bytes,
        /// The address behind the reservation.
        wanted: Address,
        /// The address that the driver gave for it.
        offered: Address,
    },
    /// None of the places was to be had from which other processes can be given the same addresses. What was offered
    /// instead has been given back. A kernel that gives a process 39 bits of addresses, as some of ARM's do, has none of
    /// them, and a driver may take no hints.
    #[error(
        "none of {tries} addresses in {window}, which other processes can reserve as well, was free: \
         for {wanted} the driver returned {offered}"
    )]
    NotRestorable {
        /// How many places were asked for.
        tries: u32,
        /// The addresses that they lie in.
        window: AddressRange,
        /// The last of them.
        wanted: Address,
        /// The address that the driver gave for it.
        offered: Address,
    },
    /// A device that the backend does not have.
    #[error("{device} does not exist; the {vendor} backend has {count}")]
    NoSuchDevice {
        /// The device.
        device: DeviceId,
        /// The backend's vendor.
        vendor: Vendor,
        /// How many devices it has.
        count: u32,
    },
    /// A device that cannot reach another one's memory.
    #[error("{device} cannot reach the memory of {owner}")]
    PeerUnreachable {
        /// Who wants access.
        device: DeviceId,
        /// Whose memory it is.
        owner: DeviceId,
    },
    /// A device that would have to read or write where it may not.
    #[error("{device} has {have} at offset {offset} and needs {need}")]
    NoAccess {
        /// Who would do it.
        device: DeviceId,
        /// Where.
        offset: Bytes,
        /// What the device may do there.
        have: Access,
        /// What it would have to be allowed.
        need: Access,
    },
    /// A mapping of memory shorter than the type, or a count that does not fit.
    #[error("{count} elements of {element} bytes exceed 2^64 - 1 bytes")]
    TooManyElements {
        /// How many.
        count: usize,
        /// The size of one in bytes.
        element: usize,
    },
    /// An index behind the end.
    #[error("index {index} is not below the length {length}")]
    NoSuchElement {
        /// The index.
        index: usize,
        /// The length.
        length: usize,
    },
    /// A part of a region that no tensor can show.
    #[error("{reason}")]
    BadTensor {
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// Tensors of the region are still in use, which would lose their memory.
    #[error(
        "{count} {} of this region {} still in use elsewhere; drop {} first",
        if *count == 1 { "tensor" } else { "tensors" },
        if *count == 1 { "is" } else { "are" },
        if *count == 1 { "it" } else { "them" }
    )]
    Exported {
        /// How many there are.
        count: usize,
    },
    /// Memory that another backend, or another instance of this one, made.
    #[error("the memory belongs to {theirs}, not to {ours}; create it with the latter")]
    ForeignHandle {
        /// Whose the handle is.
        theirs: String,
        /// Whose the region or the multicast object is.
        ours: String,
    },
    /// A stream of another device, or of another context, than the event that was to be recorded there.
    #[error("the stream belongs to {theirs}, and the event to {ours}; create an event for {theirs}")]
    ForeignStream {
        /// Whose the stream is.
        theirs: String,
        /// Whose the event is.
        ours: String,
    },
    /// Devices of which no multicast team can be made.
    #[error("{why}")]
    BadTeam {
        /// What is wrong with them.
        why: String,
    },
    /// A device that is not one of those which this process has in a multicast team.
    #[error("{device} is not in the team; of this process it has {team}")]
    NotInTeam {
        /// The device.
        device: DeviceId,
        /// Those that are.
        team: String,
    },
    /// Memory of the device is bound to that part of a multicast object already.
    #[error("{range} overlaps the binding of {binding} for {device}; unbind that one first")]
    AlreadyBound {
        /// Whose memory it is.
        device: DeviceId,
        /// The part.
        range: OffsetRange,
        /// The binding in the way.
        binding: OffsetRange,
    },
    /// No memory of the device is bound where there should be some.
    #[error("no memory of {device} is bound {place}")]
    NotBound {
        /// The device.
        device: DeviceId,
        /// Where it should be.
        place: String,
    },
    /// A set of memory that is not there, or not any more.
    #[error("{set} does not exist; there are: {there}")]
    NoSuchBank {
        /// Which one.
        set: BankId,
        /// Those that are.
        there: String,
    },
    /// The device has not that much memory free.
    #[error("{device} is out of memory (requested {requested}, free {free} of {total}): {source}")]
    OutOfMemory {
        /// The device.
        device: DeviceId,
        /// How much was asked for.
        requested: Bytes,
        /// What the driver says is free.
        free: Bytes,
        /// What there is in all.
        total: Bytes,
        /// What the driver answered.
        source: DriverError,
    },
    /// This backend, device or version cannot do it.
    #[error("not supported: {reason}")]
    Unsupported {
        /// Why not.
        reason: String,
    },
    /// No library of the vendor could be loaded.
    #[error(
        "the {vendor} backend found no usable library ({what}); if it is elsewhere, set {variable} to its path; tried:{}",
        list(tried)
    )]
    LibraryNotFound {
        /// The vendor.
        vendor: Vendor,
        /// What the library is.
        what: &'static str,
        /// The environment variable that names a library to load.
        variable: &'static str,
        /// Where it was looked for, in order, with what the loader said.
        tried: Vec<LoadAttempt>,
    },
    /// A library was loaded and cannot be used.
    #[error("the {vendor} backend cannot use {library}: {reason}")]
    LibraryRefused {
        /// The vendor.
        vendor: Vendor,
        /// The library.
        library: String,
        /// Why not.
        reason: String,
    },
    /// The vendor's driver runs and has no device.
    #[error("the {vendor} backend has no device: {reason}")]
    NoDevice {
        /// The vendor.
        vendor: Vendor,
        /// What the driver said.
        reason: String,
    },
    /// The process forked after the backend was opened; drivers do not work in the child.
    #[error("this process was forked after the driver was opened; open GPUs after fork, or use exec")]
    Forked,
    /// Memory of another process that cannot be taken in here: what it was made with is not what is here.
    #[error("the exporter's {what} is {theirs}; {ours}")]
    Mismatch {
        /// What differs: `vendor`, `device`, `location`, `granularity`, `version`.
        what: &'static str,
        /// What the exporter has.
        theirs: String,
        /// What is here.
        ours: String,
    },
    /// A part of the region whose state could not be put back after an earlier failure.
    #[error("{range} cannot be used since an earlier rollback failed: {cause}")]
    Poisoned {
        /// The part.
        range: OffsetRange,
        /// What had failed.
        cause: String,
    },
    /// An operation failed, and putting back what it had done failed too; that part is out of use.
    #[error("{}; the rollback failed as well: {undo}", error.detail())]
    RollbackFailed {
        /// Why the operation failed.
        error: Error,
        /// Why it could not be undone.
        undo: Error,
    },
    /// The region is suspended: it has its addresses and no memory.
    #[error("the region of {reserved} at {address} is suspended; resume it first")]
    Suspended {
        /// Where the region begins.
        address: Address,
        /// How many addresses it has.
        reserved: Bytes,
    },
    /// The region is suspended and its contents are kept, but its addresses went to somebody else while the driver gave
    /// the memory back.
    #[error(
        "the region is suspended and its contents are saved, but other reservations took some of its addresses \
         ({reserved} at {address}); resume it when they are free: {source}"
    )]
    AddressesLost {
        /// Where the region begins.
        address: Address,
        /// How many addresses it has.
        reserved: Bytes,
        /// Which addresses were lost: a [`Detail::AddressTaken`].
        source: Error,
    },
    /// Memory that somebody else has too, so that it could not be given back, or would not come back as the same.
    #[error("the memory of {range} {holder}")]
    StillReferenced {
        /// Where it is mapped in the region.
        range: OffsetRange,
        /// Who has it, and what would be right.
        holder: &'static str,
    },
    /// Mappings with unequal access that one mapping would have to take the place of.
    #[error(
        "{range} would become one mapping, and its access differs: {device} has {one} and {other}; make it equal first"
    )]
    AccessDiffers {
        /// The part.
        range: OffsetRange,
        /// Whose access.
        device: DeviceId,
        /// What it has at the beginning.
        one: Access,
        /// What it has further on.
        other: Access,
    },
    /// The addresses behind the region are its guard.
    #[error(
        "the region ends at {end}, followed by its guard of {guard}; reserve more addresses, or let it move"
    )]
    Guarded {
        /// Where the region ends.
        end: Address,
        /// How many addresses the guard has.
        guard: Bytes,
    },
    /// What is to keep the contents of suspended memory has not that much room.
    #[error("the backing store is full: {needed} needed, {free} of {capacity} free")]
    BackingStoreFull {
        /// How much is to be kept.
        needed: Bytes,
        /// How much room there is.
        free: Bytes,
        /// How much there is in all.
        capacity: Bytes,
    },
    /// What the system answered to work on a file.
    #[error("{path}: {source}")]
    File {
        /// Which file.
        path: String,
        /// What the system answered.
        source: DriverError,
    },
    /// A device or stream cannot be waited for, since a stream captures work for a graph.
    #[error("{}", capturing(source.as_ref()))]
    Capturing {
        /// What the driver answered; none if the capture was known and the driver was not asked.
        source: Option<DriverError>,
    },
    /// The device or its context has died, by a fault in a kernel for example.
    #[error("the device is lost to this process: {source}")]
    DeviceLost {
        /// What the driver answered.
        source: DriverError,
    },
    /// A driver answered success and did something else.
    #[error("the driver broke its contract: {what}")]
    DriverContractViolated {
        /// What it did instead.
        what: String,
    },
    /// Any other answer of a driver or of the system.
    #[error("{source} ({context})")]
    Driver {
        /// What the driver answered.
        source: DriverError,
        /// The numbers that were given to it.
        context: String,
    },
    /// What an extension of the library says, such as gpu-vmm-share or gpu-vmm-pool.
    #[error(transparent)]
    Extension(Arc<dyn ExtensionError>),
}

/// Why nothing can be waited for, and what to do.
fn capturing(source: Option<&DriverError>) -> String {
    let answer = source.map(|source| format!(" ({source})")).unwrap_or_default();
    format!("cannot wait while a stream captures into a graph{answer}; end the capture first")
}
