//! `gpu-vmm completions` and `gpu-vmm man`.

use crate::rig::{Folder, command, fails, stderr, stdout};

#[test]
fn completions_of_each_shell_name_the_subcommands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = command(&["completions", shell]).output().unwrap();
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{shell}");
        let text = stdout(&output);
        for name in ["conformance", "snapshot", "--backend"] {
            assert!(text.contains(name.trim_start_matches('-')), "{name} is not in {shell}'s:\n{text}");
        }
    }
    fails(&["completions", "cmd"], 2, "invalid value 'cmd'");
}

#[test]
fn each_subcommand_has_a_manual_page() {
    let page = stdout(&command(&["man"]).output().unwrap());
    assert!(page.contains(".SH SUBCOMMANDS") && page.contains("Exit status"), "{page}");
    let folder = Folder::new("manual");
    let status = command(&["man", "--folder"]).arg(folder.path()).status().unwrap();
    assert_eq!(status.code(), Some(0));
    let subcommands =
        ["bench", "check", "conformance", "grow", "info", "replay", "report", "serve", "snapshot"];
    let mut expected: Vec<String> = subcommands.iter().map(|name| format!("gpu-vmm-{name}.1")).collect();
    expected.push("gpu-vmm.1".to_owned());
    assert_eq!(folder.names(), expected);
    let grow = std::fs::read_to_string(folder.file("gpu-vmm-grow.1")).unwrap();
    assert!(grow.contains("\\-\\-reserve"), "{grow}");
    assert!(grow.contains(".SH SYNOPSIS\n\\fBgpu\\-vmm grow\\fR ["), "{grow}");
    fails(&["man", "--folder", "/nowhere"], 1, "/nowhere/gpu-vmm.1 cannot be written");
}
