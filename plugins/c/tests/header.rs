//! The header is up to date with the sources, compiles as C and C++, and its rule for results is tested for every function.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// If this variable is set, the test writes the header.
const WRITE: &str = "GPU_VMM_WRITE_HEADER";

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn it_is_what_the_sources_say() {
    let mut made = Vec::new();
    let config = cbindgen::Config::from_file(folder().join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new().with_crate(folder()).with_config(config).generate().unwrap();
    bindings.write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let file = folder().join("include/gpu_vmm.h");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&file, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap();
    assert!(
        kept == made,
        "include/gpu_vmm.h is not up to date: {WRITE}=1 cargo test -p gpu-vmm-c --test header writes it"
    );
}

#[test]
fn c_and_cpp_take_it() {
    for (compiler, language) in [("cc", "c"), ("c++", "c++")] {
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-include"]);
        command.arg(folder().join("include/gpu_vmm.h")).args(["-x", language, "/dev/null"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{compiler}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The names of all functions of the header, in order.
fn functions(header: &str) -> BTreeSet<&str> {
    let code = header.lines().filter(|line| !line.starts_with("//") && !line.starts_with(' '));
    let named = code.filter_map(|line| line.split_once('(').map(|(before, _)| before));
    let names = named.filter_map(|before| before.rsplit([' ', '*']).next());
    names.filter(|name| name.starts_with("gpu_vmm_")).collect()
}

#[test]
fn symbol_list_matches_the_header() {
    let header = std::fs::read_to_string(folder().join("include/gpu_vmm.h")).unwrap();
    let made: String = functions(&header).iter().map(|name| format!("{name}\n")).collect();
    let file = folder().join("abi.txt");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&file, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap();
    assert!(
        kept == made,
        "abi.txt is not up to date: {WRITE}=1 cargo test -p gpu-vmm-c --test header writes it; a symbol that disappears breaks \
         programs"
    );
}

/// The functions of the header that return a status and have an out-parameter.
fn with_results(header: &str) -> BTreeSet<&str> {
    let declarations = header.split("\ngpu_vmm_status ").skip(1).filter_map(|rest| rest.split_once(");"));
    let named = declarations.filter_map(|(declaration, _)| declaration.split_once('('));
    let gives = |parameter: &str| {
        let parameter = parameter.trim();
        // Inputs, streams, and the buffer of a copy, whose contents are undefined after an error.
        let is_none = parameter.starts_with("const ")
            || parameter.ends_with("void *stream")
            || parameter.ends_with("void *to");
        parameter.contains('*') && !is_none
    };
    named.filter(|(_, parameters)| parameters.split(',').any(gives)).map(|(name, _)| name).collect()
}

#[test]
fn result_rule_is_tested_for_all() {
    let header = std::fs::read_to_string(folder().join("include/gpu_vmm.h")).unwrap();
    let tested = std::fs::read_to_string(folder().join("tests/rules.c")).unwrap();
    let given = with_results(&header);
    assert!(given.len() > 20, "{given:?}");
    let missing: Vec<_> = given.iter().filter(|name| !tested.contains(&format!(", {name}("))).collect();
    assert!(missing.is_empty(), "tests/rules.c lets none of these fail: {missing:?}");
}
