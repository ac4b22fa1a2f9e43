//! A user's own program on AMD's runtime over the simulated HSA runtime, or on the fake NVIDIA driver: `run-hip`, `run-cuda`,
//! and the lines of `setup` about them.
//!
//! The program replaces this one: its streams, signals and exit status are its own.

use crate::cargo;
use crate::environment::LIBRARY_PATH;
use crate::fake_driver;
use crate::layout::Layout;
use crate::process;
use crate::runtime::Runtime;
use crate::shell;
use crate::suites::LIMIT;
use crate::summary::{Outcome, Row, Summary};
use crate::trouble::{Answer, Trouble};
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a program, with its arguments, on the newest HIP that matches `version`, or the newest of all.
pub(crate) fn run_hip(layout: &Layout, version: Option<&str>, program: &[OsString]) -> Answer<Infallible> {
    let (program, arguments) = found(program)?;
    has_loader(&program)?;
    let runtime = layout.runtime(version)?;
    simulator(layout)?;
    let own = std::env::var_os(LIBRARY_PATH);
    let mut command = runtime.command(&layout.simulator(), &program, own.as_deref());
    become_program(command.args(arguments))
}

/// Runs a program, with its arguments, on the fake NVIDIA driver.
pub(crate) fn run_cuda(layout: &Layout, program: &[OsString]) -> Answer<Infallible> {
    if !cfg!(target_os = "linux") {
        return Err(Trouble::new("the fake NVIDIA driver is a Linux library; run the program on Linux"));
    }
    let (program, arguments) = found(program)?;
    fake_driver::set_up(layout)?;
    let own = std::env::var_os(LIBRARY_PATH);
    let mut command = fake_driver::command(&layout.fake_cuda(), &program, own.as_deref());
    become_program(command.args(arguments))
}

/// Builds the simulated HSA runtime, and prints how to run a program on each version of HIP.
pub(crate) fn set_up_hip(layout: &Layout, runtimes: &[Runtime]) -> Answer {
    simulator(layout)?;
    for runtime in runtimes {
        println!("HIP {} is in {}", runtime.version, runtime.prefix.display());
        let mut here = layout.this_command();
        here.args(["run-hip", "--version", &runtime.version]);
        tell(&mut here, &mut runtime.command(&layout.simulator(), Path::new("PROGRAM"), None));
    }
    Ok(())
}

/// Builds the fake driver, and prints how to run a program on it.
pub(crate) fn set_up_cuda(layout: &Layout) -> Answer {
    if cfg!(target_os = "linux") {
        fake_driver::set_up(layout)?;
        println!("the fake NVIDIA driver is in {}", layout.fake_cuda().display());
        let mut here = layout.this_command();
        here.arg("run-cuda");
        tell(&mut here, &mut fake_driver::command(&layout.fake_cuda(), Path::new("PROGRAM"), None));
    }
    Ok(())
}

fn tell(here: &mut Command, anywhere: &mut Command) {
    println!("  run a program on it:  {}", shell::line(here.args(["PROGRAM", "ARGS..."])));
    println!("  the same, anywhere:   {}", shell::line(anywhere.arg("ARGS...")));
}

/// Builds the simulator, under a lock: two of these commands would link one file.
fn simulator(layout: &Layout) -> Answer {
    layout.alone(|| cargo::simulator(&layout.simulator()))
}

/// Returns the program's file and its arguments.
fn found(program: &[OsString]) -> Answer<(PathBuf, &[OsString])> {
    let (name, arguments) = program.split_first().ok_or_else(|| Trouble::new("no program is named"))?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    Ok((look_for(name, &path)?, arguments))
}

/// Looks a program up as a shell does. The runtime's loader would look for a bare name among libraries.
fn look_for(name: &OsStr, path: &OsStr) -> Answer<PathBuf> {
    let shown = name.display();
    if Path::new(name).components().count() > 1 || name.to_string_lossy().contains('/') {
        let file = PathBuf::from(name);
        return match file.metadata() {
            Err(error) => Err(Trouble::new(format!("{shown} cannot be run: {error}"))),
            Ok(_) if is_program(&file) => Ok(file),
            Ok(_) => Err(Trouble::new(format!("{shown} cannot be run: it is not an executable file"))),
        };
    }
    // An empty folder means the current one.
    let folders = std::env::split_paths(path).map(|folder| Path::new(".").join(folder));
    let found = folders.map(|folder| folder.join(name)).find(|file| is_program(file));
    found.ok_or_else(|| {
        Trouble::new(format!(
            "there is no program {shown} in PATH; name it as ./{shown} if it is in this folder"
        ))
    })
}

