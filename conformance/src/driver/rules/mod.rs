//! The rules, by group. Each is a function that makes calls and notes what came of them.
//!
//! What stands before a rule is what the documentation says: "CUDA" is the driver API's reference, "HIP" is the
//! runtime's reference and its guide to virtual memory, "AMD's tests" are those of hip-tests. Where neither is named,
//! both say the same.

mod access;
mod access_arguments;
mod adjacent;
mod alias;
mod free;
mod kinds;
mod lifetime;
mod map;
mod map_place;
mod order;
mod peer;
mod physical;
mod properties;
mod reach;
mod reserve;
mod share;
mod unmap;

use super::Rule;

/// Lists the functions of a module as rules named after both, each with what the documentation says and, in brackets,
/// the quirks whose effect it sees:
///
/// ```text
/// rules! { "free":
///     /// A reservation with something mapped in it is not freed, and stays.
///     while_mapped ["free-while-mapped"],
/// }
/// ```
macro_rules! rules {
    ($module:literal: $(
        $(#[doc = $about:literal])+ $rule:ident $([$($quirk:literal),+])?
    ),* $(,)?) => {
        /// The rules of this group.
        pub(super) const RULES: &[crate::driver::Rule] = &[$(crate::driver::Rule {
            name: concat!($module, "::", stringify!($rule)),
            about: concat!($($about),+).trim_ascii(),
            quirks: &[$($($quirk),+)?],
            look: $rule,
        }),*];
    };
}

use rules;

/// All of them.
pub(crate) fn all() -> Vec<Rule> {
    let groups = [
        reserve::RULES,
        free::RULES,
        physical::RULES,
        properties::RULES,
        kinds::RULES,
        map::RULES,
        map_place::RULES,
        access::RULES,
        access_arguments::RULES,
        reach::RULES,
        unmap::RULES,
        lifetime::RULES,
        alias::RULES,
        share::RULES,
        peer::RULES,
        adjacent::RULES,
        order::RULES,
    ];
    groups.concat()
}
