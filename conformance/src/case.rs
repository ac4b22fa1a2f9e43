//! A case: one rule, as a function that panics where the rule does not hold.

use crate::peer::Peer;
use crate::subject::Subject;
use gpu_vmm_testkit::TestKit;
use std::fmt;

/// One rule of the library layer.
pub(crate) struct Case<B: TestKit> {
    /// The group and the case, such as `grow::within`.
    pub(crate) name: &'static str,
    /// The rule in a sentence.
    pub(crate) about: &'static str,
    /// True where the case may end its process, or leaves something behind in it: it gets one of its own.
    pub(crate) isolated: bool,
    pub(crate) run: fn(&Subject<B>),
    /// What a second process does in it.
    pub(crate) child: Option<fn(&Subject<B>, &Peer)>,
}

impl<B: TestKit> Clone for Case<B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: TestKit> Copy for Case<B> {}

impl<B: TestKit> fmt::Debug for Case<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Lists the functions of a module as cases named after both, each with its rule:
///
/// ```text
/// cases! { "share":
///     /// Memory is the same in the process that imports it.
///     same_memory with importer,
///     /// A kernel that writes to read-only memory loses its device and nothing else.
///     @isolated write_to_read_only,
/// }
/// ```
///
/// `with` names what a second process does, for which [`Subject::child`] asks.
macro_rules! cases {
    ($module:literal: $($(#[doc = $about:literal])+ $(@$isolated:ident)? $case:ident $(with $child:ident)?),* $(,)?) => {
        /// The cases of this group.
        pub(crate) fn cases<B: ::gpu_vmm_testkit::TestKit>() -> Vec<crate::case::Case<B>> {
            vec![$(crate::case::Case {
                name: concat!($module, "::", stringify!($case)),
                about: concat!($($about),+).trim_ascii(),
                isolated: crate::case::is_isolated!($($isolated)?),
                run: $case::<B>,
                child: crate::case::child_of!($($child)?),
            }),*]
        }
    };
}

macro_rules! is_isolated {
    () => {
        false
    };
    (isolated) => {
        true
    };
}

macro_rules! child_of {
    () => {
        None
    };
    ($child:ident) => {
        Some($child::<B>)
    };
}

pub(crate) use {cases, child_of, is_isolated};
