//! What can go wrong with a pool.

use crate::PoolStats;
use gpu_vmm_core::{Address, Bytes, DeviceId, Error};

/// What the fallible functions of a pool give.
pub type PoolResult<T> = Result<T, PoolError>;

/// An error of a pool.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// There is no memory left: nothing kept serves, nothing is about to come free, nothing can be given back, and the driver
    /// has none.
    #[error("{operation} {requested} on {device} tagged {tag:?}: out of memory ({source}); {stats}")]
    OutOfMemory {
        /// What was to be done.
        operation: &'static str,
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
        "allocate {requested} tagged {tag:?}: out of addresses: {used} of the {reserved} that are reserved for them are \
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
    #[error("{operation}: {address} is not the address of a block{}", inside.map(|at| format!("; it lies in the one at {at}")).unwrap_or_default())]
    NotABlock {
        /// What was asked for.
        operation: &'static str,
        /// The address.
        address: Address,
        /// The block in which it lies, where it does.
        inside: Option<Address>,
    },
    /// A block that has been freed already.
    #[error("{operation}: the block at {address} was freed already")]
    FreedTwice {
        /// What was asked for.
        operation: &'static str,
        /// The address.
        address: Address,
    },
    /// Memory with the tag is suspended.
    #[error("{operation}: the memory tagged {tag:?} is suspended; resume it first")]
    Suspended {
        /// What was asked for.
        operation: &'static str,
        /// The tag.
        tag: Box<str>,
    },
    /// No memory has the tag.
    #[error("{operation}: nothing is tagged {tag:?}; there are {there}")]
    NoSuchTag {
        /// What was asked for.
        operation: &'static str,
        /// The tag.
        tag: Box<str>,
        /// Those that are.
        there: String,
    },
    /// What the core or a driver answered.
    #[error(transparent)]
    Core(Box<Error>),
}

impl From<Error> for PoolError {
    fn from(error: Error) -> Self {
        Self::Core(Box::new(error))
    }
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

impl PoolError {
    /// True where there was too little memory.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory { .. } => true,
            Self::Core(error) => error.is_out_of_memory(),
            _ => false,
        }
    }
}
