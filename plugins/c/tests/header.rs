//! The header is what cbindgen makes of the sources, and C and C++ take it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::Command;

/// Set to have the header written.
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
