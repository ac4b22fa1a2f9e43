//! The errors of a pool.

use crate::PoolStats;
use gpu_vmm_core::extend::ExtensionError;
use gpu_vmm_core::{Address, AddressRange, Bytes, DeviceId, DriverError, Error, ErrorKind, Properties};

/// The details of an error that only pools report. [`Error::extension`] returns them.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// There is no memory left: the pool keeps none that fits, none is about to be free, none can be returned to the driver,
    /// and the driver has none.
    #[error(
        "out of memory for {requested} on {device} tagged {tag:?} ({source}); {stats}{}{}", by_kind(kinds),
        waits_for_capture(*is_capturing)
    )]
    OutOfMemory {
        /// The requested size.
        requested: Bytes,
        /// The pool's device.
        device: DeviceId,
        /// The tag of the request.
        tag: Box<str>,
        /// The pool's statistics, of the requested kind of memory.
        stats: Box<PoolStats>,
        /// The statistics of each [kind](crate::Pool::with_memory) of memory, if the pool has several.
        kinds: Box<[(Properties, PoolStats)]>,
        /// The limit that was reached: the driver's error, or the budget.
        source: Box<ExhaustedResource>,
        /// True if a stream of the pool captures, a capture was announced, or the driver cannot say. Memory that is freed on a capturing
        /// stream serves no request until the capture has ended, and counts as kept in `stats`.
        is_capturing: bool,
    },
    /// There are no addresses left, though there may be memory.
    #[error(
        "out of addresses for {requested} tagged {tag:?}: {used} of the {reserved} that are reserved for them are \
         in use, and the pool may reserve {limit} in all; free blocks with this tag, or let the pool reserve more \
         addresses; {stats}"
    )]
    OutOfAddresses {
        /// The requested size.
        requested: Bytes,
        /// The tag of the request.
        tag: Box<str>,
        /// The addresses of the tag up to the end of its highest block.
        used: Bytes,
        /// The addresses that are reserved for the tag.
        reserved: Bytes,
        /// The addresses that the pool may reserve in all.
        limit: Bytes,
        /// The pool's statistics.
        stats: Box<PoolStats>,
    },
    /// The addresses that a request [names](crate::BlockRequest::at) are in use.
    #[error("{requested} cannot be a block tagged {tag:?}: {occupant}")]
    AddressTaken {
        /// The requested addresses.
        requested: AddressRange,
        /// The tag of the request.
        tag: Box<str>,
        /// What is at these addresses, or at some of them.
        occupant: Box<Occupant>,
    },
    /// The address is not the first address of a block.
    #[error("{address} is not the address of a block{}", inside.map(|at| format!("; it lies in the one at {at}")).unwrap_or_default())]
    NotABlock {
        /// The address.
        address: Address,
        /// The block that contains the address, if there is one.
        inside: Option<Address>,
    },
    /// The block was freed already.
    #[error("the block at {address} was freed already")]
    FreedTwice {
        /// The address.
        address: Address,
    },
    /// The memory with this tag is suspended.
    #[error("the memory tagged {tag:?} is suspended; resume it first")]
    Suspended {
        /// The tag.
        tag: Box<str>,
    },
    /// A part of the tag's memory stays suspended: a suspension failed, and so did the attempt to restore what it had suspended.
    /// Nothing is lost, and [`Pool::resume`](crate::Pool::resume) restores everything.
    #[error(
        "{memory} of the memory tagged {tag:?} stay suspended ({source}; restoring them: {undo}); resume the tag"
    )]
    SuspendedInPart {
        /// The tag.
        tag: Box<str>,
        /// The size of the memory that stays suspended.
        memory: Bytes,
        /// The error of the suspension.
        source: Box<Error>,
        /// The error of restoring the memory.
        undo: Box<Error>,
    },
    /// No memory has this tag.
    #[error("no memory is tagged {tag:?}; existing tags: {existing}")]
    NoSuchTag {
        /// The tag.
        tag: Box<str>,
        /// The existing tags.
        existing: String,
    },
}

