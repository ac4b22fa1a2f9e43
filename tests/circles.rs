//! Imports between the files of a crate have no circles, except that a module and its children may import each other.
//!
//! A path that leads through a re-export counts as an import of the file that has the item. Imports of the tests inside a file and
//! of its documentation do not count.
#![allow(clippy::expect_used)] // a test program may panic

mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The attribute of an import that only documentation uses. It is there in every build: with `#[cfg(doc)]`, the links would lead nowhere
/// on the pages of another crate that shows the items.
const NAMED_IN_DOCUMENTATION: &str = "#[allow(unused_imports)]";

/// The path of a module or of an item: its names from the crate's root.
type Names = Vec<String>;

/// A crate's files by the paths of their modules.
struct Source(BTreeMap<Names, File>);

/// The paths that a file has, each from the crate's root.
#[derive(Default)]
struct File {
    /// What `use` brings in: each name and the path behind it. Systems and features can differ in it.
    used: Vec<(String, Names)>,
    /// Paths in the code.
    named: Vec<Names>,
}

impl Source {
    fn new(files: &[(Names, String)]) -> Self {
        let modules: BTreeSet<_> = files.iter().map(|(module, _)| module.clone()).collect();
        Self(files.iter().map(|(module, text)| (module.clone(), File::new(module, text, &modules))).collect())
    }

    fn read(root: &Path) -> Self {
        let files: Vec<_> = tree::files(root, &[".rs"])
            .into_iter()
            .map(|file| {
                let text = fs::read_to_string(&file).expect("a source is text");
                let inside = file.strip_prefix(root).expect("a file of the crate").with_extension("");
                let mut module: Names =
                    inside.iter().map(|name| name.to_string_lossy().into_owned()).collect();
                if module.last().is_some_and(|name| name == "mod") || module == ["lib"] || module == ["main"]
                {
                    module.pop();
                }
                (module, text)
            })
            .collect();
        Self::new(&files)
    }

    /// Returns the module that has the item at the end of a path, behind re-exports. It can be one of several.
    fn homes(&self, path: &[String], steps: usize) -> Vec<Names> {
        let length = (0..=path.len()).rev().find(|length| self.0.contains_key(&path[..*length])).unwrap_or(0);
        let module = &path[..length];
        let used = self.0.get(module).map(|file| file.used.as_slice()).unwrap_or_default();
        let behind = used.iter().filter(|(name, behind)| Some(name) == path.get(length) && behind != path);
        let homes: Vec<_> =
            behind.filter(|_| steps > 0).flat_map(|(_, behind)| self.homes(behind, steps - 1)).collect();
        if homes.is_empty() { vec![module.to_vec()] } else { homes }
    }

    /// Returns the modules that a module imports, but for its parents and children.
    fn imports(&self, module: &Names) -> BTreeSet<Names> {
        let file = &self.0[module];
        let paths = file.used.iter().map(|(_, path)| path).chain(&file.named);
        let homes = paths.flat_map(|path| self.homes(path, 8));
        homes.filter(|home| !home.starts_with(module) && !module.starts_with(home)).collect()
    }

    /// Returns the modules from which imports lead back to themselves, each with its imports that do.
    fn circles(&self) -> Vec<String> {
        let imports: BTreeMap<_, _> = self.0.keys().map(|module| (module, self.imports(module))).collect();
        let reached = |start: &Names| {
            let mut reached = BTreeSet::new();
            let mut next: Vec<_> = imports[start].iter().collect();
            while let Some(module) = next.pop() {
                if reached.insert(module) {
                    next.extend(&imports[module]);
                }
            }
            reached
        };
        let back = |module: &Names| {
            let back =
                imports[module].iter().filter(|import| *import == module || reached(import).contains(module));
            back.map(|import| import.join("::")).collect::<Vec<_>>()
        };
        let circles = self.0.keys().map(|module| (module.join("::"), back(module)));
        circles
            .filter(|(_, back)| !back.is_empty())
            .map(|(module, back)| format!("{module} imports {back:?}"))
            .collect()
    }
}

impl File {
    fn new(module: &Names, text: &str, modules: &BTreeSet<Names>) -> Self {
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
        let code: String = text
            .lines()
            .map(|line| line.split("//").next().unwrap_or(line))
            .flat_map(|line| [line, "\n"])
            .collect();
        let mut file = Self::default();
        let mut rest = String::new();
        for statement in code.split_inclusive(';') {
            let start = statement.rfind("use ").filter(|at| {
                // `use` begins a statement or follows `pub`, `pub(crate)` or an attribute.
                statement[..*at].trim_end().chars().next_back().is_none_or(|before| "})];b{".contains(before))
            });
            let Some(start) = start else {
                rest += statement;
                continue;
            };
            rest += &statement[..start];
            if statement[..start].trim_end().ends_with(NAMED_IN_DOCUMENTATION) {
                continue;
            }
            for path in leaves(statement[start + 4..].trim_end_matches(';')) {
                let name = path.last().cloned().unwrap_or_default();
                if let Some(path) = absolute(module, &path, Some(modules)) {
                    file.used.push((name, path));
                }
            }
        }
        for start in ["crate::", "super::", "self::"] {
            for (at, _) in rest.match_indices(start) {
                // `$crate` in a macro is the name for a user's crate, and `super::super` is found at its first part.
                let before = rest[..at].chars().next_back().unwrap_or(' ');
                if before == '$' || before == ':' || before == '_' || before.is_alphanumeric() {
                    continue;
                }
                let end = rest[at..].find(|one: char| !(one.is_alphanumeric() || one == '_' || one == ':'));
                let path = &rest[at..end.map_or(rest.len(), |end| at + end)];
                let path: Names = path.split("::").map(str::to_owned).collect();
                file.named.extend(absolute(module, &path, None));
            }
        }
        file
    }
}

