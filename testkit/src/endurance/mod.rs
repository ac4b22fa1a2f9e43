//! Programs that run for long on a pool, and a model of what the pool may use.
//!
//! [`run`] runs a [`Program`] and checks after its steps that the pool uses no more than the bound, which depends on the largest load
//! so far: the sum of live bytes and of bytes whose work is not done.
//!
//! | file | subject |
//! |---|---|
//! | `bound` | the bound: one function for each resource |
//! | `groups`, `load`, `model` | the groups of sizes, and the load of a program |
//! | `program` | the sizes, lifetimes and calls of a program |
//! | `runner`, `state`, `worker` | the run of a program, by one or several threads |
//! | `work` | the streams of a program |

mod bound;
mod groups;
mod load;
mod model;
mod program;
mod runner;
mod state;
mod work;
mod worker;

pub use bound::{Amounts, most_mapped};
pub use program::{Order, Program, Sizes};
pub use runner::{Limit, Report, run};
pub use state::Violation;
pub use work::{Work, memory_of};
