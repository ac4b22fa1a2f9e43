//! A case: one rule, as a function that panics if the rule does not hold.

use crate::peer::Peer;
use crate::subject::Subject;
use gpu_vmm_testkit::TestKit;
use std::fmt;

/// One rule of the library layer.
pub(crate) struct Case<B: TestKit> {
    /// The group and the case, such as `grow::within`.
    pub(crate) name: &'static str,
    /// The rule in one sentence, as reports show it.
    pub(crate) about: &'static str,
    /// True for a case that may end its process or leave something behind in it. It runs in a process of its own.
    pub(crate) isolated: bool,
    /// True for a case that takes as long as the user says.
    pub(crate) timed: bool,
    pub(crate) run: fn(&Subject<B>),
    /// The part of the case that a second process runs.
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

/// Lists the functions of a module as cases. A case's name is the module and the function, and its doc comment is the rule:
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
/// `with` names the function that a second process runs. The case starts that process with [`Subject::child`].
macro_rules! cases {
    ($module:literal: $($(#[doc = $about:literal])+ $(@$kind:ident)? $case:ident $(with $child:ident)?),* $(,)?) => {
        /// The cases of this group.
        pub(crate) fn cases<B: ::gpu_vmm_testkit::TestKit>() -> Vec<crate::case::Case<B>> {
            vec![$(crate::case::Case {
                name: concat!($module, "::", stringify!($case)),
                about: concat!($($about),+).trim_ascii(),
                isolated: crate::case::is_isolated!($($kind)?),
                timed: crate::case::is_timed!($($kind)?),
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
    (timed) => {
        false
    };
    (isolated) => {
        true
    };
}

macro_rules! is_timed {
    (timed) => {
        true
    };
    ($($kind:ident)?) => {
        false
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

pub(crate) use {cases, child_of, is_isolated, is_timed};
