//! The fields of a published package's manifest, the files in the package, and the links of its README.

use super::Published;
use serde_json::Value;

/// The package whose README is the repository's. Its relative links lead into the repository: crates.io resolves them.
const FACADE: &str = "gpu-vmm";

/// The files that every package has.
const REQUIRED: [&str; 3] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// The files that Cargo adds to a package.
const CARGOS: [&str; 4] = [".cargo_vcs_info.json", "Cargo.lock", "Cargo.toml", "Cargo.toml.orig"];

/// Returns the faults of a manifest, as `cargo metadata` has it.
pub(super) fn manifest(package: &Value, published: &[Published]) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let mut wrong = Vec::new();
    for field in ["description", "license", "repository", "homepage", "readme", "rust_version"] {
        if package[field].as_str().is_none_or(str::is_empty) {
            wrong.push(format!("{name} has no {field}"));
        }
    }
    let documentation = format!("https://docs.rs/{name}");
    if package["documentation"] != documentation.as_str() {
        wrong.push(format!(
            "{name}: documentation is {}, expected {documentation:?}",
            package["documentation"]
        ));
    }
    for field in ["keywords", "categories"] {
        let count = package[field].as_array().map_or(0, Vec::len);
        if !(1..=5).contains(&count) {
            wrong.push(format!("{name} has {count} {field}; crates.io takes 1 to 5"));
        }
    }
    if package["metadata"]["docs"]["rs"]["all-features"] != true {
        wrong.push(format!("{name}: package.metadata.docs.rs does not have all-features = true"));
    }
    for dependency in package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default() {
        if dependency["path"].is_string() {
            wrong.extend(dependency_inside(name, dependency, published));
        }
    }
    wrong
}

/// Returns the faults of a dependency on a package of the workspace.
fn dependency_inside(name: &str, dependency: &Value, published: &[Published]) -> Option<String> {
    let on = dependency["name"].as_str().unwrap_or_default();
    let has_version = dependency["req"] != "*";
    let is_for_tests = dependency["kind"] == "dev";
    if is_for_tests && has_version {
        // The registry would have to have it, and it may depend on this package.
        return Some(format!("{name}: the development dependency {on} has a version; give its path alone"));
    }
    if !is_for_tests && !has_version {
        return Some(format!("{name}: the dependency {on} has a path and no version"));
    }
    if !is_for_tests && !published.iter().any(|package| package.name == on) {
        return Some(format!("{name} depends on {on}, which is not published"));
    }
    None
}

/// Returns the faults in the files of a package, one a line. `built` are those that Cargo compiles first.
pub(super) fn files(name: &str, built: &[String], list: &str) -> Vec<String> {
    let is_of_facade = |file: &str| {
        file == "CHANGELOG.md" || file.strip_prefix("docs/guide/").is_some_and(|page| !page.contains('/'))
    };
    let belongs = |file: &str| {
        file.starts_with("src/")
            || REQUIRED.contains(&file)
            || CARGOS.contains(&file)
            || built.iter().any(|one| one == file)
            || name == FACADE && is_of_facade(file)
    };
    let foreign = list.lines().filter(|file| !belongs(file));
    let mut wrong: Vec<_> = foreign.map(|file| format!("the package {name} contains {file}")).collect();
    let required = REQUIRED.into_iter().chain(built.iter().map(String::as_str));
    let missing = required.filter(|file| !list.lines().any(|line| line == *file));
    wrong.extend(missing.map(|file| format!("the package {name} lacks {file}")));
    if built.is_empty() {
        wrong.push(format!("the package {name} has no source"));
    }
    wrong
}

/// Returns the links of a README that lead nowhere where only the package is shown.
pub(super) fn links(name: &str, readme: &str) -> Vec<String> {
    if name == FACADE {
        return Vec::new();
    }
    let links = readme.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
    let relative = links.filter(|link| !link.contains("://"));
    relative
        .map(|link| format!("the README of {name} links to {link}, which its package does not have"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package() -> Value {
        json!({
            "name": "gpu-vmm-core", "description": "d", "license": "MIT", "repository": "r", "homepage": "h",
            "readme": "README.md", "rust_version": "1.88", "documentation": "https://docs.rs/gpu-vmm-core",
            "keywords": ["gpu"], "categories": ["memory-management"],
            "metadata": { "docs": { "rs": { "all-features": true } } },
            "dependencies": [
                { "name": "libc", "req": "^0.2", "kind": null },
                { "name": "gpu-vmm-testkit", "req": "*", "kind": "dev", "path": "/testkit" },
            ],
        })
    }

    #[test]
    fn a_manifest_lacks_nothing() {
        assert!(manifest(&package(), &[]).is_empty());
        for (field, value) in [
            ("repository", json!(null)),
            ("documentation", json!("https://docs.rs/gpu-vmm")),
            ("keywords", json!([])),
            ("metadata", json!(null)),
            ("dependencies", json!([{ "name": "gpu-vmm-x", "req": "*", "kind": null, "path": "/x" }])),
            ("dependencies", json!([{ "name": "gpu-vmm-x", "req": "^0.1", "kind": null, "path": "/x" }])),
            ("dependencies", json!([{ "name": "gpu-vmm-x", "req": "^0.1", "kind": "dev", "path": "/x" }])),
        ] {
            let mut package = package();
            package[field] = value;
            assert_eq!(manifest(&package, &[]).len(), 1, "{field}: {package}");
        }
    }

    #[test]
    fn a_package_has_its_own_files_alone() {
        let good = "Cargo.toml\nREADME.md\nLICENSE-MIT\nLICENSE-APACHE\nsrc/lib.rs\nbuild.rs\n";
        let built = ["src/lib.rs".to_owned(), "build.rs".to_owned()];
        assert!(files("gpu-vmm-core", &built, good).is_empty());
        assert!(files("gpu-vmm", &built, &format!("{good}docs/guide/pool.md\nCHANGELOG.md\n")).is_empty());
        assert_eq!(files("gpu-vmm-core", &built[..1], good).len(), 1, "a build script that is none");
        assert_eq!(files("gpu-vmm-core", &[], &good.replace("build.rs\n", "")).len(), 1, "no target");
        for (name, list) in [
            ("gpu-vmm", format!("{good}.ci/run\n")),
            ("gpu-vmm", format!("{good}docs/conformance/host.json\n")),
            ("gpu-vmm-core", format!("{good}docs/guide/pool.md\n")),
            ("gpu-vmm-core", good.replace("LICENSE-MIT\n", "")),
            ("gpu-vmm-core", good.replace("src/lib.rs\n", "")),
            ("gpu-vmm-core", good.replace("build.rs\n", "")),
        ] {
            assert_eq!(files(name, &built, &list).len(), 1, "{name}: {list}");
        }
    }

    #[test]
    fn readme_links_are_on_the_web() {
        let page = "[one](https://docs.rs/gpu-vmm), [two](../docs/guide/pool.md)";
        assert_eq!(links("gpu-vmm-core", page).len(), 1);
        assert!(links("gpu-vmm", page).is_empty());
    }
}
