//! Spans and events for the crate `tracing`, with the feature of that name. Without the feature they compile to nothing.
//!
//! The macros are exported for the other crates of gpu-vmm, each of which reports under its own name as the target.

/// Opens a span that lasts until the end of the block: the name of an [`Operation`](crate::Operation), and fields as in the macros
/// of the crate `tracing`.
///
/// A span begins when the arguments have been checked, so a refused call has none.
#[cfg(feature = "tracing")]
#[doc(hidden)]
#[macro_export]
macro_rules! __span {
    ($operation:ident $($fields:tt)*) => {
        let _span = $crate::extend::tracing::debug_span!(
            target: env!("CARGO_CRATE_NAME"),
            $crate::Operation::$operation.name()
            $($fields)*
        )
        .entered();
    };
}

/// Emits an event.
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
macro_rules! __span {
    ($($anything:tt)*) => {};
}

#[cfg(not(feature = "tracing"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __event {
    ($($anything:tt)*) => {};
}

pub use {__event as event, __span as span};
