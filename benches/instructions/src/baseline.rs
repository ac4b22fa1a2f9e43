//! The earlier counts, and the compiler and library that they depend on.

use crate::{ACCEPT, Failed};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

/// The file `baseline.toml`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Baseline {
    pub(crate) made: Made,
    pub(crate) instructions: BTreeMap<String, f64>,
}

/// The tools of the counts. Counts with another compiler cannot be compared.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Made {
    rustc: String,
    libc: String,
    architecture: String,
}

impl Made {
    pub(crate) fn here() -> Result<Self, Failed> {
        let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
        Ok(Self {
            rustc: said(&rustc, "--version")?,
            libc: said("getconf", "GNU_LIBC_VERSION").unwrap_or_else(|_| "not glibc".to_owned()),
            architecture: std::env::consts::ARCH.to_owned(),
        })
    }
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {} on {}", self.rustc, self.libc, self.architecture)
    }
}

/// Returns the only line of a program's output.
fn said(program: &str, argument: &str) -> Result<String, Failed> {
    let output =
        Command::new(program).arg(argument).output().map_err(|error| format!("{program}: {error}"))?;
    let text = String::from_utf8(output.stdout)?.trim().to_owned();
    if output.status.success() { Ok(text) } else { Err(format!("{program}: {}", output.status).into()) }
}

impl Baseline {
    fn path() -> PathBuf {
        concat!(env!("CARGO_MANIFEST_DIR"), "/baseline.toml").into()
    }

    pub(crate) fn read() -> Result<Self, Failed> {
        let path = Self::path();
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(toml::from_str(&text)?)
    }

    pub(crate) fn write(&self) -> Result<(), Failed> {
        let path = Self::path();
        let text = toml::to_string(self)?;
        // Replaced atomically: the file is complete, or unchanged.
        let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(&path))?;
        write!(file, "# Instructions of one operation. `{ACCEPT}` writes this file.\n\n{text}")?;
        if let Ok(found) = std::fs::metadata(&path) {
            file.as_file().set_permissions(found.permissions())?;
        }
        file.persist(&path)?;
        Ok(())
    }
}

/// The result of a comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Same,
    More,
    Less,
}

impl Verdict {
    pub(crate) fn of(old: f64, now: f64) -> Self {
        match now / old {
            ratio if ratio > 1.02 => Self::More,
            ratio if ratio < 0.95 => Self::Less,
            _ => Self::Same,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Same => "",
            Self::More => "FAILED: more than the baseline",
            Self::Less => "FAILED: less than the baseline, which must be lowered",
        })
    }
}
