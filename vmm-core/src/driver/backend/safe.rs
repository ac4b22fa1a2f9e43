//! That no backend is made without the word `unsafe`: the same implementation with it and without, as tests of the
//! documentation.

/// With the word for all four traits it compiles.
#[doc = concat!(
    "```\n",
    include_str!("safe/forward.rs"),
    "unsafe impl<B: Backend> Backend for Forward<B> { identity!(); }\nunsafe impl<B: Backend> MemoryCalls for Forward<B> { memory!(); }\nunsafe impl<B: Backend> CopyCalls for Forward<B> { copies!(); }\nunsafe impl<B: Backend> SyncCalls for Forward<B> { waiting!(); }\n```"
)]
pub struct WithUnsafe;

/// Without it for `Backend` it does not, though it is the same.
#[doc = concat!(
    "```compile_fail,E0200\n",
    include_str!("safe/forward.rs"),
    "impl<B: Backend> Backend for Forward<B> { identity!(); }\nunsafe impl<B: Backend> MemoryCalls for Forward<B> { memory!(); }\nunsafe impl<B: Backend> CopyCalls for Forward<B> { copies!(); }\nunsafe impl<B: Backend> SyncCalls for Forward<B> { waiting!(); }\n```"
)]
pub struct BackendWithoutUnsafe;

/// Without it for `MemoryCalls` it does not, though it is the same.
#[doc = concat!(
    "```compile_fail,E0200\n",
    include_str!("safe/forward.rs"),
    "unsafe impl<B: Backend> Backend for Forward<B> { identity!(); }\nimpl<B: Backend> MemoryCalls for Forward<B> { memory!(); }\nunsafe impl<B: Backend> CopyCalls for Forward<B> { copies!(); }\nunsafe impl<B: Backend> SyncCalls for Forward<B> { waiting!(); }\n```"
)]
pub struct MemoryCallsWithoutUnsafe;

/// Without it for `CopyCalls` it does not, though it is the same. Overriding the safe `pin` would be enough to crash a program.
#[doc = concat!(
    "```compile_fail,E0200\n",
    include_str!("safe/forward.rs"),
    "unsafe impl<B: Backend> Backend for Forward<B> { identity!(); }\nunsafe impl<B: Backend> MemoryCalls for Forward<B> { memory!(); }\nimpl<B: Backend> CopyCalls for Forward<B> { copies!(); }\nunsafe impl<B: Backend> SyncCalls for Forward<B> { waiting!(); }\n```"
)]
pub struct CopyCallsWithoutUnsafe;

/// Without it for `SyncCalls` it does not, though it is the same.
#[doc = concat!(
    "```compile_fail,E0200\n",
    include_str!("safe/forward.rs"),
    "unsafe impl<B: Backend> Backend for Forward<B> { identity!(); }\nunsafe impl<B: Backend> MemoryCalls for Forward<B> { memory!(); }\nunsafe impl<B: Backend> CopyCalls for Forward<B> { copies!(); }\nimpl<B: Backend> SyncCalls for Forward<B> { waiting!(); }\n```"
)]
pub struct SyncCallsWithoutUnsafe;
