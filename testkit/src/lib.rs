//! What tests and benchmarks of [gpu-vmm](https://docs.rs/gpu-vmm) are made of.
//!
//! | item | what |
//! |---|---|
//! | [`FaultInject`] | a backend around a backend, whose driver calls fail on demand |
//! | [`TestKit`] | a backend with kernels that write and check memory, streams, captures |
//! | [`raw`] | the drivers' own calls |
//! | [`short()`] | an error in a few words |
//! | `forked`, [`Random`] | child processes and numbers for tests |

#[cfg(target_os = "linux")]
pub mod forked;
mod layers;
mod random;
// Memory is shared by descriptors, and libraries are found as Unix has them.
#[cfg(unix)]
pub mod raw;
mod short;

pub use gpu_vmm_core::testkit::{
    CaptureMode, Count, Graph, PATTERN_WORD, TestKit, Walked, WorkStream, count_wrong_words, handle_of,
    pattern_word, round_seeds, write_pattern_words,
};
pub use layers::{FaultHandle, FaultInject, FaultMulticast, FaultReservation, Live};
pub use random::Random;
pub use short::short;
