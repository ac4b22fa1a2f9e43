//! Programs that run for long on a pool, and a model of what the pool may use.
//!
//! [`run`] runs a [`Program`] and checks after its steps that the pool uses no more than the bound, which depends on the largest load
//! so far: the sum of live bytes and of bytes whose work is not done.

mod bound;
mod faults;
mod groups;
mod load;
mod model;
mod program;
mod runner;
mod state;
mod work;
mod worker;

pub use bound::{Amounts, most_mapped};
pub use faults::FAULTS;
pub use program::{Order, Program, Sizes};
pub use runner::{Limit, Report, run};
pub use state::Violation;
pub use work::{Work, memory_of};
