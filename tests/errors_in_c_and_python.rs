//! Each kind of error has one status in C and one exception in Python, with the name that it has in Rust.
//!
//! The kinds, the statuses and the exceptions are read from the sources, and compared with the table of the guide.
#![allow(clippy::expect_used)] // a test program may panic

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).expect(file)
}

/// The text between two markers.
fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    text.split_once(start).expect(start).1.split_once(end).expect(end).0
}

/// The variants of `ErrorKind`.
fn kinds() -> Vec<String> {
    let source = read("vmm-core/src/types/error/kind.rs");
    let lines = between(&source, "pub enum ErrorKind {", "\n}").lines();
    lines.filter_map(|line| line.trim().strip_suffix(',')).map(str::to_owned).collect()
}

/// The status of each kind in the C library, without its prefix.
fn statuses() -> BTreeMap<String, String> {
    let source = read("plugins/c/src/status.rs");
    let arms = between(&source, "match error.kind() {", "\n    }").lines();
    arms.filter_map(|arm| arm.trim().strip_suffix(',')?.split_once(" => GPU_VMM_"))
        .map(|(kind, status)| {
            (kind.strip_prefix("ErrorKind::").unwrap_or(kind).to_owned(), status.to_owned())
        })
        .collect()
}

/// The numbers of the C library's statuses, by their names without the prefix.
fn numbers() -> BTreeMap<String, u32> {
    let source = read("plugins/c/src/status.rs");
    let number = |line: &str| {
        let (name, number) =
            line.strip_prefix("pub const GPU_VMM_")?.strip_suffix(';')?.split_once(": Status = ")?;
        Some((name.to_owned(), number.parse().expect("a number")))
    };
    source.lines().filter_map(number).collect()
}

/// The exception that Python raises for each status.
fn exceptions() -> BTreeMap<String, String> {
    let source = read("plugins/python/gpu_vmm/errors.py");
    let raised: BTreeSet<_> =
        between(&source, "for kind in (", ")").split(',').map(|name| name.trim().to_owned()).collect();
    let classes = source.split("\nclass ").skip(1).filter_map(|class| {
        let name = class.split('(').next()?;
        let status = class.split_once("    status: int = Status.")?.1.lines().next()?;
        Some((status.to_owned(), name.to_owned()))
    });
    classes.filter(|(_, name)| raised.contains(name)).collect()
}

/// Python's statuses and their numbers.
fn python_numbers() -> BTreeMap<String, u32> {
    let source = read("plugins/python/gpu_vmm/errors.py");
    let lines = between(&source, "\nclass Status(", "\n\n\n").lines();
    lines
        .filter_map(|line| line.trim().split_once(" = "))
        .map(|(name, number)| (name.to_owned(), number.parse().expect("a number")))
        .collect()
}

/// A name in CamelCase as C writes it: `OUT_OF_MEMORY` for `OutOfMemory`.
fn in_capitals(name: &str) -> String {
    let mut capitals = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !capitals.is_empty() {
            capitals.push('_');
        }
        capitals.extend(letter.to_uppercase());
    }
    capitals
}

#[test]
fn each_kind_has_one_status_and_exception() {
    let (kinds, statuses, exceptions) = (kinds(), statuses(), exceptions());
    assert!(kinds.len() > 15, "{kinds:?}");
    let rows: Vec<_> = kinds
        .iter()
        .map(|kind| {
            // `Driver` is also the status of kinds that this version of the C library does not know.
            let arm = if kind == "Driver" { "_" } else { kind };
            let status = statuses.get(arm).unwrap_or_else(|| panic!("C has no status for {kind}"));
            let exception = exceptions.get(status).unwrap_or_else(|| panic!("Python has no {status}"));
            (kind, status, exception)
        })
        .collect();
    assert_eq!(statuses.len(), kinds.len(), "{statuses:?}");
    let distinct: BTreeSet<_> = statuses.values().collect();
    assert_eq!(distinct.len(), kinds.len(), "two kinds have one status: {statuses:?}");
    for (kind, status, exception) in &rows {
        assert_eq!(**status, in_capitals(kind), "the status of {kind}");
        assert_eq!(exception.strip_suffix("Error").unwrap_or(exception), *kind, "the exception of {kind}");
    }
    // A panic inside of the library is no kind of error.
    assert_eq!(exceptions.len(), kinds.len() + 1, "{exceptions:?}");

    let page = read("docs/guide/troubleshooting.md");
    let table = between(&page, "| `ErrorKind` | C | Python |\n|---|---|---|\n", "\n\n").lines();
    let table: Vec<Vec<_>> =
        table.map(|row| row.split('`').skip(1).step_by(2).take(3).map(str::to_owned).collect()).collect();
    let expected: Vec<Vec<_>> = rows
        .iter()
        .map(|(kind, status, exception)| {
            vec![(*kind).clone(), format!("GPU_VMM_{status}"), (*exception).clone()]
        })
        .collect();
    assert_eq!(table, expected, "docs/guide/troubleshooting.md");
}

#[test]
fn python_has_the_numbers_of_c() {
    let numbers = numbers();
    assert!(numbers.len() > 20, "{numbers:?}");
    assert_eq!(python_numbers(), numbers);
    let distinct: BTreeSet<_> = numbers.values().collect();
    assert_eq!(distinct.len(), numbers.len(), "two statuses have one number: {numbers:?}");
}
