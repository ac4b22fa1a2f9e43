//! The repository's texts: phrases that it no longer uses, also inside identifiers, and links that lead nowhere.
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
    ("toomanyaddresses", "ExceedsAddressSpace"),
    ("undofailed", "RollbackFailed"),
];

/// Names that say nothing without their context. No type, function or module of the sources is declared with one of them alone.
const VAGUE: &[(&str, &str)] = &[
    ("Answer", "the result of which call, such as CliResult"),
    ("Asked", "a request of what"),
    ("By", "the method of what"),
    ("Doing", "a context of what"),
    ("Earlier", "an earlier what"),
    ("Found", "the result of which search"),
    ("Given", "what was handed over"),
    ("OutOf", "the exhausted resource"),
    ("Piece", "a piece of what, such as BlockMemory"),
    ("Told", "what was reported"),
    ("Trouble", "an error of what"),
    ("Turn", "whose turn, or the order of what"),
    ("asked", "what was requested"),
    ("supply", "what is supplied"),
    ("told", "what was reported"),
];

/// Files with texts, by the ends of their names.
const TEXTS: &[&str] =
    &[".c", ".cpp", ".h", ".hpp", ".md", ".py", ".pyi", ".rs", ".toml", ".yml", "justfile"];

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

/// Files with code, by the ends of their names.
const CODE: &[&str] = &[".c", ".cpp", ".h", ".hpp", ".py", ".pyi", ".rs"];

/// The identifiers of a text, each with the number of its line.
fn identifiers(text: &str) -> impl Iterator<Item = (&str, usize)> {
    text.lines().enumerate().flat_map(|(number, line)| {
        let words = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        words.filter(|word| !word.is_empty()).map(move |word| (word, number + 1))
    })
}

/// The words in an identifier, in lowercase: `of_free` and `OfFree` have two.
fn parts(identifier: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut was_lowercase = false;
    for letter in identifier.chars() {
        if letter == '_' || (letter.is_uppercase() && was_lowercase) {
            parts.push(String::new());
        }
        was_lowercase = letter.is_lowercase();
        if let Some(part) = parts.last_mut()
            && letter != '_'
        {
            part.extend(letter.to_lowercase());
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// Files whose names end with `ends`, except this one.
fn files_with(ends: &[&str]) -> Vec<PathBuf> {
    let is_one = |file: &PathBuf| ends.iter().any(|end| file.to_string_lossy().ends_with(end));
    texts().into_iter().filter(|file| is_one(file) && !file.ends_with("tests/prose.rs")).collect()
}

/// True for files of tests and simulators.
fn is_test(file: &Path) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().expect("the repository can be read");
    let inside = file.strip_prefix(&root).expect("the file is in the repository");
    inside.components().any(|folder| folder.as_os_str() == "tests")
}

#[test]
fn identifiers_have_no_retired_words() {
    let mut seen = Vec::new();
    for file in files_with(CODE) {
        let text = fs::read_to_string(&file).expect("texts are UTF-8");
        for (identifier, line) in identifiers(&text) {
            let words: Vec<_> = parts(identifier).into_iter().map(|part| (part, line)).collect();
            // A single word was found as a word of the text. Names of tests may have phrases of several words.
            let counts = |phrase: &str| words.len() > 1 && (!phrase.contains(' ') || !is_test(&file));
            let retired =
                RETIRED.iter().find(|(phrase, _)| counts(phrase) && !find(&words, phrase).is_empty());
            if let Some((phrase, better)) = retired {
                seen.push(format!("{}:{line}: {identifier} has \"{phrase}\": {better}", file.display()));
            }
        }
    }
    assert!(seen.is_empty(), "{} identifiers with retired words:\n{}", seen.len(), seen.join("\n"));
}

#[test]
fn no_vague_name_is_declared() {
    const KEYWORDS: &[&str] = &["enum", "fn", "mod", "struct", "trait", "type"];
    let mut seen = Vec::new();
    for file in files_with(&[".rs"]).into_iter().filter(|file| !is_test(file)) {
        let text = fs::read_to_string(&file).expect("texts are UTF-8");
        for line in text.lines().map(|line| line.split("//").next().unwrap_or(line)) {
            let names: Vec<_> = identifiers(line).map(|(name, _)| name).collect();
            for pair in names.windows(2).filter(|pair| KEYWORDS.contains(&pair[0])) {
                if let Some((name, better)) = VAGUE.iter().find(|(name, _)| *name == pair[1]) {
                    seen.push(format!("{}: {} {name}: name {better}", file.display(), pair[0]));
                }
            }
        }
    }
    assert!(seen.is_empty(), "{} vague names:\n{}", seen.len(), seen.join("\n"));
}

#[test]
fn identifiers_are_split_into_words() {
    assert_eq!(parts("of_free"), ["of", "free"]);
    assert_eq!(parts("OfFree"), ["of", "free"]);
    assert_eq!(parts("HOST_ACCESS_UNTOLD"), ["host", "access", "untold"]);
    assert_eq!(parts("__all2__"), ["all2"]);
    assert_eq!(
        identifiers("let a_b =\n  CdEf::new(1);").collect::<Vec<_>>()[1..3],
        [("a_b", 1), ("CdEf", 2)]
    );
}

#[test]
fn phrase_is_found_across_lines() {
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
