//! Checks the tables of files: a table in a crate's root, or in a folder's module, names each module that is declared there.
#![allow(clippy::expect_used)] // a test program may panic

mod tree;

use std::fs;
use std::path::Path;

/// The start of a table of modules.
const HEAD: &str = "//! | file | subject |";

/// Returns the modules that a source declares, without its tests' modules.
fn declared(source: &str) -> Vec<&str> {
    let mut only_tests = false;
    let mut modules = Vec::new();
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[") {
            only_tests |= line.starts_with("#[cfg(") && (line.contains("test)") || line.contains("test,"));
            continue;
        }
        if let Some(name) =
            line.strip_suffix(';').and_then(|line| line.rsplit_once("mod ")).map(|(_, name)| name)
            && !only_tests
            && !line.starts_with("//")
        {
            modules.push(name);
        }
        only_tests = false;
    }
    modules
}

/// Returns the modules in the first column of the table; `None` without a table.
fn named(source: &str) -> Option<Vec<&str>> {
    let mut lines = source.lines();
    lines.find(|line| *line == HEAD)?;
    let rows = lines.skip(1).take_while(|line| line.starts_with("//! |"));
    Some(
        rows.filter_map(|row| row.split('|').nth(1))
            .flat_map(|cell| cell.split('`').skip(1).step_by(2))
            .collect(),
    )
}

/// Returns the errors in the table of one file.
fn wrong(file: &Path, source: &str) -> Vec<String> {
    let (Some(named), declared) = (named(source), declared(source)) else { return Vec::new() };
    let missing =
        declared.iter().filter(|name| !named.contains(name)).map(|name| format!("does not name `{name}`"));
    let gone = named
        .iter()
        .filter(|name| !source.contains(&format!("mod {name};")))
        .map(|name| format!("names `{name}`, which is gone"));
    missing.chain(gone).map(|what| format!("{}: the table {what}", file.display())).collect()
}

#[test]
fn tables_name_every_module() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tables = 0;
    let mut problems = Vec::new();
    for file in tree::files(root, &[".rs"]) {
        let source = fs::read_to_string(&file).expect("a source is text");
        tables += usize::from(named(&source).is_some());
        problems.extend(wrong(&file, &source));
    }
    assert!(tables > 50, "only {tables} tables were found");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_table_that_misses_a_module_or_names_one_that_is_gone_is_found() {
    let source = "//! | file | subject |\n//! |---|---|\n//! | `map`, `grow` | what is done |\n\nmod map;\n\
                  #[cfg(unix)]\npub mod share;\n#[cfg(test)]\nmod tests;\n";
    let told = wrong(Path::new("lib.rs"), source);
    assert_eq!(
        told,
        ["lib.rs: the table does not name `share`", "lib.rs: the table names `grow`, which is gone"]
    );
}
