//! The headers for C++: every function of C is used or listed as left out, the programs compile with gcc and clang in C++17, 20 and 23, with
//! and without exceptions, every call has a comment, and the guide shows the examples as they are.
//!
//! `cargo test-all plugins` runs the programs. A compiler that is missing is named on standard error.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The headers for C++.
fn headers() -> Vec<PathBuf> {
    let entries = fs::read_dir(folder().join("include/gpu_vmm")).unwrap();
    let mut found: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    found.extend(["gpu_vmm.hpp", "gpu_vmm_mr.hpp"].map(|name| folder().join("include").join(name)));
    found.sort();
    assert!(found.len() > 10, "{found:?}");
    found
}

/// The words of a text that begin as the names of the C header do.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("gpu_vmm_") || word.starts_with("GPU_VMM_")).collect()
}

/// The functions and the constants of the C header.
fn declared(header: &str) -> BTreeSet<&str> {
    let constants = header.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
    let functions = read_functions();
    let mut found: BTreeSet<&str> = constants.map(|(name, _)| name).collect();
    found.extend(names(header).into_iter().filter(|name| functions.contains(*name)));
    found
}

fn read_functions() -> BTreeSet<String> {
    read(&folder().join("abi.txt")).lines().map(str::to_owned).collect()
}

#[test]
fn every_name_of_c_is_used_or_listed() {
    let header = read(&folder().join("include/gpu_vmm.h"));
    let sources: String = headers().iter().map(|path| read(path)).collect();
    // Comments name functions of C that they explain.
    let code: String =
        sources.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let (declared, used) = (declared(&header), names(&code));
    assert!(declared.len() > 250, "only {} names were found", declared.len());
    let listed = read(&folder().join("tests/cpp/left_out.txt"));
    let rows = listed.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let rows: Vec<(&str, &str)> = rows.map(|line| line.split_once(' ').unwrap_or((line, ""))).collect();
    let covers = |pattern: &str, name: &str| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    };
    let mut wrong = String::new();
    for (pattern, reason) in &rows {
        if reason.trim().is_empty() {
            writeln!(wrong, "{pattern} has no reason").unwrap();
        }
        if !declared.iter().any(|name| covers(pattern, name)) {
            writeln!(wrong, "{pattern} is listed, and gpu_vmm.h has no such name").unwrap();
        }
        for name in declared.iter().filter(|name| covers(pattern, name) && used.contains(**name)) {
            writeln!(wrong, "{name} is listed as left out, and the headers for C++ use it").unwrap();
        }
    }
    for name in
        declared.difference(&used).filter(|name| !rows.iter().any(|(pattern, _)| covers(pattern, name)))
    {
        writeln!(
            wrong,
            "{name}: use it in include/gpu_vmm, or list it in tests/cpp/left_out.txt with the reason"
        )
        .unwrap();
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_call_has_a_comment() {
    let (mut seen, mut wrong) = (0, String::new());
    for path in headers() {
        let source = read(&path);
        let lines: Vec<&str> = source.lines().map(str::trim_start).collect();
        let (mut is_public, mut is_detail) = (true, false);
        for (number, line) in lines.iter().enumerate() {
            match *line {
                "namespace detail {" => is_detail = true,
                "} // namespace detail" => is_detail = false,
                "private:" => is_public = false,
                "public:" | "};" => is_public = true,
                _ => {}
            }
            let declaration = line
                .trim_start_matches("[[nodiscard]] ")
                .trim_start_matches("static ")
                .trim_start_matches("inline ");
            let is_type =
                ["class ", "struct ", "enum class "].iter().any(|word| declaration.starts_with(word))
                    && line.ends_with('{');
            if is_detail
                || !is_public
                || !(declaration.starts_with("result<") || is_type)
                || line.starts_with("return")
            {
                continue;
            }
            // A definition outside of its class, whose declaration has the comment.
            if declaration.contains("> pool::") {
                continue;
            }
            seen += 1;
            let above =
                if lines[number - 1].starts_with("template") { lines[number - 2] } else { lines[number - 1] };
            if !above.starts_with("///") {
                writeln!(wrong, "{}:{}: {line}", path.display(), number + 1).unwrap();
            }
        }
    }
    assert!(seen > 200, "only {seen} declarations were found");
    assert!(wrong.is_empty(), "declarations without a comment that begins with ///:\n{wrong}");
}

/// The programs that compile with and without exceptions, with exceptions alone, and without alone.
const BOTH: [&str; 4] =
    ["tests/cpp/types.cpp", "tests/cpp/regions.cpp", "tests/cpp/pools.cpp", "tests/cpp/serve.cpp"];
const THROWING: [&str; 4] = ["growing_vector.cpp", "pool_streams.cpp", "two_processes.cpp", "suspend.cpp"];
const RETURNING: [&str; 1] = ["no_exceptions.cpp"];

/// One source with several programs, each in a namespace of its own, so that a compiler reads the headers once.
fn together(throws: bool) -> String {
    // As of a header that defines them, such as that of Windows.
    let mut source = String::from(
        "#define min(a, b) ((a) < (b) ? (a) : (b))\n#define max(a, b) ((a) < (b) ? (b) : (a))\n",
    );
    source.push_str("#include <gpu_vmm.hpp>\n#undef min\n#undef max\n");
    source.push_str(
        "#include \"tests/cpp/support.hpp\"\n#include \"examples/cpp/streams.hpp\"\n#include <gpu_vmm.hpp>\n",
    );
    source.push_str("#include <cstdio>\n#include <numeric>\n#include <poll.h>\n#include <signal.h>\n#include <sys/wait.h>\n#include <unistd.h>\n");
    let examples: &[&str] = if throws { &THROWING } else { &RETURNING };
    let programs = BOTH.iter().map(|name| (*name).to_owned());
    let programs = programs.chain(examples.iter().map(|name| format!("examples/cpp/{name}")));
    for (number, program) in programs.enumerate() {
        writeln!(source, "#define main main_{number}\nnamespace program_{number} {{\n#include \"{program}\"\n}}\n#undef main").unwrap();
    }
    source
}

fn is_there(compiler: &str) -> bool {
    let is_found =
        Command::new(compiler).arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_found {
        eprintln!("SKIPPED: there is no {compiler} here");
    }
    is_found
}

/// Checks a source with a compiler, and returns its messages if it refuses it.
fn refused(compiler: &str, flags: &[&str], source: &Path) -> Option<String> {
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror", "-fsyntax-only"]).args(flags);
    if compiler.starts_with("clang") {
        command.arg("-Wdocumentation");
    }
    // The main functions of several programs have other names: nothing calls them, and they must return a value.
    command
        .args(["-Wno-unused-function", "-Wno-return-type", "-I"])
        .arg(folder())
        .arg("-I")
        .arg(folder().join("include"));
    let output = command.arg("-x").arg("c++").arg(source).output().unwrap();
    (!output.status.success()).then(|| format!("{command:?}\n{}", String::from_utf8_lossy(&output.stderr)))
}

/// Checks all jobs on two threads.
fn check_all(jobs: &[(String, Vec<String>, PathBuf)]) {
    let half = jobs.len().div_ceil(2).max(1);
    let refusals: Vec<String> = std::thread::scope(|scope| {
        let checks: Vec<_> = jobs
            .chunks(half)
            .map(|jobs| {
                scope.spawn(move || {
                    let check = |(compiler, flags, source): &(String, Vec<String>, PathBuf)| {
                        refused(compiler, &flags.iter().map(String::as_str).collect::<Vec<_>>(), source)
                    };
                    jobs.iter().filter_map(check).collect::<Vec<_>>()
                })
            })
            .collect();
        checks.into_iter().flat_map(|check| check.join().unwrap()).collect()
    });
    assert!(refusals.is_empty(), "{}", refusals.join("\n"));
}

#[test]
fn programs_compile_everywhere() {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let sources = [true, false].map(|throws| {
        let path = place.join(if throws { "throwing.cpp" } else { "returning.cpp" });
        fs::write(&path, together(throws)).unwrap();
        (throws, path)
    });
    let mut jobs = Vec::new();
    for compiler in ["g++", "clang++"].into_iter().filter(|compiler| is_there(compiler)) {
        // The last one is C++23, by the name that older compilers know as well.
        for standard in ["-std=c++17", "-std=c++20", "-std=c++2b"] {
            for (throws, source) in &sources {
                let mut flags = vec![standard.to_owned()];
                flags.extend((!throws).then(|| "-fno-exceptions".to_owned()));
                jobs.push((compiler.to_owned(), flags, source.clone()));
            }
        }
    }
    assert!(!jobs.is_empty(), "there is neither gcc nor clang");
    check_all(&jobs);
}

#[test]
fn each_header_compiles_alone() {
    let Some(compiler) = ["clang++", "g++"].into_iter().find(|compiler| is_there(compiler)) else {
        panic!("there is neither gcc nor clang");
    };
    // A header that another one includes first compiles alone if the other one does. The programs include gpu_vmm.hpp, and CCCL is checked
    // where its headers are: see cargo test-all plugins.
    let first = |path: &PathBuf| {
        let source = read(path);
        let name = source.split_once("#include \"").and_then(|(_, rest)| rest.split_once('"'));
        name.map(|(name, _)| path.with_file_name(name))
    };
    let firsts: BTreeSet<PathBuf> = headers().iter().filter_map(first).collect();
    let alone =
        headers().into_iter().filter(|path| path.parent().is_some_and(|folder| folder.ends_with("gpu_vmm")));
    let alone = alone.filter(|header| !firsts.contains(header));
    let flags = || ["-std=c++17", "-Wno-pragma-once-outside-header"].map(str::to_owned).to_vec();
    let jobs: Vec<_> = alone.map(|header| (compiler.to_owned(), flags(), header)).collect();
    assert!(jobs.len() > 5, "{jobs:?}");
    check_all(&jobs);
}

/// The programs that the guide compares with others, by the headings of their sections.
const COMPARED: [(&str, &str); 5] = [
    ("### A growing vector", "growing_vector.cpp"),
    ("### A pool with streams", "pool_streams.cpp"),
    ("### Two processes that share", "two_processes.cpp"),
    ("### Suspend and resume", "suspend.cpp"),
    ("### RMM over gpu-vmm", "rmm.cpp"),
];

/// A program without the comment at its beginning.
fn program(path: &Path) -> String {
    let source = read(path);
    let lines = source.lines().skip_while(|line| line.starts_with("//") || line.is_empty());
    lines.map(|line| format!("{line}\n")).collect()
}

/// The lines of a program that have code.
fn count(program: &str) -> usize {
    program.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with("//")).count()
}

