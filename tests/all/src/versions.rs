//! `cargo test-all versions`: the newest release of everything that gpu-vmm plugs into, beside the newest one that was tested.
//!
//! docs/guide/support.md has the list: the table behind the heading "Versions that were tested". A release that was not tested
//! fails nothing, and neither does a registry that cannot be reached: the table names both.

use crate::apt::Apt;
use crate::cargo;
use crate::layout::Layout;
use crate::trouble::{Answer, Doing, Trouble};
use std::cmp::Ordering;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The page with the list, and the heading above it.
const PAGE: &str = "docs/guide/support.md";
const HEADING: &str = "## Versions that were tested";

/// A row of the list.
#[derive(Debug, PartialEq, Eq)]
struct Package {
    what: String,
    registry: Registry,
    name: String,
    /// The newest release that was tested, or that the adapter was written for.
    tested: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registry {
    PyPi,
    CratesIo,
    Debian,
}

/// Prints the table. Fails only if the list cannot be read.
pub(crate) fn run(layout: &Layout) -> Answer<bool> {
    let path = cargo::workspace()?.join(PAGE);
    let page = fs::read_to_string(&path).doing(|| path.display().to_string())?;
    let packages = packages(&page)?;
    // Outside of a workspace, whose lock file and Rust version would choose the release.
    let folder = layout.root.join("versions");
    fs::create_dir_all(&folder).doing(|| folder.display().to_string())?;
    let rows: Vec<(Package, Answer<String>)> = packages
        .into_iter()
        .map(|package| {
            let newest = newest(&folder, &package);
            (package, newest)
        })
        .collect();
    print!("{}", table(&rows));
    Ok(true)
}

/// Reads the list from the page.
fn packages(page: &str) -> Answer<Vec<Package>> {
    let wrong = |line: &str| Trouble::new(format!("{PAGE}: {line:?} is no row of {HEADING:?}"));
    let lines = page.lines().skip_while(|line| *line != HEADING).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('#')).filter(|line| line.starts_with('|'));
    // The first two lines are the titles and the rule below them.
    let rows = lines.skip(2).map(|line| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let (Some(what), Some(place), Some(tested)) = (cells.next(), cells.next(), cells.next()) else {
            return Err(wrong(line));
        };
        let (registry, name) = place.split_once(' ').ok_or_else(|| wrong(line))?;
        let registry = match registry {
            "PyPI" => Registry::PyPi,
            "crates.io" => Registry::CratesIo,
            "Debian" => Registry::Debian,
            _ => return Err(wrong(line)),
        };
        // `2.6.0 to 2.15.0`, or one release.
        let tested = tested.split_whitespace().next_back().ok_or_else(|| wrong(line))?;
        let name = name.trim_matches('`').to_owned();
        Ok(Package { what: what.to_owned(), registry, name, tested: tested.to_owned() })
    });
    let rows = rows.collect::<Answer<Vec<Package>>>()?;
    if rows.is_empty() {
        return Err(Trouble::new(format!("{PAGE} has no table behind {HEADING:?}")));
    }
    Ok(rows)
}

/// Returns the newest release of a package.
fn newest(folder: &Path, package: &Package) -> Answer<String> {
    let name = &*package.name;
    match package.registry {
        Registry::PyPi => {
            let mut command = Command::new("python3");
            command.args(["-m", "pip", "--disable-pip-version-check", "index", "versions", name]);
            of_pip(&said(&mut command, folder)?)
        }
        Registry::CratesIo => {
            of_cargo(&said(cargo::cargo().args(["info", "--color", "never", name]), folder)?)
        }
        Registry::Debian => {
            let instead = "look the package up by hand".to_owned();
            let apt = Apt::new(&folder.join("debian"), folder.join("debian/debs"), instead)?;
            let look = || of_apt(&apt.run("apt-cache", &["madison", name])?).map(Some);
            apt.read_lists(name, &["sid main", "experimental main"], look)
        }
    }
}

/// Returns the output of a program in a folder, or the last line of its errors.
fn said(command: &mut Command, folder: &Path) -> Answer<String> {
    let shown = command.get_program().display().to_string();
    let output = command.current_dir(folder).output().doing(|| shown.clone())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().map(str::trim).rfind(|line| !line.is_empty());
    Err(Trouble::new(format!("{shown}: {}", last.unwrap_or("it failed without a word"))))
}

/// Reads `torch (2.15.0)`.
fn of_pip(text: &str) -> Answer<String> {
    let first = text.lines().next().unwrap_or_default();
    let version = first.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
    version
        .map(|(version, _)| version.to_owned())
        .ok_or_else(|| Trouble::new(format!("pip printed {first:?}")))
}

/// Reads `version: 0.4.0 (latest 0.12.0-pre.1)`: the first is the newest for this Rust.
fn of_cargo(text: &str) -> Answer<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("version: ")).unwrap_or_default();
    let latest = line.split_once("(latest ").map_or(line, |(_, rest)| rest);
    match latest.split([' ', ')']).next() {
        Some(version) if !version.is_empty() => Ok(version.to_owned()),
        _ => Err(Trouble::new("cargo info printed no version")),
    }
}

