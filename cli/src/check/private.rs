//! Removes private data from a report: the names of the user and the machine, home and working folders, hardware addresses,
//! serial numbers and UUIDs.

use serde_json::Value;
use std::path::{Path, PathBuf};

/// The members whose text is this program's own. A user's name could be one of these words, such as `host`.
const CONSTANT: &[&str] = &[
    "backend",
    "command",
    "effect",
    "evidence",
    "features",
    "feature",
    "filter",
    "found_by",
    "gpu_vmm",
    "handling",
    "how",
    "id",
    "layer",
    "pattern_by",
    "quirk",
    "quirks",
    "ran_on",
    "rule",
    "target",
    "time",
    "unit",
    "verdict",
    "verified_by",
    "what",
];

/// Names that identify neither a user nor a machine, and that occur in ordinary text.
const COMMON: &[&str] = &[
    "admin",
    "amd",
    "amdgpu",
    "build",
    "cuda",
    "debian",
    "device",
    "driver",
    "fedora",
    "gpu",
    "hip",
    "host",
    "kernel",
    "linux",
    "localhost",
    "memory",
    "nvidia",
    "rocm",
    "root",
    "test",
    "ubuntu",
    "user",
];

/// The texts to remove.
#[derive(Default, Debug)]
pub(super) struct Private {
    /// Folders and their replacements, longer ones first.
    folders: Vec<(String, &'static str)>,
    /// Names, longer ones first.
    names: Vec<(String, &'static str)>,
}

/// The groups of digits of a hardware address, and of a UUID.
const MAC: (&[usize], &[u8]) = (&[2; 6], b":-");
const UUID: (&[usize], &[u8]) = (&[8, 4, 4, 4, 12], b"-");

impl Private {
    /// Finds the private data of this process.
    pub(super) fn of_this_process() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let mut private = Self::default();
        let account = account(&read("/etc/passwd"), rustix::process::getuid().as_raw());
        let (user, home) = account.unwrap_or_default();
        private.folder(&variable("HOME"), "~");
        private.folder(&home, "~");
        for folder in [std::env::current_dir().ok(), folder_of_program()].into_iter().flatten() {
            private.folder(&folder.to_string_lossy(), "<folder>");
        }
        for user in [variable("USER"), variable("LOGNAME"), user] {
            private.name(&user, "<user>");
        }
        for host in [read("/proc/sys/kernel/hostname"), read("/etc/hostname"), variable("HOSTNAME")] {
            private.name(&host, "<host>");
            private.name(host.split('.').next().unwrap_or_default(), "<host>");
        }
        private.name(&read("/etc/machine-id"), "<machine>");
        private
    }

    fn folder(&mut self, folder: &str, shown: &'static str) {
        let mut forms = vec![folder.to_owned()];
        forms.extend(std::fs::canonicalize(folder).map(|path| path.to_string_lossy().into_owned()));
        for form in forms {
            let form = form.trim_end_matches('/');
            if form.len() > 1 && !self.folders.iter().any(|(known, _)| known == form) {
                self.folders.push((form.to_owned(), shown));
            }
        }
        self.folders.sort_by_key(|(folder, _)| std::cmp::Reverse(folder.len()));
    }

    fn name(&mut self, name: &str, shown: &'static str) {
        let is_common = COMMON.iter().any(|word| word.eq_ignore_ascii_case(name));
        if name.len() > 1 && !is_common && !self.names.iter().any(|(known, _)| known == name) {
            self.names.push((name.to_owned(), shown));
        }
        self.names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    }

    /// Removes private data from every text of a value that is not this program's own.
    pub(super) fn remove_from(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.removed(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.remove_from(value)),
            Value::Object(members) => {
                let own = |name: &str| CONSTANT.contains(&name);
                members
                    .iter_mut()
                    .filter(|(name, _)| !own(name))
                    .for_each(|(_, value)| self.remove_from(value));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Returns a text without private data.
    pub(super) fn removed(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (folder, shown) in &self.folders {
            text = replaced(&text, folder, shown, |next| next.is_ascii_alphanumeric() || next == b'-');
        }
        text = homes(&text);
        for (name, shown) in &self.names {
            text = words(&text, name, shown);
        }
        text = groups(&text, UUID, "<uuid>");
        text = groups(&text, MAC, "<mac>");
        serials(&text)
    }
}

fn folder_of_program() -> Option<PathBuf> {
    std::env::current_exe().ok()?.parent().map(Path::to_owned)
}

/// Returns the name and the home of a user.
fn account(accounts: &str, user: u32) -> Option<(String, String)> {
    let fields = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found = fields.into_iter().find(|fields| fields.get(2) == Some(&user.to_string().as_str()))?;
    Some(((*found.first()?).to_owned(), (*found.get(5)?).to_owned()))
}

/// Replaces a text unless a byte after it continues it.
fn replaced(text: &str, from: &str, to: &str, continues: impl Fn(u8) -> bool) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(from) {
        let (before, after) = (&rest[..at], &rest[at + from.len()..]);
        result.push_str(before);
        let is_longer = after.bytes().next().is_some_and(&continues);
        result.push_str(if is_longer { from } else { to });
        rest = after;
    }
    result.push_str(rest);
    result
}

/// Replaces the homes of other users.
fn homes(text: &str) -> String {
    let mut text = text.to_owned();
    for root in ["/home/", "/Users/"] {
        let mut result = String::new();
        let mut rest = text.as_str();
        while let Some(at) = rest.find(root) {
            let name = &rest[at + root.len()..];
            let end = name.find(|char: char| "/ \t\"':;,)]".contains(char)).unwrap_or(name.len());
            result.push_str(&rest[..at]);
            result.push('~');
            rest = &name[end..];
        }
        result.push_str(rest);
        text = result;
    }
    text
}

/// Replaces a word, in upper or lower case.
fn words(text: &str, word: &str, to: &str) -> String {
    let (lower, word) = (text.to_ascii_lowercase(), word.to_ascii_lowercase());
    let is_part = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let mut result = String::new();
    let mut from = 0;
    for (at, _) in lower.match_indices(&word) {
        let end = at + word.len();
        let is_word = !is_part(at.checked_sub(1).and_then(|before| lower.as_bytes().get(before)))
            && !is_part(lower.as_bytes().get(end));
        if is_word {
            result.push_str(&text[from..at]);
            result.push_str(to);
            from = end;
        }
    }
    result.push_str(&text[from..]);
    result
}

/// Replaces groups of hexadecimal digits between separators.
fn groups(text: &str, (lengths, separators): (&[usize], &[u8]), to: &str) -> String {
    let bytes = text.as_bytes();
    let total: usize = lengths.iter().sum::<usize>() + lengths.len() - 1;
    let is_here = |at: usize| {
        let mut place = at;
        for (index, length) in lengths.iter().enumerate() {
            if index > 0 {
                let separator = bytes.get(place);
                if !separator.is_some_and(|byte| separators.contains(byte) && *byte == bytes[at + lengths[0]])
                {
                    return false;
                }
                place += 1;
            }
            let digits = bytes.get(place..place + length);
            if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                return false;
            }
            place += length;
        }
        let is_digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        !is_digit(bytes.get(place)) && !is_digit(at.checked_sub(1).and_then(|before| bytes.get(before)))
    };
    let mut result = String::new();
    let (mut from, mut at) = (0, 0);
    while at + total <= bytes.len() {
        if is_here(at) {
            result.push_str(&text[from..at]);
            result.push_str(to);
            from = at + total;
            at = from;
        } else {
            at += 1;
        }
    }
    result.push_str(&text[from..]);
    result
}

/// Replaces each word with a digit after `serial` or `unique_id`.
fn serials(text: &str) -> String {
    const LABELS: &[&str] =
        &["serial number", "serial_number", "serialnumber", "serial no", "serial", "unique_id", "unique id"];
    let lower = text.to_ascii_lowercase();
    let mut result = String::new();
    let (mut from, mut at) = (0, 0);
    // The next label in the text, and of those that begin there the longest.
    let next = |at: usize| {
        let begins = LABELS.iter().filter_map(|label| Some((at + lower[at..].find(label)?, label.len())));
        begins.min_by_key(|(begin, length)| (*begin, std::cmp::Reverse(*length)))
    };
    while let Some((begin, length)) = next(at) {
        at = begin + length;
        let gap = lower[at..].find(|char: char| char.is_ascii_alphanumeric()).unwrap_or(0);
        let between = &lower[at..at + gap];
        if gap == 0 || !between.chars().all(|char| " \t:=#.\"'".contains(char)) {
            continue;
        }
        let number = &lower[at + gap..];
        let end =
            number.find(|char: char| !char.is_ascii_alphanumeric() && char != '-').unwrap_or(number.len());
        if !number[..end].bytes().any(|byte| byte.is_ascii_digit()) {
            continue;
        }
        result.push_str(&text[from..at + gap]);
        result.push_str("<serial>");
        at += gap + end;
        from = at;
    }
    result.push_str(&text[from..]);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn planted() -> Private {
        let mut private = Private::default();
        private.folder("/srv/people/erika", "~");
        private.folder("/srv/people/erika/secret project", "<folder>");
        private.name("erika", "<user>");
        private.name("box17.lab.example", "<host>");
        private.name("box17", "<host>");
        private
    }

    #[test]
    fn what_was_planted_is_gone() {
        let private = planted();
        for (text, expected) in [
            ("in /srv/people/erika/a.so", "in ~/a.so"),
            ("/srv/people/erika/secret project/x: no", "<folder>/x: no"),
            ("/srv/people/erikas/x", "/srv/people/erikas/x"),
            ("/home/max/lib, /Users/moritz", "~/lib, ~"),
            ("Erika@BOX17: box17.lab.example, box178", "<user>@<host>: <host>, box178"),
            ("link 3c:ec:ef:01:AB:7f up, 3c-ec-ef-01-ab-7f", "link <mac> up, <mac>"),
            ("amdgpu 0000:03:00.0: ring at 00:11:22:33:44", "amdgpu 0000:03:00.0: ring at 00:11:22:33:44"),
            ("GPU-8f3c1f0e-0a1b-2c3d-4e5f-001122334455.", "GPU-<uuid>."),
            ("amdgpu: Serial Number: PCB0123-99, ok", "amdgpu: Serial Number: <serial>, ok"),
            ("unique_id=0x9a8b7c", "unique_id=<serial>"),
            ("serial console enabled", "serial console enabled"),
            ("größe: erika", "größe: <user>"),
            ("erika_ and erika2, 2erika", "<user>_ and erika2, 2erika"),
            ("serialnumber: 7a, serial no. 8b", "serialnumber: <serial>, serial no. <serial>"),
            ("Serial: 1, Serial: 2, unique_id 0x3", "Serial: <serial>, Serial: <serial>, unique_id <serial>"),
            ("serial #9", "serial #<serial>"),
            ("board_serial_number=5a", "board_serial_number=<serial>"),
            ("unique id: 0xab-1 end", "unique id: <serial> end"),
            ("serial number: unknown", "serial number: unknown"),
            ("serial number, then 7", "serial number, then 7"),
            ("3c:ec-ef:01:ab:7f", "3c:ec-ef:01:ab:7f"),
            ("x3c:ec:ef:01:ab:7f 3c:ec:ef:01:ab:7f0", "x3c:ec:ef:01:ab:7f 3c:ec:ef:01:ab:7f0"),
            ("8f3c1f0e-0a1b-2c3d-4e5f-00112233445g", "8f3c1f0e-0a1b-2c3d-4e5f-00112233445g"),
            ("'/home/max' \"/home/max\" (/home/max) [/home/max]", "'~' \"~\" (~) [~]"),
        ] {
            assert_eq!(private.removed(text), expected);
        }
    }

    #[test]
    fn common_names_are_not_removed() {
        let mut private = planted();
        private.name("host", "<host>");
        private.name("grow", "<user>");
        let mut value =
            json!({"target": "grow", "note": ["grow of erika", 1], "device": {"name": "host grow"}});
        private.remove_from(&mut value);
        let expected =
            json!({"target": "grow", "note": ["<user> of <user>", 1], "device": {"name": "host <user>"}});
        assert_eq!(value, expected);
    }

    #[test]
    fn common_private_words_are_not_removed() {
        let mut private = Private::default();
        for folder in ["", "/", "//", "x"] {
            private.folder(folder, "~");
        }
        for name in ["", "x", "ROOT", "localhost"] {
            private.name(name, "<user>");
        }
        assert_eq!(private.removed("/x of root on localhost"), "/x of root on localhost");
        // A home folder is one with and without a slash at its end, and the longest of several is removed first.
        private.folder("/srv/none/", "~");
        private.folder("/srv/none/work/", "<folder>");
        assert_eq!(private.removed("/srv/none /srv/none/work/a /srv/none-b"), "~ <folder>/a /srv/none-b");
        private.name("box", "<host>");
        private.name("box.lab", "<user>");
        private.name("box", "<user>");
        assert_eq!(private.removed("box.lab box"), "<user> <host>", "the first meaning of a name stays");
    }

    #[test]
    fn the_account_of_a_user_is_found() {
        let accounts =
            "root:x:0:0:root:/root:/bin/sh\nerika:x:1000:1000:Erika M,,,:/srv/people/erika:/bin/zsh\n";
        let found = account(accounts, 1000).unwrap();
        assert_eq!((found.0.as_str(), found.1.as_str()), ("erika", "/srv/people/erika"));
        assert_eq!(account(accounts, 7), None);
    }
}
