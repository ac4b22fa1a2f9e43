//! Settings from the environment, for the fake drivers and the simulator: variables with a prefix, and the forms of their
//! values.
//!
//! A setting that is unknown or ill-formed ends the process: a test with a misspelt one would pass without testing anything.

use std::fmt::Display;
use std::io::Write;
use std::str::FromStr;
use std::time::Duration;

/// Lists a module's cases, each a `crate::child::Case`: the name, settings without their prefix, and the code, which otherwise is the
/// function of this name:
///
/// ```text
/// cases! {
///     opens;
///     opens_nothing [GPUS = "0"];
///     fails_at_once [FAIL = "cuInit:1:999"] => opens_nothing;
/// }
/// ```
#[macro_export]
#[allow(clippy::crate_in_macro_def)] // each caller has its own `Case`, whose function takes its own rig
macro_rules! cases {
    (@run $case:ident) => { $case };
    (@run $case:ident $run:expr) => { $run };
    ($($case:ident $([$($setting:ident = $value:literal),+])? $(=> $run:expr)?;)*) => {
        pub(crate) const CASES: &[crate::child::Case] = &[$(crate::child::Case {
            name: stringify!($case),
            settings: &[$($((stringify!($setting), $value)),+)?],
            run: $crate::cases!(@run $case $($run)?),
        }),*];
    };
}

/// Reads the settings of this process: `set` gets each name without the prefix, and its value. If one is wrong, reports it on
/// standard error in the name of `who`, and ends the process with status 2.
pub fn of_process<T: Default>(
    who: &str,
    prefix: &str,
    set: impl Fn(&mut T, &str, &str) -> Result<(), String>,
) -> T {
    let environment = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        name.starts_with(prefix).then(|| (name, value.to_string_lossy().into_owned()))
    });
    from_variables(prefix, environment, set).unwrap_or_else(|wrong| refuse(who, &wrong))
}

/// Reads the variables that begin with the prefix.
///
/// # Errors
///
/// The wrong variable, and its fault.
pub fn from_variables<T: Default>(
    prefix: &str,
    variables: impl Iterator<Item = (String, String)>,
    set: impl Fn(&mut T, &str, &str) -> Result<(), String>,
) -> Result<T, String> {
    let mut settings = T::default();
    for (name, value) in variables {
        let short = name.strip_prefix(prefix).unwrap_or(&name);
        set(&mut settings, short, value.trim()).map_err(|wrong| format!("{name}={value}: {wrong}"))?;
    }
    Ok(settings)
}

/// Ends the process without its exit handlers, which would call back into the library.
#[allow(unsafe_code)]
fn refuse(who: &str, wrong: &str) -> ! {
    // The status remains if standard error is closed.
    let _ = writeln!(std::io::stderr(), "{who}: {wrong}");
    // SAFETY: the call takes a number and does not return.
    unsafe { libc::_exit(2) }
}

/// Returns the error for a name that `set` does not know.
///
/// # Errors
///
/// Always.
pub fn unknown(prefix: &str, names: &str) -> Result<(), String> {
    Err(format!("there is no such setting; there are {prefix}...: {names}"))
}

/// Splits a value at commas.
pub fn items(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// Parses a number with its bounds.
///
/// # Errors
///
/// What the value must be.
pub fn number<T: FromStr + PartialOrd + Display>(value: &str, least: T, most: T) -> Result<T, String> {
    let number = value.parse().ok().filter(|number| least <= *number && *number <= most);
    number.ok_or_else(|| format!("it must be a number from {least} to {most}"))
}

/// Parses 0 or 1.
///
/// # Errors
///
/// What the value must be.
pub fn switch(value: &str) -> Result<bool, String> {
    either(value, "1", "0").map_err(|_| "it must be 0 or 1".to_owned())
}

/// Parses one of two words, of which the first means true.
///
/// # Errors
///
/// What the value must be.
pub fn either(value: &str, yes: &str, no: &str) -> Result<bool, String> {
    match value {
        value if value == yes => Ok(true),
        value if value == no => Ok(false),
        _ => Err(format!("it must be {yes} or {no}")),
    }
}

/// Parses a number and its unit: `500us`.
fn with_unit(value: &str) -> Option<(u64, &str)> {
    let (count, unit) = value.split_at(value.find(|sign: char| !sign.is_ascii_digit())?);
    Some((count.parse().ok()?, unit))
}

/// Parses a time: `500us`.
///
/// # Errors
///
/// What the value must be.
pub fn time(value: &str) -> Result<Duration, String> {
    let parsed = with_unit(value).and_then(|(count, unit)| match unit {
        "ns" => Some(Duration::from_nanos(count)),
        "us" => Some(Duration::from_micros(count)),
        "ms" => Some(Duration::from_millis(count)),
        "s" => Some(Duration::from_secs(count)),
        _ => None,
    });
    parsed.ok_or_else(|| format!("{value:?} must be a time with ns, us, ms or s, such as 500us"))
}

/// Calls of a function, counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Times {
    /// One call.
    Once(u64),
    /// That call and all later ones.
    From(u64),
}

impl Times {
    /// Parses `3`, the third call, or `3+`, the third and all later ones.
    #[must_use]
    pub fn parse(value: &str) -> Option<Self> {
        let (digits, open) = value.strip_suffix('+').map_or((value, false), |digits| (digits, true));
        let first = digits.parse().ok().filter(|first| *first > 0)?;
        Some(if open { Self::From(first) } else { Self::Once(first) })
    }

    /// Returns whether it includes the call with this number.
    #[must_use]
    pub const fn contains(self, number: u64) -> bool {
        match self {
            Self::Once(at) => number == at,
            Self::From(first) => number >= first,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_one_or_from_one_on() {
        let third = Times::parse("3").unwrap();
        assert!(third.contains(3) && !third.contains(2) && !third.contains(4));
        let from = Times::parse("3+").unwrap();
        assert!(from.contains(3) && !from.contains(2) && from.contains(4));
        assert!(["0", "0+", "", "+", "-1", "x"].iter().all(|wrong| Times::parse(wrong).is_none()));
    }

    #[test]
    fn values_have_one_form() {
        assert_eq!(with_unit("500us"), Some((500, "us")));
        assert!(["500", "us", "", "-5s"].iter().all(|wrong| with_unit(wrong).is_none()));
        assert_eq!((number("8", 0, 8), number::<usize>("9", 0, 8).is_err()), (Ok(8), true));
        assert_eq!((switch("1"), switch("0"), switch("yes").is_err()), (Ok(true), Ok(false), true));
        assert_eq!(items(" a, ,b,").collect::<Vec<_>>(), ["a", "b"]);
    }
}