/// Reads lines `libamdhip64-7 | 7.2.4-1~exp2 | ...`, without the packaging's own part of the version.
fn of_apt(text: &str) -> Answer<String> {
    let versions = text.lines().filter_map(|line| line.split('|').nth(1)).map(str::trim);
    let upstream = versions.map(|version| version.split(['-', '+', '~']).next().unwrap_or_default());
    let newest = upstream.max_by(|one, other| compare(one, other));
    newest.map(str::to_owned).ok_or_else(|| Trouble::new("apt-cache names no version"))
}

/// Compares versions by their numbers. A pre-release comes before its release.
fn compare(one: &str, other: &str) -> Ordering {
    let split = |version: &str| {
        let (numbers, pre) =
            version.split_once('-').map_or((version, None), |(n, p)| (n, Some(p.to_owned())));
        let numbers: Vec<u64> = numbers.split('.').map(|number| number.parse().unwrap_or(0)).collect();
        (numbers, pre.is_none(), pre)
    };
    split(one).cmp(&split(other))
}

fn table(rows: &[(Package, Answer<String>)]) -> String {
    let width = rows.iter().map(|(package, _)| package.what.chars().count()).max().unwrap_or_default();
    let mut text = format!("\n{:width$}  {:16}{:16}\n", "", "newest", "tested");
    let mut differing = 0;
    for (Package { what, tested, .. }, newest) in rows {
        let (newest, difference) = match newest {
            Ok(newest) if compare(newest, tested) == Ordering::Greater => (&**newest, "NEWER".to_owned()),
            Ok(newest) => (&**newest, String::new()),
            Err(trouble) => ("", format!("unknown: {trouble}")),
        };
        differing += usize::from(!difference.is_empty());
        let line = format!("{what:width$}  {newest:16}{tested:16}{difference}");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let _ = writeln!(text, "\n{differing} of {} differ or are unknown", rows.len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(what: &str, tested: &str) -> Package {
        Package {
            what: what.to_owned(),
            registry: Registry::PyPi,
            name: what.to_owned(),
            tested: tested.to_owned(),
        }
    }

    #[test]
    fn page_lists_each_package() {
        let page = fs::read_to_string(cargo::workspace().unwrap().join(PAGE)).unwrap();
        let packages = packages(&page).unwrap();
        for name in ["torch", "vllm", "cupy-cuda13x", "cudarc", "hip-sys", "libamdhip64-7"] {
            assert!(packages.iter().any(|package| package.name == name), "{name}: {packages:?}");
        }
        assert!(packages.iter().all(|package| package.tested.starts_with(|c: char| c.is_ascii_digit())));
    }

    #[test]
    fn rows_are_read_and_wrong_ones_refused() {
        let page = |row: &str| {
            format!("# x\n\n{HEADING}\n\n| a | b | c |\n|---|---|---|\n{row}\n\n## Next\n| d |\n")
        };
        let read = packages(&page("| The class | PyPI `torch` | 2.6.0 to 2.15.0 | x |")).unwrap();
        let expected =
            Package { what: "The class".to_owned(), name: "torch".to_owned(), ..package("", "2.15.0") };
        assert_eq!(read, [expected]);
        for wrong in ["| a | npm `b` | 1 |", "| a | PyPI | 1 |", "| a |", "no row"] {
            assert!(packages(&page(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn outputs_of_the_registries_are_read() {
        assert_eq!(of_pip("torch (2.15.0)\nAvailable versions: 2.15.0, 2.14.1\n").unwrap(), "2.15.0");
        assert_eq!(of_cargo("cubecl #gpu\nversion: 0.4.0 (latest 0.12.0-pre.1)\n").unwrap(), "0.12.0-pre.1");
        assert_eq!(of_cargo("version: 0.19.10\n").unwrap(), "0.19.10");
        assert_eq!(of_cargo("version: 1.2.3 (from ./x)\n").unwrap(), "1.2.3");
        let madison =
            " libamdhip64-7 | 7.2.4-1~exp2 | m sid/main\n libamdhip64-7 | 7.10.1+dfsg-1 | m experimental\n";
        assert_eq!(of_apt(madison).unwrap(), "7.10.1");
        assert!(of_pip("ERROR").is_err() && of_cargo("x").is_err() && of_apt("").is_err());
    }

    #[test]
    fn newer_and_unknown_releases_are_marked() {
        let rows = [
            (package("old", "2.9.1"), Ok("2.10.0".to_owned())),
            (package("same", "0.12.0-pre.1"), Ok("0.12.0-pre.1".to_owned())),
            (package("ahead", "0.12.0"), Ok("0.12.0-pre.1".to_owned())),
            (package("away", "1"), Err(Trouble::new("no network"))),
        ];
        let text = table(&rows);
        let marks =
            text.lines().filter(|line| line.contains("NEWER") || line.contains("unknown: no network"));
        assert_eq!(marks.count(), 2, "{text}");
        assert!(text.lines().any(|line| line.starts_with("old") && line.ends_with("NEWER")), "{text}");
        assert!(text.contains("2 of 4 differ"), "{text}");
    }
}
