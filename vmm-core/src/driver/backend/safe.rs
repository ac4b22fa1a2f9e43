//! That no backend is made without the word `unsafe`: the same implementation with it and without, as tests of the
//! documentation.

/// With the word it compiles.
#[doc = concat!("```\n", include_str!("safe/forward.rs"), "unsafe impl<B: Backend> CopyCalls for Forward<B> { forward!(); }\n```")]
pub struct WithUnsafe;

/// Without it does not, though it is the same. Overriding the safe `pin` would be enough to crash a program.
#[doc = concat!(
    "```compile_fail,E0200\n",
    include_str!("safe/forward.rs"),
    "impl<B: Backend> CopyCalls for Forward<B> { forward!(); }\n```"
)]
pub struct WithoutUnsafe;