/// What is at addresses that a request [names](crate::BlockRequest::at).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Occupant {
    /// A live block of the same tag.
    #[error("the block at {range} is there; free it, or choose other addresses")]
    Block {
        /// The addresses that the block occupies.
        range: AddressRange,
        /// The block's tag.
        tag: Box<str>,
    },
    /// Freed memory of the same tag that work may still use. It could not be waited for.
    #[error(
        "work may still use the freed memory at {range}; wait for its streams, or choose other addresses"
    )]
    Freed {
        /// The addresses.
        range: AddressRange,
        /// The tag of the memory.
        tag: Box<str>,
    },
    /// Addresses that the pool has reserved for another tag, or of which the request exceeds the end.
    #[error(
        "the pool has reserved {range} for blocks tagged {tag:?}; choose addresses within, with this tag, or outside"
    )]
    Reservation {
        /// The reserved addresses.
        range: AddressRange,
        /// Their tag.
        tag: Box<str>,
    },
    /// Addresses that other code of the process, or the driver, uses: the error of the reservation.
    #[error("they are in use outside of the pool ({0})")]
    OutsidePool(Error),
}

/// The resource that was exhausted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ExhaustedResource {
    /// The driver's memory.
    #[error("{0}")]
    Driver(Error),
    /// The pool's budget.
    #[error("the pool's budget is {0}")]
    Budget(Bytes),
    /// The pool's budget, of which its [source](crate::Pool::set_budget_source) grants no more.
    #[error("the pool's budget is {budget}, and there is no more: {why}")]
    Source {
        /// The budget.
        budget: Bytes,
        /// Why there is no more.
        why: Error,
    },
    /// The pool's budget, which the environment variable `GPU_VMM_BUDGET` has set.
    #[error("the pool's budget is {0}, as GPU_VMM_BUDGET says")]
    BudgetOfEnvironment(Bytes),
}

impl ExtensionError for PoolError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::OutOfMemory { .. } => ErrorKind::OutOfMemory,
            Self::OutOfAddresses { .. } => ErrorKind::OutOfAddressSpace,
            Self::AddressTaken { .. } => ErrorKind::AddressTaken,
            Self::NotABlock { .. } | Self::FreedTwice { .. } | Self::NoSuchTag { .. } => ErrorKind::NotFound,
            Self::Suspended { .. } | Self::SuspendedInPart { .. } => ErrorKind::Suspended,
        }
    }

    fn driver_error(&self) -> Option<&DriverError> {
        match self {
            Self::OutOfMemory { source, .. } => match &**source {
                ExhaustedResource::Driver(error) => error.driver_error(),
                ExhaustedResource::Budget(_)
                | ExhaustedResource::BudgetOfEnvironment(_)
                | ExhaustedResource::Source { .. } => None,
            },
            Self::SuspendedInPart { source, .. } => source.driver_error(),
            _ => None,
        }
    }
}

/// Returns what each kind of memory has, for the text of a shortage.
fn by_kind(kinds: &[(Properties, PoolStats)]) -> String {
    let text = |(properties, stats): &(Properties, PoolStats)| {
        let [held, live, kept] = [stats.held, stats.live, stats.kept].map(Bytes);
        format!("; of {properties}: {held} held, {live} live, {kept} kept")
    };
    kinds.iter().map(text).collect()
}