#[cfg(unix)]
fn is_program(file: &Path) -> bool {
    file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}

#[cfg(not(unix))]
fn is_program(file: &Path) -> bool {
    file.is_file()
}

/// Refuses scripts: the runtime's loader starts only ELF programs.
fn has_loader(program: &Path) -> Answer {
    let mut start = [0; 4];
    let read = File::open(program).and_then(|mut file| file.read_exact(&mut start));
    // A shorter file is not a program either.
    if read.is_ok() && start == *b"\x7fELF" {
        return Ok(());
    }
    Err(Trouble::new(format!(
        "{0} is not an ELF program, and the loader of AMD's runtime runs no scripts; run the \
         script's interpreter, as in run-hip python3 {0}",
        program.display()
    )))
}

/// Replaces this process by a program.
#[cfg(unix)]
fn become_program(command: &mut Command) -> Answer<Infallible> {
    use std::os::unix::process::CommandExt;
    let error = command.exec();
    Err(Trouble::new(format!("{} cannot be run: {error}", command.get_program().display())))
}

#[cfg(not(unix))]
fn become_program(_: &mut Command) -> Answer<Infallible> {
    Err(Trouble::new("programs can only be run on Linux"))
}

/// Checks that `run-hip` runs `gpu-vmm grow` on each version.
pub(crate) fn check_hip(layout: &Layout, runtimes: &[Runtime], summary: &mut Summary) -> Answer {
    for Runtime { version, .. } in runtimes {
        let how = ["run-hip", "--version", version];
        summary.add(check(layout, &format!("HIP {version}, run-hip gpu-vmm grow"), &how, "hip")?);
    }
    Ok(())
}

/// Checks that `run-cuda` runs it.
pub(crate) fn check_cuda(layout: &Layout, summary: &mut Summary) -> Answer {
    if cfg!(target_os = "linux") {
        summary.add(check(layout, "fake CUDA, run-cuda gpu-vmm grow", &["run-cuda"], "cuda")?);
    }
    Ok(())
}

fn check(layout: &Layout, name: &str, how: &[&str], backend: &str) -> Answer<Row> {
    let program = cargo::command_program()?;
    // Its path may name another file by now, since Cargo rebuilds this program with the tests.
    let mut command = Command::new("/proc/self/exe");
    command.arg("--folder").arg(&layout.root).args(how).arg(program);
    command.args(["grow", "--backend", backend, "--to", "16MiB"]);
    let log = layout.logs().join(format!("{}.txt", name.replace([' ', ','], "-")));
    let ended = process::run(&mut command, &log, LIMIT)?;
    let passed = ended.status.is_some_and(|status| status.success());
    if !passed {
        println!("{}\n{command:?}\n", fs::read_to_string(&log).unwrap_or_default());
    }
    eprintln!("{name}: {}", if passed { "good" } else { "failed" });
    Ok(Row::of(name, if passed { Outcome::Passed } else { Outcome::Failed }, ended.time))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_by_a_shell() {
        let look = |name: &str, path: &str| look_for(OsStr::new(name), OsStr::new(path));
        assert_eq!(look("sh", "/nonexistent:/bin").unwrap(), Path::new("/bin/sh"));
        assert_eq!(look("/bin/sh", "").unwrap(), Path::new("/bin/sh"));
        assert!(look("sh", "/nonexistent").unwrap_err().to_string().contains("no program sh in PATH"));
        for (name, why) in
            [("./missing", "No such file"), ("/bin", "not an executable file"), ("/etc/passwd", "executable")]
        {
            let text = look(name, "/bin").unwrap_err().to_string();
            assert!(text.contains(name) && text.contains(why) && !text.contains('\n'), "{text}");
        }
        // Tests run in the package's folder, which has no executable file; and a loader does not accept a bare name.
        assert!(look("Cargo.toml", "").is_err());
        assert!(look("src", ".").is_err());
    }

    #[test]
    fn scripts_are_refused() {
        assert!(has_loader(&std::env::current_exe().unwrap()).is_ok());
        let text = has_loader(Path::new("Cargo.toml")).unwrap_err().to_string();
        assert!(text.contains("Cargo.toml is not an ELF program") && text.contains("interpreter"), "{text}");
    }
}
