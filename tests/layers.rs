//! The layers: no module imports from a layer above its own, and no crate depends on one above it.
//!
//! Inside vmm-core a file names the layer of everything that it imports, as in `use crate::types::Bytes`, so that its imports
//! show its layer. Documentation may link upwards.
#![allow(clippy::expect_used)] // a test program may panic

mod tree;

use std::fs;
use std::path::Path;
use std::process::Command;

/// The layers of vmm-core, the lowest first. Those in one line are independent of each other.
const CORE: [&[&str]; 6] = [&["types"], &["driver"], &["memory"], &["region"], &["multicast"], &["testkit"]];

/// The crates, the lowest first. Those in one line are independent of each other.
const CRATES: [&[&str]; 8] = [
    &["gpu-vmm-core", "gpu-vmm-sync"],
    &["gpu-vmm-cuda", "gpu-vmm-hip", "gpu-vmm-host", "gpu-vmm-premap", "gpu-vmm-share", "gpu-vmm-snapshot"],
    &["gpu-vmm-pool"],
    &["gpu-vmm"],
    &["gpu-vmm-testkit"],
    &["gpu-vmm-bench", "gpu-vmm-replay"],
    &["gpu-vmm-conformance", "gpu-vmm-c"],
    &["gpu-vmm-cli"],
];

/// Returns the line that has a name.
fn rank(layers: &[&[&str]], name: &str) -> Option<usize> {
    layers.iter().position(|line| line.contains(&name))
}

/// Returns whether layer `from` may import layer `to`.
fn may_import(layers: &[&[&str]], from: &str, to: &str) -> bool {
    match (rank(layers, from), rank(layers, to)) {
        (Some(above), Some(below)) => from == to || below < above,
        _ => false,
    }
}

/// Returns the names after each `crate::` of a source, without its comments. A list in braces yields each of its members'
/// names.
fn imports(source: &str) -> Vec<String> {
    let code: String = source.lines().map(|line| line.split("//").next().unwrap_or(line)).collect();
    let behind = code.split("crate::").skip(1).zip(code.match_indices("crate::"));
    let name = |text: &str| text.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    // `$crate` in a macro is the name for a user's crate.
    let own = behind.filter(|(_, (at, _))| !code[..*at].ends_with(['$', '_']));
    own.flat_map(|(text, _)| match text.strip_prefix('{') {
        Some(list) => list
            .split('}')
            .next()
            .unwrap_or_default()
            .split(',')
            .map(name)
            .filter(|name: &String| !name.is_empty())
            .collect(),
        None => vec![name(text)],
    })
    .collect()
}

/// Returns the forbidden imports of one file.
fn upward(layer: &str, source: &str) -> Vec<String> {
    imports(source).into_iter().filter(|import| !may_import(&CORE, layer, import)).collect()
}

#[test]
fn no_module_imports_from_above() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("vmm-core/src");
    let mut wrong = Vec::new();
    let mut looked_at = 0;
    for layer in CORE.concat() {
        for file in tree::files(&core.join(layer), &[".rs"]) {
            let source = fs::read_to_string(&file).expect("a source");
            looked_at += imports(&source).len();
            wrong.extend(
                upward(layer, &source).into_iter().map(|import| format!("{}: {import}", file.display())),
            );
        }
    }
    assert!(looked_at > 100, "only {looked_at} imports were found");
    assert!(wrong.is_empty(), "imports from above:\n{}", wrong.join("\n"));
}

#[test]
fn an_import_from_above_is_seen() {
    assert_eq!(
        upward(
            "memory",
            "use crate::types::Bytes;\nuse crate::{\n    driver::Backend,\n    region::Region,\n};"
        ),
        ["region"]
    );
    assert_eq!(upward("types", "fn f(set: crate::region::SetId) {} // crate::region::Region"), ["region"]);
    assert_eq!(upward("driver", "use crate::Bytes;"), ["Bytes"], "the import hides the layer");
    assert_eq!(upward("region", "pub use crate::multicast::Team;"), ["multicast"]);
    assert!(
        upward("region", "use crate::memory::{Physical, Ring};\nuse gpu_vmm_crate::{any, thing};").is_empty()
    );
}

#[test]
fn no_crate_depends_on_one_above() {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--format-version", "1", "--no-deps", "--offline", "--manifest-path"]);
    let answer =
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).output().expect("cargo metadata");
    let metadata: serde_json::Value = serde_json::from_slice(&answer.stdout).expect("its answer");
    let mut seen = 0;
    for package in metadata["packages"].as_array().expect("packages") {
        let from = package["name"].as_str().expect("a name");
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let to = dependency["name"].as_str().expect("a name");
            if dependency["kind"].is_null() && rank(&CRATES, from).is_some() && dependency["path"].is_string()
            {
                assert!(may_import(&CRATES, from, to), "{from} depends on {to}");
                seen += 1;
            }
        }
    }
    assert!(seen >= 8, "only {seen} dependencies were found");
}

/// Returns the file and the item in each row of the page's table of rules.
fn rules(page: &str) -> Vec<(String, String)> {
    let cells = |row: &str| row.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let named = |cell: &str| Some(cell.strip_prefix('`')?.strip_suffix('`')?.to_owned());
    let rows = page.lines().map(cells).filter(|cells| cells.len() == 5);
    rows.filter_map(|cells| named(&cells[2]).zip(named(&cells[3])))
        .filter(|(file, _)| file.ends_with(".rs"))
        .collect()
}

#[test]
fn the_architecture_page_names_what_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("the page");
    let rules = rules(&page);
    assert!(rules.len() >= 18, "only {} rules were found", rules.len());
    for (file, item) in rules {
        let source = fs::read_to_string(root.join(&file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(source.contains(&item), "{file} has no {item:?}");
    }
}
