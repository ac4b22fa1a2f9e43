//! That no backend is made without the word `unsafe`: the same implementation with it and without, as tests of the
//! documentation.

/// With the word for all four traits it compiles.
#[doc = concat!(
    "```\n",
    include_str!("safe/forward.rs"),
    "unsafe impl<B: Backend> Backend for Forward<B> { forward!(0: Backend); }\nunsafe impl<B: Backend> MemoryCalls for Forward<B> { type Handle = B::Handle; type Reservation = B::Reservation; forward!(0: MemoryCalls); }\nunsafe impl<B: Backend> CopyCalls for Forward<B> { forward!(0: CopyCalls); }\nunsafe impl<B: Backend> SyncCalls for Forward<B> { forward!(0: SyncCalls); }\n```"
)]
pub struct WithUnsafe;

/// Without it for `Backend` it does not, though it is the same.
#[doc = concat!(
    "```compile_fail,E0200\n",
    include_str!("safe/forward.rs"),
    "impl<B: Backend> Backend for Forward<B> { forward!(0: Backend); }\nunsafe impl<B: Backend> MemoryCalls for Forward<B> { type Handle = B::Handle; type Reservation = B::Reservation; forward!(0: MemoryCalls); }\nunsafe impl<B: Backend> CopyCalls for Forward<B> { forward!(0: CopyCalls); }\nunsafe impl<B: Backend> SyncCalls for Forward<B> { forward!(0: SyncCalls); }\n```"
)]
pub struct BackendWithoutUnsafe;

/// Without it for `MemoryCalls` it does not, though it is the same.
#[doc = concat!(
    "```compile_fail,E0200\n",
    include_str!("safe/forward.rs"),
    "unsafe impl<B: Backend> Backend for Forward<B> { forward!(0: Backend); }\nimpl<B: Backend> MemoryCalls for Forward<B> { type Handle = B::Handle; type Reservation = B::Reservation; forward!(0: MemoryCalls); }\nunsafe impl<B: Backend> CopyCalls for Forward<B> { forward!(0: CopyCalls); }\nunsafe impl<B: Backend> SyncCalls for Forward<B> { forward!(0: SyncCalls); }\n```"
)]
pub struct MemoryCallsWithoutUnsafe;

/// Without it for `CopyCalls` it does not, though it is the same. Overriding the safe `pin` would be enough to crash a program.
#[doc = concat!(
    "```compile_fail,E0200\n",
    include_str!("safe/forward.rs"),
    "unsafe impl<B: Backend> Backend for Forward<B> { forward!(0: Backend); }\nunsafe impl<B: Backend> MemoryCalls for Forward<B> { type Handle = B::Handle; type Reservation = B::Reservation; forward!(0: MemoryCalls); }\nimpl<B: Backend> CopyCalls for Forward<B> { forward!(0: CopyCalls); }\nunsafe impl<B: Backend> SyncCalls for Forward<B> { forward!(0: SyncCalls); }\n```"
)]
pub struct CopyCallsWithoutUnsafe;

/// Without it for `SyncCalls` it does not, though it is the same.
#[doc = concat!(
    "```compile_fail,E0200\n",
    include_str!("safe/forward.rs"),
    "unsafe impl<B: Backend> Backend for Forward<B> { forward!(0: Backend); }\nunsafe impl<B: Backend> MemoryCalls for Forward<B> { type Handle = B::Handle; type Reservation = B::Reservation; forward!(0: MemoryCalls); }\nunsafe impl<B: Backend> CopyCalls for Forward<B> { forward!(0: CopyCalls); }\nimpl<B: Backend> SyncCalls for Forward<B> { forward!(0: SyncCalls); }\n```"
)]
pub struct SyncCallsWithoutUnsafe;
