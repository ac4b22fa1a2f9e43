//! The stores that contents reach through a staging ring: ordinary memory and files.

use super::pages::Pages;
use super::store::Store;
use super::stripes::Stripes;
use crate::types::{Bytes, Result};
use enum_dispatch::enum_dispatch;

/// Any of the stores.
#[enum_dispatch(Store)]
#[derive(Debug)]
pub(super) enum AnyStore {
    Pages,
    Stripes,
}
