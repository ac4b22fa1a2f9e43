//! What the pool is measured beside.

mod driver;
mod graphics;
mod offsets;

pub(crate) use driver::Driver;
pub(crate) use graphics::Graphics;
pub(crate) use offsets::{Locked, Offsets};
