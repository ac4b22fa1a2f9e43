//! The rules, by group. Each is a function that makes calls and records the results.
//!
//! The doc comment of a rule is what the documentation says: "CUDA" is the driver API's reference, "HIP" is the runtime's
//! reference and its guide to virtual memory, "AMD's tests" is the project hip-tests. A rule that names none of them is in both
//! vendors' documentation.

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

/// Lists the functions of a module as rules. A rule's name is the module and the function, and its doc comment is what the
/// documentation says. Brackets contain the quirks whose effect the rule observes:
///
/// ```text
/// rules! { "free":
///     /// Freeing a reservation that contains a mapping is refused, and the reservation stays.
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

/// Returns all rules.
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
