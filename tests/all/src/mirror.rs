//! The address of Debian's archive in this machine's own apt sources.

use std::fs;
use std::path::Path;

/// Returns the addresses in apt's sources that may be Debian's archive, in their order. Other archives' addresses end in the
/// same way; the signature of the archive decides.
pub(crate) fn of_this_machine(apt: &Path) -> Vec<String> {
    let mut files = vec![apt.join("sources.list")];
    if let Ok(entries) = fs::read_dir(apt.join("sources.list.d")) {
        files.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
    }
    // Debian's own files come first: sources.list, then debian.sources.
    files.sort_by_key(|file| {
        (!file.ends_with("sources.list"), !file.ends_with("debian.sources"), file.clone())
    });
    let mut mirrors = Vec::new();
    for file in files {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        for address in addresses(&text) {
            let address = address.trim_end_matches('/');
            if address.ends_with("/debian") && !mirrors.iter().any(|known| known == address) {
                mirrors.push(address.to_owned());
            }
        }
    }
    mirrors
}

/// Returns all addresses in a file of either format: `deb [OPTIONS] ADDRESS SUITE COMPONENT`, or a line `URIs: ADDRESS...`.
fn addresses(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let of_sources = |line: &&str| {
        line.starts_with("deb ")
            || line.starts_with("deb\t")
            || line.to_ascii_lowercase().starts_with("uris:")
    };
    lines.filter(of_sources).flat_map(str::split_whitespace).filter(|word| word.contains(":/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_are_read() {
        let lines = "# deb http://old.example/debian sid main\n\
                     deb-src http://source.example/debian sid main\n\
                     deb [arch=amd64 signed-by=/a/b.gpg] http://one.example/debian/ bookworm main\n\
                     deb http://two.example/debian-security bookworm main\n";
        assert_eq!(
            addresses(lines).collect::<Vec<_>>(),
            ["http://one.example/debian/", "http://two.example/debian-security"]
        );
        let stanza = "Types: deb\n# http://snapshot.example/debian\nURIs: http://three.example/debian file:/srv/debian\n\
                      Suites: sid\nSigned-By: /a/b.gpg\n";
        assert_eq!(
            addresses(stanza).collect::<Vec<_>>(),
            ["http://three.example/debian", "file:/srv/debian"]
        );
    }
}