#[test]
fn guide_shows_the_programs_and_counts_their_lines() {
    let page = read(&folder().join("../../docs/guide/cpp.md"));
    let examples = folder().join("examples/cpp");
    let returning = page.split_once("**Without exceptions**").unwrap().1.split_once("```cpp\n").unwrap().1;
    let returning = returning.split_once("```").unwrap().0;
    assert!(
        read(&examples.join("no_exceptions.cpp")).contains(returning),
        "no_exceptions.cpp does not have:\n{returning}"
    );
    for (heading, name) in COMPARED {
        let section =
            page.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no section {heading}")).1;
        let section = section.split("\n### ").next().unwrap().split("\n## ").next().unwrap();
        let blocks: Vec<&str> =
            section.split("```cpp\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        let [ours, other] =
            [program(&examples.join(name)), program(&examples.join("counterparts").join(name))];
        assert!(
            blocks == [&ours, &other],
            "{heading}: the blocks are not examples/cpp/{name} and examples/cpp/counterparts/{name}"
        );
        let title = heading.trim_start_matches("### ");
        let start = format!("| [{title}](");
        let row =
            page.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no row {start}"));
        let counts = format!("| {} | {} |", count(&ours), count(&other));
        assert!(row.ends_with(&counts), "{row}: the programs have {counts} lines");
    }
}
