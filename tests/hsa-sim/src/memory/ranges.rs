//! Maps of ranges by their first addresses.

use std::collections::BTreeMap;

/// Returns the entry that contains an address, in a map of ranges keyed by their first addresses.
pub(crate) fn holding<T>(
    ranges: &BTreeMap<usize, T>,
    at: usize,
    size: impl Fn(&T) -> usize,
) -> Option<(usize, &T)> {
    let (base, item) = ranges.range(..=at).next_back()?;
    (at - base < size(item)).then_some((*base, item))
}
