//! What operations report to tools while they run: spans to the crate `tracing`, ranges to profilers.
//!
//! Every slow operation of every crate begins with the macro [`span`].
//!
//! Without the features `tracing` and `profiler`, all of it compiles to nothing. The macros are exported for the other crates of
//! gpu-vmm, each of which reports to `tracing` under its own name as the target.

#[cfg(feature = "profiler")]
mod nvtx;
#[cfg(feature = "profiler")]
pub mod pool_memory;
#[cfg(feature = "profiler")]
mod range;
#[cfg(all(feature = "profiler", target_os = "linux"))]
mod roctx;

#[cfg(feature = "profiler")]
pub use nvtx::allow_nvtx;
#[cfg(feature = "profiler")]
pub use range::Range;

/// Does nothing without the feature, so that the backend need not know it.
#[cfg(not(feature = "profiler"))]
pub const fn allow_nvtx() {}

/// The same functions without the feature, so that the pool need not know it.
#[cfg(not(feature = "profiler"))]
#[allow(missing_docs)]
pub mod pool_memory {
    use crate::types::{Address, AddressRange, Bytes};

    pub const fn is_watched() -> bool {
        false
    }

    pub const fn chunk_allocated(_: AddressRange) {}
    pub const fn chunk_freed(_: AddressRange) {}
    pub const fn block_allocated(_: Address, _: Bytes) {}
    pub const fn block_freed(_: Address) {}
}

/// Opens a span of `tracing` and a range of the profilers that last until the end of the block: the name of an
/// [`Operation`](crate::Operation), and for the span fields as in the macros of the crate `tracing`.
///
/// It begins when the arguments have been checked, so a refused call has none.
#[doc(hidden)]
#[macro_export]
macro_rules! __span {
    ($operation:ident $($fields:tt)*) => {
        $crate::__tracing_span!($operation $($fields)*);
        $crate::__profiler_range!($operation);
    };
}

#[cfg(feature = "tracing")]
#[doc(hidden)]
#[macro_export]
macro_rules! __tracing_span {
    ($operation:ident $($fields:tt)*) => {
        let _span = $crate::extend::tracing::debug_span!(
            target: env!("CARGO_CRATE_NAME"),
            $crate::Operation::$operation.name()
            $($fields)*
        )
        .entered();
    };
}

#[cfg(feature = "profiler")]
#[doc(hidden)]
#[macro_export]
macro_rules! __profiler_range {
    ($operation:ident) => {
        let _range = $crate::extend::Range::open($crate::Operation::$operation);
    };
}

/// Emits an event of `tracing`.
#[cfg(feature = "tracing")]
#[doc(hidden)]
#[macro_export]
macro_rules! __event {
    ($level:ident, $name:literal $(, $key:ident = $value:expr)* $(,)?) => {
        $crate::extend::tracing::event!(
            target: env!("CARGO_CRATE_NAME"),
            $crate::extend::tracing::Level::$level,
            $($key = $value,)*
            $name
        )
    };
}

#[cfg(not(feature = "tracing"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __tracing_span {
    ($($anything:tt)*) => {};
}

#[cfg(not(feature = "profiler"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __profiler_range {
    ($($anything:tt)*) => {};
}

#[cfg(not(feature = "tracing"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __event {
    ($($anything:tt)*) => {};
}

pub use {__event as event, __span as span};
