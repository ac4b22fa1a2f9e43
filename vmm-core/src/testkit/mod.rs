//! The test kit for tests, benchmarks and the conformance suite: kernels that write and check patterns, streams and graphs. The
//! crate gpu-vmm-testkit has the rest.

mod kit;
mod patterns;

pub use crate::types::{check_may_map, check_may_wait};
pub use kit::{
    CaptureMode, Count, Graph, PATTERN_WORD, TestKit, Walked, WorkStream, count_wrong_words, handle_of,
    pattern_word, round_seeds, write_pattern_words,
};
