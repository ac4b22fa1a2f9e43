//! The repository's texts: phrases that it no longer uses, and links that lead nowhere.
//!
//! CONTRIBUTING.md says how texts are written here. Spelling is checked by `typos`, in CI.
#![allow(clippy::expect_used)] // a test program may panic

mod tree;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// The phrases, in lowercase, and what to write instead. `$` at the end of a word stands for any ending.
const RETIRED: &[(&str, &str)] = &[
    ("nobody", "no caller, no device, no other process"),
    ("somebody", "another process, another thread, the caller"),
    ("whoever", "callers that"),
    ("so many", "the number of, up to N"),
    ("so much", "the size of, up to N bytes"),
    ("vouch$", "guarantee, require"),
    ("is believed", "is trusted"),
    ("sees to it", "ensures"),
    ("see to it", "ensure"),
    ("stand-in$", "fake driver, simulator"),
    ("planted fault$", "mutation"),
    ("stray access$", "invalid access"),
    ("middle half", "interquartile range"),
    ("is to be", "must be"),
    ("are to be", "must be"),
    ("has to be", "must be"),
    ("have to be", "must be"),
    ("comes to lie", "is mapped"),
    ("drawer$", "bin"),
    ("stash$", "backing store"),
    ("is told", "is notified, receives, reports"),
    ("be told", "be notified, receive, report"),
    ("seam$", "border of two reservations"),
    ("foreseen", "premapped"),
    ("workbench$", "test kit"),
    ("tally$", "statistics"),
    // Names of types that other names replaced.
    ("aheadthread", "PremapThread"),
    ("bytag", "the pool's tags"),
    ("crossesseam", "CrossesReservation"),
    ("driverbroke", "DriverContractViolated"),
    ("foundby", "Evidence"),
    ("grownahead", "PremapGrowth"),
    ("letgo", "ReleaseOutcome"),
    ("outofuse", "Poisoned"),
    ("setid", "BankId"),
    ("sharedregion", "TensorRegion, Arc<Mutex<Region>>"),
    ("stashkind", "BackingKind"),
    ("toomanyaddresses", "AddressSpaceExhausted"),
    ("undofailed", "RollbackFailed"),
];

/// Files with texts, by the ends of their names.
const TEXTS: &[&str] = &[".c", ".cpp", ".h", ".md", ".py", ".pyi", ".rs", ".toml", ".yml", "justfile"];

/// All files of the repository with texts.
fn texts() -> Vec<PathBuf> {
    // Links are compared by their canonical paths.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().expect("the repository can be read");
    let files = tree::files(&root, TEXTS);
    assert!(files.len() > 500, "only {} files with texts were found", files.len());
    files
}

/// The words of a text in lowercase, each with the number of its line. Signs of comments and punctuation are no words.
fn words(text: &str) -> Vec<(String, usize)> {
    let of_line = |(number, line): (usize, &str)| {
        let words = line.split(|letter: char| !letter.is_alphanumeric() && !"-_'".contains(letter));
        let words = words.filter(|word| !word.trim_matches('-').is_empty());
        words.map(|word| (word.to_lowercase(), number + 1)).collect::<Vec<_>>()
    };
    text.lines().enumerate().flat_map(of_line).collect()
}

/// The lines in which a phrase begins.
fn find(words: &[(String, usize)], phrase: &str) -> Vec<usize> {
    let phrase: Vec<_> = phrase.split(' ').collect();
    let same = |(word, part): (&(String, usize), &&str)| match part.strip_suffix('$') {
        Some(start) => word.0.starts_with(start),
        None => word.0 == *part,
    };
    let places = words.windows(phrase.len());
    places.filter(|place| place.iter().zip(&phrase).all(same)).map(|place| place[0].1).collect()
}

#[test]
fn retired_phrases_are_gone() {
    let mut seen = Vec::new();
    for file in texts() {
        // The page of reports has the texts of recorded runs.
        if ["tests/prose.rs", "docs/conformance/README.md"].iter().any(|one| file.ends_with(one)) {
            continue;
        }
        let text = fs::read_to_string(&file).expect("texts are UTF-8");
        let words = words(&text);
        for (phrase, better) in RETIRED {
            for line in find(&words, phrase) {
                let phrase = phrase.trim_end_matches('$');
                seen.push(format!("{}:{line}: \"{phrase}\": write \"{better}\"", file.display()));
            }
        }
    }
    assert!(seen.is_empty(), "{} retired phrases:\n{}", seen.len(), seen.join("\n"));
}

#[test]
fn a_phrase_is_found_across_lines_and_in_any_case() {
    let words = words("/// Nobody\n/// has so\n/// many `stand-ins`, is_to be vouched-for");
    assert_eq!(find(&words, "nobody"), [1]);
    assert_eq!(find(&words, "so many"), [2]);
    assert_eq!(find(&words, "stand-in$"), [3]);
    assert_eq!(find(&words, "vouch$"), [3]);
    assert!(find(&words, "is to be").is_empty());
}

/// The text of a page without its blocks of code.
fn without_code(page: &str) -> String {
    let mut inside = false;
    let is_text = |line: &&str| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    };
    page.lines().filter(is_text).collect::<Vec<_>>().join("\n")
}

/// What the links and pictures of a page lead to.
fn links(page: &str) -> Vec<String> {
    let text = without_code(page);
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
    let named =
        text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: ")).map(|(_, link)| link);
    inline.chain(named).map(|link| link.trim().to_owned()).collect()
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(page: &str) -> Vec<String> {
    let text = without_code(page);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let plain = headings.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    plain
        .map(|heading| {
            let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || "- _".contains(*letter));
            kept.collect::<String>().replace(' ', "-")
        })
        .collect()
}

#[test]
fn links_lead_to_files_and_headings() {
    let pages: HashMap<_, _> = texts()
        .into_iter()
        .filter(|file| file.extension() == Some(OsStr::new("md")))
        .map(|file| (file.clone(), fs::read_to_string(file).expect("pages are UTF-8")))
        .collect();
    let (mut seen, mut wrong) = (0, Vec::new());
    for (file, page) in &pages {
        for link in links(page) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            seen += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let folder = file.parent().expect("a page is in a folder");
            let target = if path.is_empty() { Ok(file.clone()) } else { folder.join(path).canonicalize() };
            let Ok(target) = target else {
                wrong.push(format!("{}: no file {path}", file.display()));
                continue;
            };
            let heading =
                pages.get(&target).is_none_or(|page| anchors(page).iter().any(|known| known == anchor));
            if !anchor.is_empty() && !heading {
                wrong.push(format!("{}: no heading #{anchor} in {}", file.display(), target.display()));
            }
            // A page of the guide is shown without the rest of the repository.
            if folder.ends_with("docs/guide") && !target.starts_with(folder) {
                wrong.push(format!("{}: {link} is outside of the guide", file.display()));
            }
        }
    }
    assert!(seen >= 30, "only {seen} links were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
