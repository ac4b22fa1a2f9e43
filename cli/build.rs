//! Finds the commit and the features that the command is built from, for `gpu-vmm --version`.

use std::path::Path;
use std::process::Command;

fn main() {
    let commit = packaged().or_else(checked_out).unwrap_or_else(|| "unknown (built without git)".to_owned());
    println!("cargo::rustc-env=BUILT_FROM_COMMIT={commit}");
    let is_on = |name: &&str| std::env::var_os(format!("CARGO_FEATURE_{}", name.to_uppercase())).is_some();
    let features: Vec<&str> = ["cuda", "hip", "host"].into_iter().filter(is_on).collect();
    let features = if features.is_empty() { "none".to_owned() } else { features.join(" ") };
    println!("cargo::rustc-env=BUILT_WITH_FEATURES={features}");
    println!("cargo::rustc-env=BUILT_FOR_TARGET={}", std::env::var("TARGET").unwrap_or_default());
    println!("cargo::rerun-if-changed=build.rs");
}

/// Returns the commit that Cargo has recorded in a package.
fn packaged() -> Option<String> {
    let text = std::fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = text.split_once("\"sha1\"")?;
    rest.split('"').nth(1).map(|commit| commit.chars().take(12).collect())
}

/// Returns the commit of the repository that this file is in.
fn checked_out() -> Option<String> {
    // The package could lie in a repository that it is no part of.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    // These files change with the commit, or name the file that does.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD"].into_iter().chain(branch.as_deref()) {
        let path = git(&["rev-parse", "--git-path", name])?;
        // A branch can be in a file of many branches; Cargo would rebuild for a file that is missing.
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    Some(commit)
}

fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
