//! What a run came to, for people and for programs.

mod environment;

pub use environment::Environment;
