//! What uses addresses that a caller wants.

use crate::types::AddressRange;

/// Returns what the kernel has mapped first in a range of addresses, for error texts; `None` if nothing is, or without `/proc`.
#[must_use]
pub fn user_of_addresses(range: AddressRange) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (addresses, name) = (line.split(' ').next()?, line.splitn(6, ' ').nth(5).unwrap_or("").trim());
        let (begin, end) = addresses.split_once('-')?;
        let [begin, end] = [begin, end].map(|address| u64::from_str_radix(address, 16).unwrap_or(0));
        let is_there = begin < range.base.0 + range.size.0 && end > range.base.0;
        let at = format!("at {begin:#x}..{end:#x}");
        is_there.then(|| match name {
            "" => format!("memory without a name {at}"),
            name => format!("{name} {at}"),
        })
    })
}
