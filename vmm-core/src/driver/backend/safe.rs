//! Tests that a backend can only be implemented with the keyword `unsafe`: documentation tests of the same implementation
//! with it and without it.

/// An implementation with `unsafe` for all four traits, which compiles.
#[doc = concat!(
    "```\n",
    include_str!("safe/forward.rs"),
    "unsafe impl<B: Backend> Backend for Forward<B> { forward!(0: Backend); }\nunsafe impl<B: Backend> MemoryCalls for Forward<B> { type Handle = B::Handle; type Reservation = B::Reservation; forward!(0: MemoryCalls); }\nunsafe impl<B: Backend> CopyCalls for Forward<B> { forward!(0: CopyCalls); }\nunsafe impl<B: Backend> SyncCalls for Forward<B> { forward!(0: SyncCalls); }\n```"
)]
pub struct WithUnsafe;

/// The same implementation without `unsafe` for `Backend`, which does not compile.
#[doc = concat!(
    "```compile_fail,E0200\n",
    include_str!("safe/forward.rs"),
    "impl<B: Backend> Backend for Forward<B> { forward!(0: Backend); }\nunsafe impl<B: Backend> MemoryCalls for Forward<B> { type Handle = B::Handle; type Reservation = B::Reservation; forward!(0: MemoryCalls); }\nunsafe impl<B: Backend> CopyCalls for Forward<B> { forward!(0: CopyCalls); }\nunsafe impl<B: Backend> SyncCalls for Forward<B> { forward!(0: SyncCalls); }\n```"
)]
pub struct BackendWithoutUnsafe;

/// The same implementation without `unsafe` for `MemoryCalls`, which does not compile.
#[doc = concat!(
    "```compile_fail,E0200\n",
    include_str!("safe/forward.rs"),
    "unsafe impl<B: Backend> Backend for Forward<B> { forward!(0: Backend); }\nimpl<B: Backend> MemoryCalls for Forward<B> { type Handle = B::Handle; type Reservation = B::Reservation; forward!(0: MemoryCalls); }\nunsafe impl<B: Backend> CopyCalls for Forward<B> { forward!(0: CopyCalls); }\nunsafe impl<B: Backend> SyncCalls for Forward<B> { forward!(0: SyncCalls); }\n```"
)]
pub struct MemoryCallsWithoutUnsafe;

/// The same implementation without `unsafe` for `CopyCalls`, which does not compile. A wrong `pin`, a safe function, would be
/// enough to crash a program.
#[doc = concat!(
    "```compile_fail,E0200\n",
    include_str!("safe/forward.rs"),
    "unsafe impl<B: Backend> Backend for Forward<B> { forward!(0: Backend); }\nunsafe impl<B: Backend> MemoryCalls for Forward<B> { type Handle = B::Handle; type Reservation = B::Reservation; forward!(0: MemoryCalls); }\nimpl<B: Backend> CopyCalls for Forward<B> { forward!(0: CopyCalls); }\nunsafe impl<B: Backend> SyncCalls for Forward<B> { forward!(0: SyncCalls); }\n```"
)]
pub struct CopyCallsWithoutUnsafe;

/// The same implementation without `unsafe` for `SyncCalls`, which does not compile.
#[doc = concat!(
    "```compile_fail,E0200\n",
    include_str!("safe/forward.rs"),
    "unsafe impl<B: Backend> Backend for Forward<B> { forward!(0: Backend); }\nunsafe impl<B: Backend> MemoryCalls for Forward<B> { type Handle = B::Handle; type Reservation = B::Reservation; forward!(0: MemoryCalls); }\nunsafe impl<B: Backend> CopyCalls for Forward<B> { forward!(0: CopyCalls); }\nimpl<B: Backend> SyncCalls for Forward<B> { forward!(0: SyncCalls); }\n```"
)]
pub struct SyncCallsWithoutUnsafe;
