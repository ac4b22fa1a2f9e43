//! Versions of HIP as users name them: in full, or by their first numbers.

use crate::trouble::{Answer, Trouble};

/// Returns whether `wanted` is a version or its beginning: 7.2.4, 7.2 and 7 match 7.2.4.
pub(crate) fn is(version: &str, wanted: &str) -> bool {
    version.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns the newest of these that matches `wanted`, or the newest of all. If there is none, the error lists them.
pub(crate) fn newest<'a>(versions: impl Iterator<Item = &'a str>, wanted: Option<&str>) -> Answer<&'a str> {
    let mut versions: Vec<&str> = versions.collect();
    versions.sort_by_key(|version| numbers(version));
    versions.dedup();
    let newest = versions.iter().rfind(|version| wanted.is_none_or(|wanted| is(version, wanted)));
    newest.copied().ok_or_else(|| match wanted {
        Some(wanted) if !versions.is_empty() => {
            Trouble::new(format!("there is no HIP {wanted}; there are {}", versions.join(", ")))
        }
        _ => Trouble::new("there is no version of HIP that can be set up"),
    })
}

fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map_while(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_that_is_wanted() {
        let versions = ["7.2.4", "6.4.3", "7.14", "6.4.3"];
        for (wanted, expected) in [
            (None, "7.14"),
            (Some("7"), "7.14"),
            (Some("7.2"), "7.2.4"),
            (Some("7.2.4"), "7.2.4"),
            (Some("6"), "6.4.3"),
        ] {
            assert_eq!(newest(versions.into_iter(), wanted).unwrap(), expected, "{wanted:?}");
        }
        for wanted in ["7.1", "", "8", "7.2.4.1", "6.", "six"] {
            let text = newest(versions.into_iter(), Some(wanted)).unwrap_err().to_string();
            assert_eq!(text, format!("there is no HIP {wanted}; there are 6.4.3, 7.2.4, 7.14"));
        }
    }
}
