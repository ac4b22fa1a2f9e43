//! A command in shell syntax.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Formats the program and its arguments.
pub(crate) fn words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(quoted).collect::<Vec<_>>().join(" ")
}

/// Formats them with the variables that the command sets and removes.
pub(crate) fn line(command: &Command) -> String {
    let (mut removed, mut set) = (String::new(), String::new());
    for (name, value) in command.get_envs() {
        let name = name.to_string_lossy();
        match value {
            None => removed += &format!("-u {name} "),
            Some(value) => set += &format!("{name}={} ", quoted(value)),
        }
    }
    if removed.is_empty() && set.is_empty() {
        return words(command);
    }
    format!("env {removed}{set}{}", words(command))
}

/// Formats one word.
pub(crate) fn word(word: &Path) -> String {
    quoted(word.as_os_str())
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "%+,-./:=@_".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.into_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_what_was_meant() {
        let mut command = Command::new("printf");
        command.args(["%s|", "it's", "", "a b", "-u", "$HOME", "/plain:path"]);
        assert_eq!(
            words(&command),
            "printf %s| 'it'\\''s' '' 'a b' -u '$HOME' /plain:path".replace("%s|", "'%s|'")
        );
        command.env_remove("B").env("A", "1 2").env("C", "3");
        assert!(line(&command).starts_with("env -u B A='1 2' C=3 printf "), "{}", line(&command));
    }
}
