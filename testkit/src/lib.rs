//! Tools for the tests and benchmarks of [gpu-vmm](https://docs.rs/gpu-vmm).
//!
//! | item | what |
//! |---|---|
//! | [`FaultInject`] | a backend around a backend, whose driver calls fail on demand |
//! | [`LateWork`] | a backend around a backend, whose streams are the test's own and end late |
//! | [`endurance`] | programs that run for long on a pool, with a model of what it may use |
//! | [`time_in_driver`] | the time that a thread has spent in the calls of such a backend |
//! | [`TestKit`] | a backend with kernels that write and check memory, streams, captures |
//! | [`raw`] | the drivers' own calls |
//! | [`short()`] | an error in a few words |
//! | `forked`, [`Random`] | child processes and random numbers for tests |

pub mod endurance;
#[cfg(target_os = "linux")]
pub mod forked;
mod layers;
mod random;
// Raw calls share memory by descriptors and look functions up as on Unix.
#[cfg(unix)]
pub mod raw;
mod short;

pub use gpu_vmm_core::testkit::{
    CaptureMode, Count, Graph, PATTERN_WORD, TestKit, Walked, WorkStream, check_may_map, check_may_wait,
    count_wrong_words, handle_of, pattern_word, round_seeds, write_pattern_words,
};
pub use layers::{
    FaultHandle, FaultInject, FaultMulticast, FaultReservation, LateWork, Live, time_in_driver,
};
pub use random::Random;
pub use short::short;
