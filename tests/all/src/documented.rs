//! The C programs in the guide and in the README of `plugins/c`: every block compiles as C11 and as C++17 without warnings, and
//! every block with a `main` runs on host memory. So does every program of C++ in the guide's page, but for those that are examples.

use crate::cargo;
use crate::compiler::compile;
use crate::layout::Layout;
use crate::trouble::{Answer, Doing, Trouble};
use std::fs;
use std::path::{Path, PathBuf};

/// The pages that must have blocks of C. Other pages of the guide may have some.
const REQUIRED: [&str; 2] = ["docs/guide/c.md", "plugins/c/README.md"];

/// Compiles every block and returns the names and paths of the programs. An error names the block that does not compile.
pub(crate) fn programs(layout: &Layout, library: &Path) -> Answer<Vec<(String, PathBuf)>> {
    let workspace = cargo::workspace()?;
    let include = workspace.join("plugins/c/include");
    let folder = layout.logs().join("documented");
    fs::create_dir_all(&folder).doing(|| folder.display().to_string())?;
    let mut made = Vec::new();
    for page in pages(&workspace)? {
        let text = fs::read_to_string(workspace.join(&page)).doing(|| page.clone())?;
        let blocks = blocks(&text, "c");
        if blocks.is_empty() && REQUIRED.contains(&page.as_str()) {
            return Err(Trouble::new(format!("{page} has no block of C")));
        }
        for (number, block) in blocks.iter().enumerate() {
            let name = format!("{page}, block {}", number + 1);
            let source = folder.join(format!("{}-{}.c", page.replace(['/', '.'], "-"), number + 1));
            fs::write(&source, block).doing(|| source.display().to_string())?;
            let object = source.with_extension("o");
            compile(&name, "c++", &["-std=c++17", "-x", "c++", "-c"], &include, &object, &[&source])?;
            if block.contains("int main(") {
                let program = source.with_extension("");
                compile(&name, "cc", &["-std=c11"], &include, &program, &[&source, library])?;
                made.push((name, program));
            } else {
                compile(&name, "cc", &["-std=c11", "-c"], &include, &object, &[&source])?;
            }
        }
    }
    Ok(made)
}

/// The guide's page on C++, and its section with examples, which are files as well.
const CPP: &str = "docs/guide/cpp.md";
const EXAMPLES: &str = "\n## Side by side\n";

/// Compiles every program of C++ in the guide and returns their names and paths.
pub(crate) fn cpp_programs(layout: &Layout, library: &Path) -> Answer<Vec<(String, PathBuf)>> {
    let workspace = cargo::workspace()?;
    let include = workspace.join("plugins/c/include");
    let folder = layout.logs().join("documented");
    fs::create_dir_all(&folder).doing(|| folder.display().to_string())?;
    let page = fs::read_to_string(workspace.join(CPP)).doing(|| CPP.to_owned())?;
    let text = page.split(EXAMPLES).next().unwrap_or_default();
    let blocks = blocks(text, "cpp").into_iter().filter(|block| block.contains("int main("));
    let mut made = Vec::new();
    for (number, block) in blocks.enumerate() {
        let name = format!("{CPP}, program {}", number + 1);
        let source = folder.join(format!("guide-{}.cpp", number + 1));
        fs::write(&source, block).doing(|| source.display().to_string())?;
        let program = source.with_extension("");
        compile(&name, "c++", &["-std=c++17"], &include, &program, &[&source, library])?;
        made.push((name, program));
    }
    if made.is_empty() {
        return Err(Trouble::new(format!("{CPP} has no program of C++")));
    }
    Ok(made)
}

/// The pages of the guide, and the README of `plugins/c`, below the workspace.
fn pages(workspace: &Path) -> Answer<Vec<String>> {
    let mut pages: Vec<_> = REQUIRED.map(str::to_owned).into();
    let guide = workspace.join("docs/guide");
    for entry in fs::read_dir(&guide).doing(|| guide.display().to_string())? {
        let name = entry.doing(|| guide.display().to_string())?.file_name();
        let page = format!("docs/guide/{}", name.to_string_lossy());
        if page.ends_with(".md") && !pages.contains(&page) {
            pages.push(page);
        }
    }
    Ok(pages)
}

/// The blocks of a language, between a line such as "```c" and a line "```".
fn blocks(text: &str, language: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while lines.any(|line| line.strip_prefix("```") == Some(language)) {
        let block = lines.by_ref().take_while(|line| *line != "```");
        found.push(block.flat_map(|line| [line, "\n"]).collect());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::blocks;

    #[test]
    fn only_blocks_of_one_language_are_found() {
        let text = "a\n```c\none\n\ntwo\n```\n```cpp\nno\n```\n```sh\nno\n```\n```c\nthree\n```\n";
        assert_eq!(blocks(text, "c"), ["one\n\ntwo\n", "three\n"]);
        assert_eq!(blocks(text, "cpp"), ["no\n"]);
        assert!(blocks("no block\n```rust\n```\n", "c").is_empty());
    }
}
