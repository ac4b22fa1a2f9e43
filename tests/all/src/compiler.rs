//! Compiling programs of C and C++ for the tests, with every warning an error.

use crate::process;
use crate::trouble::{Answer, Trouble};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Compiles `inputs` to `output`: a source and, if it is linked, the library behind it. An error has the name of the program and
/// the compiler's messages.
pub(crate) fn compile(
    name: &str,
    compiler: &str,
    flags: &[&str],
    include: &Path,
    output: &Path,
    inputs: &[&Path],
) -> Answer {
    let mut command = Command::new(compiler);
    command.args(flags).args(["-Wall", "-Wextra", "-Werror", "-O1", "-I"]).arg(include);
    command.arg("-o").arg(output).args(inputs);
    let log = output.with_extension("compiler.txt");
    let ended = process::run(&mut command, &log, Duration::from_secs(120))?;
    if ended.status.is_some_and(|status| status.success()) {
        return Ok(());
    }
    let messages = fs::read_to_string(&log).unwrap_or_default();
    Err(Trouble::new(format!("{name} does not compile: {command:?}\n{messages}")))
}