/// Returns a path from the crate's root; `None` for one of another crate. A path in `use` can begin with a child's name.
fn absolute(module: &[String], path: &[String], modules: Option<&BTreeSet<Names>>) -> Option<Names> {
    let child = |name: &String| [module, std::slice::from_ref(name)].concat();
    let (mut base, mut rest) = match path.first()?.as_str() {
        "crate" => (Vec::new(), &path[1..]),
        "self" => (module.to_vec(), &path[1..]),
        "super" => (module.to_vec(), path),
        _ if modules?.contains(&child(&path[0])) => (module.to_vec(), path),
        _ => return None,
    };
    while rest.first().is_some_and(|name| name == "super") {
        base.pop();
        rest = &rest[1..];
    }
    Some([base, rest.to_vec()].concat())
}

/// Returns the paths of a tree of imports, such as `a::{b, c::{d, e}}`.
fn leaves(tree: &str) -> Vec<Names> {
    let tree = tree.trim();
    let Some((prefix, list)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree);
        return vec![path.split("::").map(|name| name.trim().to_owned()).collect()];
    };
    let mut members = vec![String::new()];
    let mut depth = 0;
    for one in list.strip_suffix('}').unwrap_or(list).chars() {
        depth += i32::from(one == '{') - i32::from(one == '}');
        match members.last_mut() {
            Some(last) if one != ',' || depth > 0 => last.push(one),
            _ => members.push(String::new()),
        }
    }
    let members = members.iter().filter(|member| !member.trim().is_empty());
    members.flat_map(|member| leaves(&format!("{prefix}{}", member.trim()))).collect()
}

#[test]
fn imports_have_no_circles() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seen = 0;
    let mut wrong = Vec::new();
    for manifest in tree::files(root, &["Cargo.toml"]) {
        let folder = manifest.parent().expect("a package is in a folder").join("src");
        // The fuzz targets are in a folder of another name, one file each.
        if !folder.is_dir() {
            continue;
        }
        let source = Source::read(&folder);
        seen += source.0.len();
        wrong.extend(source.circles().into_iter().map(|circle| format!("{}: {circle}", folder.display())));
    }
    assert!(seen > 700, "only {seen} files were read");
    assert!(wrong.is_empty(), "circles of imports:\n{}", wrong.join("\n"));
}

fn crate_of(files: &[(&str, &str)]) -> Source {
    let names = |path: &str| path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect();
    Source::new(&files.iter().map(|(path, text)| (names(path), (*text).to_owned())).collect::<Vec<_>>())
}

#[test]
fn circle_is_seen_through_reexports() {
    let root = "mod a;\npub use a::Thing;\npub(crate) mod b;";
    let circle = crate_of(&[
        ("", root),
        ("a", "use std::fmt;\n#[cfg(unix)]\nuse crate::b::{self, x::{Y, Z as Q}};\npub struct Thing;"),
        ("b", "fn f(thing: &crate::Thing) {}"),
    ]);
    assert_eq!(circle.circles(), ["a imports [\"b\"]", "b imports [\"a\"]"]);
    let by_name = crate_of(&[("", ""), ("a", "use super::b;"), ("b", "fn f() { super::a::g() }")]);
    assert_eq!(by_name.circles().len(), 2);
    let by_system = crate_of(&[
        ("", "#[cfg(unix)]\npub use a::Thing;\n#[cfg(windows)]\npub use none::Thing;"),
        ("a", "use crate::b::B;"),
        ("b", "use crate::Thing;"),
        ("none", ""),
    ]);
    assert_eq!(by_system.circles().len(), 2);
    let of_three =
        crate_of(&[("a", "use crate::b::B;"), ("b", "pub use crate::c::C;"), ("c", "use crate::a::{A};")]);
    assert_eq!(of_three.circles().len(), 3);
}

#[test]
fn parents_and_tests_make_no_circle() {
    let fine = crate_of(&[
        ("", "mod a;\nmod b;\nuse a::A;"),
        (
            "a",
            "mod child;\nuse child::C;\nuse crate::Root;\n#[allow(unused_imports)]\nuse crate::b::B;\n// use crate::b::B;\n",
        ),
        ("a::child", "use super::A;"),
        ("b", "use crate::a::A;\n#[cfg(test)]\nmod tests {\n    use super::*;\n}"),
        ("a::other", "macro_rules! m { () => { $crate::b::B } }"),
    ]);
    assert!(fine.circles().is_empty(), "{:?}", fine.circles());
}

#[test]
fn documentation_has_its_imports_in_every_build() {
    let files = tree::files(Path::new(env!("CARGO_MANIFEST_DIR")), &[".rs"]);
    let read = |file: &std::path::PathBuf| fs::read_to_string(file).expect("a source is text");
    let only_there = files.iter().filter(|file| read(file).contains("#[cfg(doc)]\nuse "));
    let wrong: Vec<_> = only_there.map(|file| file.display().to_string()).collect();
    assert!(files.len() > 300, "only {} sources were found", files.len());
    assert!(wrong.is_empty(), "write {NAMED_IN_DOCUMENTATION} before the import in {}", wrong.join(", "));
}
