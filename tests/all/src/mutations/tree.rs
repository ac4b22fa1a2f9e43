//! A copy of the workspace that has every change of the list behind a switch, so that one build serves all.

use super::list::{CHANGED, Change};
use crate::trouble::{Answer, Doing, Trouble};
use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes `copy` the same as the workspace, with the changes. Leaves unchanged files alone, so that Cargo rebuilds no more
/// than necessary.
pub(crate) fn plant(workspace: &Path, copy: &Path, changes: &[Change]) -> Answer {
    let mut kept = HashSet::new();
    for file in files(workspace)? {
        let from = workspace.join(&file);
        let shown = || from.display().to_string();
        let mut bytes = match fs::read(&from) {
            // Deleted, but still in Git's index.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            bytes => bytes.doing(shown)?,
        };
        let here: Vec<&Change> = changes.iter().filter(|change| Path::new(&change.file) == file).collect();
        if !here.is_empty() {
            bytes = with_switches(&String::from_utf8(bytes).doing(shown)?, &here)?.into_bytes();
        }
        let to = copy.join(&file);
        if fs::read(&to).ok().as_ref() != Some(&bytes) {
            let folder = to.parent().unwrap_or(copy);
            fs::create_dir_all(folder).doing(|| folder.display().to_string())?;
            fs::write(&to, bytes).doing(|| to.display().to_string())?;
        }
        kept.insert(to);
    }
    if let Some(lost) = changes.iter().find(|change| !kept.contains(&copy.join(&change.file))) {
        return Err(Trouble::new(format!("{}: there is no file {}", lost.name, lost.file)));
    }
    remove_others(copy, &kept)
}

/// Returns the workspace's files: those that Git tracks, and those that it does not ignore.
fn files(workspace: &Path) -> Answer<Vec<PathBuf>> {
    let mut git = Command::new("git");
    git.current_dir(workspace).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let answer = git.output().doing(|| "git, which lists the workspace's files".to_owned())?;
    if !answer.status.success() {
        return Err(Trouble::new(format!("git ls-files: {}", String::from_utf8_lossy(&answer.stderr))));
    }
    let names = String::from_utf8(answer.stdout).doing(|| "git ls-files".to_owned())?;
    Ok(names.split_terminator('\0').map(PathBuf::from).collect())
}

fn remove_others(folder: &Path, kept: &HashSet<PathBuf>) -> Answer {
    for entry in fs::read_dir(folder).doing(|| folder.display().to_string())? {
        let path = entry.doing(|| folder.display().to_string())?.path();
        if path.is_dir() {
            remove_others(&path, kept)?;
        } else if !kept.contains(&path) {
            fs::remove_file(&path).doing(|| path.display().to_string())?;
        }
    }
    Ok(())
}

/// Returns a file with each change as a branch of an `if`.
pub(crate) fn with_switches(source: &str, changes: &[&Change]) -> Answer<String> {
    let mut places = Vec::new();
    for change in changes {
        let wrong =
            |why: &str| Err(Trouble::new(format!("{}: its text in {} {why}", change.name, change.file)));
        let mut found = source.match_indices(change.text.as_str());
        match (found.next(), found.next()) {
            _ if change.text.trim() == change.becomes.trim() => return wrong("does not change"),
            (Some((start, _)), None) => places.push((start, start + change.text.len(), change)),
            (None, _) => return wrong("is missing"),
            (Some(_), Some(_)) => return wrong("occurs more than once"),
        }
    }
    places.sort_by_key(|(start, ..)| *start);
    let mut switched = String::new();
    let mut done = 0;
    for (start, end, change) in places {
        let Some(before) = source.get(done..start) else {
            return Err(Trouble::new(format!("{}: its text overlaps another change's", change.name)));
        };
        switched += before;
        switched += &switch(change);
        done = end;
    }
    Ok(switched + &source[done..])
}

fn switch(Change { name, text, becomes, .. }: &Change) -> String {
    let is_on = format!(
        "{{ static ON: std::sync::LazyLock<bool> = \
         std::sync::LazyLock::new(|| std::env::var({CHANGED:?}).as_deref() == Ok({name:?})); *ON }}"
    );
    format!("(if {is_on} {{ {becomes} }} else {{ {text} }})")
}

#[cfg(test)]
mod tests {
    use super::super::list::List;
    use super::*;

    /// Checks that each text occurs once where the list says, and changes.
    #[test]
    fn the_list_fits_the_sources() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let list = List::read(&workspace).unwrap();
        // An empty folder would fit any sources, and a long list slows every change.
        assert!((100..=300).contains(&list.mutations().count()));
        let files: HashSet<&str> = list.change.iter().map(|change| change.file.as_str()).collect();
        for file in files {
            let source = fs::read_to_string(workspace.join(file)).unwrap();
            let here: Vec<&Change> = list.change.iter().filter(|change| change.file == file).collect();
            with_switches(&source, &here).unwrap();
        }
    }

    /// Checks that each text and its replacement are whole expressions, and not parts of a statement or of a chain of calls.
    #[test]
    fn mutated_sources_parse() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let list = List::read(&workspace).unwrap();
        let files: HashSet<&str> = list.change.iter().map(|change| change.file.as_str()).collect();
        let parses = |source: &str, changes: &[&Change]| {
            syn::parse_file(&with_switches(source, changes).unwrap()).is_ok()
        };
        let mut wrong: Vec<&str> = Vec::new();
        for file in files {
            let source = fs::read_to_string(workspace.join(file)).unwrap();
            let here: Vec<&Change> = list.change.iter().filter(|change| change.file == file).collect();
            if !parses(&source, &here) {
                let alone = here.into_iter().filter(|change| !parses(&source, &[change]));
                wrong.extend(alone.map(|change| change.name.as_str()));
            }
        }
        assert!(wrong.is_empty(), "do not parse: {wrong:?}");
    }

    fn change(name: &str, text: &str) -> Change {
        let entry = format!(
            "name = '{name}'\nwrong = ''\nby = ''\nfile = 'lib.rs'\ntext = '{text}'\nbecomes = 'None'"
        );
        basic_toml::from_str(&entry).unwrap()
    }

    #[test]
    fn a_change_is_a_branch() {
        let (first, second) = (change("first", "b + c"), change("second", "d"));
        let switched = with_switches("a(b + c, d)", &[&second, &first]).unwrap();
        let parts: Vec<&str> = switched.split(" else ").collect();
        assert!(parts[0].starts_with("a((if { static ON"), "{switched}");
        assert!(parts[0].contains("Ok(\"first\")") && parts[0].ends_with("{ None }"), "{switched}");
        assert!(
            parts[1].starts_with("{ b + c }), (if ") && parts[1].contains("Ok(\"second\")"),
            "{switched}"
        );
        assert_eq!(parts[2], "{ d }))");
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let refused = |changes: &[&Change]| with_switches("a(b, b, None)", changes).unwrap_err().to_string();
        assert_eq!(refused(&[&change("x", "c")]), "x: its text in lib.rs is missing");
        assert_eq!(refused(&[&change("x", "b")]), "x: its text in lib.rs occurs more than once");
        assert_eq!(refused(&[&change("x", "None")]), "x: its text in lib.rs does not change");
        let overlapping = refused(&[&change("x", "b, N"), &change("y", "a(b, b, N")]);
        assert_eq!(overlapping, "x: its text overlaps another change's");
    }
}
