//! Spans and events for the crate `tracing`, with the feature of that name. Without the feature they compile to nothing.

/// Opens a span that lasts until the end of the block.
#[cfg(feature = "tracing")]
macro_rules! span {
    ($name:literal $(, $key:ident = $value:expr)* $(,)?) => {
        let _span = tracing::debug_span!(target: "gpu_vmm_pool", $name $(, $key = $value)*).entered();
    };
}

/// Emits an event.
#[cfg(feature = "tracing")]
macro_rules! event {
    ($level:ident, $name:literal $(, $key:ident = $value:expr)* $(,)?) => {
        tracing::event!(target: "gpu_vmm_pool", tracing::Level::$level, $($key = $value,)* $name)
    };
}

#[cfg(not(feature = "tracing"))]
macro_rules! span {
    ($($anything:tt)*) => {};
}

#[cfg(not(feature = "tracing"))]
macro_rules! event {
    ($($anything:tt)*) => {};
}

pub(crate) use {event, span};
