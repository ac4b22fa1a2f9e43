//! The layers: no module imports from a layer above its own, and no crate depends on one above it.
//!
//! Inside vmm-core a file names the layer of everything that it imports, as in `use crate::types::Bytes`, so that its imports
//! show its layer. In a backend it names the module. Documentation may link upwards.
#![allow(clippy::expect_used)] // a test program may panic

mod tree;

use std::fs;
use std::path::Path;
use std::process::Command;

/// The layers of vmm-core, the lowest first. Those in one line are independent of each other.
const CORE: [&[&str]; 7] =
    [&["types"], &["trace"], &["driver"], &["memory"], &["region"], &["multicast"], &["testkit"]];

/// The layers of a backend, the lowest first, which are the same for all vendors, and the modules of each. Modules of one layer can
/// import each other, without circles.
type Backend = [(&'static str, &'static [&'static str]); 6];

const CUDA: Backend = [
    ("library", &["error", "ffi", "imex", "kernels", "loader", "memory_info", "quirks"]),
    (
        "driver",
        &[
            "check",
            "context",
            "device",
            "device_state",
            "driver",
            "lease",
            "memory_types",
            "open",
            "own_context",
            "relaxed",
        ],
    ),
    ("memory", &["adopt", "fabric", "handle", "host", "multicast", "plain", "share", "win32"]),
    ("addresses", &["access", "dma_buf", "reservation"]),
    ("work", &["copy", "event", "idle", "staging", "stream"]),
    ("backend", &["backend", "capabilities", "interop", "testkit", "view"]),
];

const HIP: Backend = [
    ("library", &["compiler", "ffi", "kernels", "library", "loader", "objects", "places", "quirks"]),
    (
        "driver",
        &[
            "attributes",
            "descriptor",
            "device",
            "device_state",
            "driver",
            "error",
            "hsa",
            "kept_addresses",
            "launch",
            "open",
            "plain",
            "relaxed",
        ],
    ),
    ("memory", &["adopt", "fabric", "handle", "share", "win32"]),
    ("addresses", &["access", "addresses", "mappings", "reservation"]),
    ("work", &["copy", "event", "staging", "stream"]),
    ("backend", &["backend", "capabilities", "memory_types", "probe", "testkit", "view"]),
];

const HOST: Backend = [
    ("library", &["config", "extents", "memory_types", "quirks", "share", "store"]),
    (
        "driver",
        &[
            "capture",
            "captures",
            "device",
            "host",
            "mappings",
            "pages",
            "queues",
            "reserve_mappings",
            "stream_names",
            "work",
        ],
    ),
    ("memory", &["handle", "memory", "plain"]),
    ("addresses", &["reservation"]),
    ("work", &["copy", "event", "staging", "stream"]),
    ("backend", &["backend", "capabilities", "testkit", "unsupported"]),
];

/// The crates, the lowest first. Those in one line are independent of each other.
const CRATES: [&[&str]; 9] = [
    &["gpu-vmm-core"],
    &["gpu-vmm-cuda", "gpu-vmm-hip", "gpu-vmm-host", "gpu-vmm-premap", "gpu-vmm-share", "gpu-vmm-snapshot"],
    &["gpu-vmm-pool"],
    &["gpu-vmm-serve"],
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

/// Returns the forbidden imports of a module of a backend: those from above, and those that name no module.
fn upward_in(backend: &Backend, module: &str, source: &str) -> Vec<String> {
    let rank = |module: &str| backend.iter().position(|(_, modules)| modules.contains(&module));
    let allowed = |import: &String| rank(import).is_some_and(|below| Some(below) <= rank(module));
    imports(source).into_iter().filter(|import| !allowed(import)).collect()
}

#[test]
fn backend_modules_import_from_below() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wrong = Vec::new();
    for (folder, backend) in [("backend-cuda", CUDA), ("backend-hip", HIP), ("backend-host", HOST)] {
        let source = root.join(folder).join("src");
        let mut looked_at = 0;
        for file in tree::files(&source, &[".rs"]) {
            let inside = file.strip_prefix(&source).expect("a file of the backend").with_extension("");
            let module = inside.iter().next().expect("a name").to_string_lossy();
            if module == "lib" {
                continue;
            }
            let is_listed = backend.iter().any(|(_, modules)| modules.contains(&&*module));
            assert!(is_listed, "{folder}: add {module} to its layer in tests/layers.rs");
            let text = fs::read_to_string(&file).expect("a source");
            looked_at += imports(&text).len();
            let upward = upward_in(&backend, &module, &text);
            wrong.extend(upward.into_iter().map(|import| format!("{}: {import}", file.display())));
        }
        assert!(looked_at > 50, "only {looked_at} imports were found in {folder}");
        for module in backend.iter().flat_map(|(_, modules)| *modules) {
            let is_there =
                [format!("{module}.rs"), module.to_string()].iter().any(|name| source.join(name).exists());
            assert!(is_there, "{folder} has no module {module}");
        }
    }
    assert!(wrong.is_empty(), "imports from above:\n{}", wrong.join("\n"));
}

#[test]
fn backends_import_from_above_is_seen() {
    assert_eq!(upward_in(&HIP, "handle", "use crate::driver::Driver;\nuse crate::probe::export;"), ["probe"]);
    assert_eq!(
        upward_in(&CUDA, "error", "fn f(of: &crate::reservation::CudaReservation) {}"),
        ["reservation"]
    );
    assert_eq!(
        upward_in(&CUDA, "handle", "use crate::CudaBackend;"),
        ["CudaBackend"],
        "the import hides the module"
    );
    assert!(upward_in(&HOST, "backend", "use crate::{handle::HostHandle, capabilities};").is_empty());
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
    assert_eq!(upward("types", "fn f(set: crate::region::BankId) {} // crate::region::Region"), ["region"]);
    assert_eq!(upward("driver", "use crate::Bytes;"), ["Bytes"], "the import hides the layer");
    assert_eq!(upward("region", "pub use crate::multicast::Team;"), ["multicast"]);
    assert!(
        upward(
            "region",
            "use crate::memory::{PhysicalMemory, StagingRing};\nuse gpu_vmm_crate::{any, thing};"
        )
        .is_empty()
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
