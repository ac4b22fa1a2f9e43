//! The names of regions.

/// The limit of a region's name, in bytes.
pub(crate) const MAX_NAME: usize = 255;

/// Returns what is wrong with a name.
pub(crate) fn check(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(format!("a name has 1 to {MAX_NAME} bytes, and this one has {}", name.len()));
    }
    if let Some(control) = name.chars().find(|char| char.is_control()) {
        return Err(format!("a name has no control characters, and this one has {control:?}"));
    }
    if name.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(format!("the parts between the slashes of {name:?} must not be empty, `.` or `..`"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_like_relative_paths() {
        let long = "x".repeat(MAX_NAME);
        for good in ["a", "llama-70b/rank0/weights", "größe", "a b", long.as_str()] {
            check(good).unwrap();
        }
        let longer = "x".repeat(MAX_NAME + 1);
        for bad in ["", "/", "/a", "a/", "a//b", "..", "a/../b", "a/.", "a\nb", "\u{1b}[2J", longer.as_str()]
        {
            check(bad).unwrap_err();
        }
    }
}
