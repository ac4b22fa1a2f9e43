//! The end of a call that cannot be made.

/// The reason why a call cannot be made. It is thrown as a panic's payload, so that a test that needs the call is
/// skipped and a measurement is left out.
///
/// ```
/// # use gpu_vmm_testkit::raw::{Missing, missing};
/// let ended = std::panic::catch_unwind(|| missing("this version has no cuMemCreate")).unwrap_err();
/// assert_eq!(ended.downcast::<Missing>().unwrap().0, "this version has no cuMemCreate");
/// ```
#[derive(Debug)]
pub struct Missing(
    /// The missing library or function.
    pub String,
);

/// Throws [`Missing`], without the panic hook.
pub fn missing(what: impl Into<String>) -> ! {
    std::panic::resume_unwind(Box::new(Missing(what.into())))
}