/// Returns the end of the text of a shortage.
const fn waits_for_capture(is_capturing: bool) -> &'static str {
    match is_capturing {
        true => "; a stream captures: what is freed on it meanwhile waits for the end of the capture",
        false => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_kind_and_numbers() {
        let stats = Box::<PoolStats>::default();
        let tag = || Box::<str>::from("kv");
        let out_of = |source| PoolError::OutOfMemory {
            requested: Bytes::mib(3),
            device: DeviceId(2),
            tag: tag(),
            stats: stats.clone(),
            kinds: Box::new([
                (Properties::on(DeviceId(2)), PoolStats { held: 20 << 20, ..PoolStats::default() }),
                (
                    Properties::on(DeviceId(2)).compressible(),
                    PoolStats { kept: 7 << 20, ..PoolStats::default() },
                ),
            ]),
            source: Box::new(source),
            is_capturing: false,
        };
        let addresses = PoolError::OutOfAddresses {
            requested: Bytes::mib(3),
            tag: tag(),
            used: Bytes::mib(5),
            reserved: Bytes::mib(7),
            limit: Bytes::mib(9),
            stats: stats.clone(),
        };
        let none = PoolError::NoSuchTag { tag: tag(), existing: "weights".to_owned() };
        let (address, inside) = (Address(0x7000), Some(Address(0x6000)));
        let range = |base, size| AddressRange { base: Address(base), size };
        let taken = |occupant| PoolError::AddressTaken {
            requested: range(0x5000, Bytes::mib(1)),
            tag: tag(),
            occupant: Box::new(occupant),
        };
        let rows: [(PoolError, ErrorKind, &[&str]); 9] = [
            (
                taken(Occupant::Block { range: range(0x4000, Bytes(9)), tag: tag() }),
                ErrorKind::AddressTaken,
                &["0x5000..0x105000 (1 MiB)", "\"kv\"", "the block at 0x4000..0x4009 (9 B)", "free it"],
            ),
            (
                taken(Occupant::Freed { range: range(0x4000, Bytes(9)), tag: tag() }),
                ErrorKind::AddressTaken,
                &["0x5000", "the freed memory at 0x4000", "wait for its streams"],
            ),
            (
                taken(Occupant::Reservation { range: range(0x4000, Bytes::mib(2)), tag: "weights".into() }),
                ErrorKind::AddressTaken,
                &["0x5000", "has reserved 0x4000", "\"weights\""],
            ),
            (
                out_of(ExhaustedResource::Budget(Bytes::mib(4))),
                ErrorKind::OutOfMemory,
                &[
                    "3 MiB",
                    "device 2",
                    "\"kv\"",
                    "4 MiB",
                    "; of device memory of device 2: 20 MiB held, 0 B live, 0 B kept",
                    "; of device memory of device 2, compressible: 0 B held, 0 B live, 7 MiB kept",
                ],
            ),
            (
                addresses,
                ErrorKind::OutOfAddressSpace,
                &["3 MiB", "\"kv\"", "5 MiB", "7 MiB", "9 MiB", "reserve more addresses"],
            ),
            (PoolError::NotABlock { address, inside }, ErrorKind::NotFound, &["0x7000", "0x6000"]),
            (PoolError::FreedTwice { address }, ErrorKind::NotFound, &["0x7000"]),
            (PoolError::Suspended { tag: tag() }, ErrorKind::Suspended, &["\"kv\""]),
            (none, ErrorKind::NotFound, &["\"kv\"", "weights"]),
        ];
        for (error, kind, words) in rows {
            assert_eq!(error.kind(), kind, "{error}");
            let text = error.to_string();
            assert!(words.iter().all(|word| text.contains(word)) && !text.contains('\n'), "{text}");
            assert!(error.driver_error().is_none());
        }
        let source = DriverError { call: "create", code: 2, name: "FULL".into(), description: "".into() };
        let driver = Error::new(
            gpu_vmm_core::Operation::CreateMemory,
            gpu_vmm_core::Detail::Driver { source, context: String::new() },
        );
        let [source, undo] =
            [driver.clone(), Error::new(gpu_vmm_core::Operation::Resume, gpu_vmm_core::Detail::ZeroSize)];
        let (source, undo) = (Box::new(source), Box::new(undo));
        let part = PoolError::SuspendedInPart { tag: tag(), memory: Bytes::mib(5), source, undo };
        assert_eq!(part.kind(), ErrorKind::Suspended);
        assert_eq!(part.driver_error().map(|error| error.code), Some(2));
        let text = part.to_string();
        assert!(
            ["FULL", "5 MiB", "\"kv\"", "resume the tag"].iter().all(|word| text.contains(word)),
            "{text}"
        );
        let error = out_of(ExhaustedResource::Driver(driver));
        assert_eq!(error.driver_error().map(|error| error.code), Some(2));
        assert!(error.to_string().contains("FULL"), "{error}");
    }
}
