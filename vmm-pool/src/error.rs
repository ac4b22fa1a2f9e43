//! What can go wrong with a pool.

use crate::PoolStats;
use gpu_vmm_core::extend::ExtensionError;
use gpu_vmm_core::{Address, Bytes, DeviceId, DriverError, Error, ErrorKind};

/// What is behind an error of a pool, beside what the core or a driver answers.
/// [`Error::extension`] returns it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// There is no memory left: nothing kept serves, nothing is about to come free, nothing can be given back, and the driver
    /// has none.
    #[error("out of memory for {requested} on {device} tagged {tag:?} ({source}); {stats}")]
    OutOfMemory {
        /// How much was asked for.
        requested: Bytes,
        /// The pool's device.
        device: DeviceId,
        /// What it is tagged with.
        tag: Box<str>,
        /// Where the memory is.
        stats: Box<PoolStats>,
        /// What stopped it: the driver's answer, or the budget.
        source: Box<OutOf>,
    },
    /// There are no addresses left, though there may be memory.
    #[error(
        "out of addresses for {requested} tagged {tag:?}: {used} of the {reserved} that are reserved for them are \
         in use, and the pool may reserve {limit} in all; {stats}"
    )]
    OutOfAddresses {
        /// How much was asked for.
        requested: Bytes,
        /// What it is tagged with.
        tag: Box<str>,
        /// How many addresses of the tag lie below its highest block.
        used: Bytes,
        /// How many the tag has.
        reserved: Bytes,
        /// How many the pool may have.
        limit: Bytes,
        /// Where the memory is.
        stats: Box<PoolStats>,
    },
    /// An address that is no block's first one.
    #[error("{address} is not the address of a block{}", inside.map(|at| format!("; it lies in the one at {at}")).unwrap_or_default())]
    NotABlock {
        /// The address.
        address: Address,
        /// The block in which it lies, where it does.
        inside: Option<Address>,
    },
    /// A block that has been freed already.
    #[error("the block at {address} was freed already")]
    FreedTwice {
        /// The address.
        address: Address,
    },
    /// Memory with the tag is suspended.
    #[error("the memory tagged {tag:?} is suspended; resume it first")]
    Suspended {
        /// The tag.
        tag: Box<str>,
    },
    /// No memory has the tag.
    #[error("nothing is tagged {tag:?}; there are {there}")]
    NoSuchTag {
        /// The tag.
        tag: Box<str>,
        /// Those that are.
        there: String,
    },
}

/// What there was no more of.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OutOf {
    /// The driver had no more memory.
    #[error("{0}")]
    Driver(Error),
    /// The pool's budget.
    #[error("the pool may hold {0}")]
    Budget(Bytes),
}

impl ExtensionError for PoolError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::OutOfMemory { .. } => ErrorKind::OutOfMemory,
            Self::OutOfAddresses { .. } => ErrorKind::OutOfAddressSpace,
            Self::NotABlock { .. } | Self::FreedTwice { .. } | Self::NoSuchTag { .. } => ErrorKind::NotFound,
            Self::Suspended { .. } => ErrorKind::Suspended,
        }
    }

    fn driver_error(&self) -> Option<&DriverError> {
        match self {
            Self::OutOfMemory { source, .. } => match &**source {
                OutOf::Driver(error) => error.driver_error(),
                OutOf::Budget(_) => None,
            },
            _ => None,
        }
    }
}
