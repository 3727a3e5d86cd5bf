//! Writes the man pages and the shell completions into a directory:
//! `cargo run --example manual -- DIRECTORY`.
#![allow(missing_docs, reason = "a tool of the build")]

use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::{Shell, generate_to};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args_os().nth(1).map(PathBuf::from).ok_or("usage: manual DIRECTORY")?;
    let mut command = tiebreak::cli::Cli::command();
    for (shell, folder) in [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")] {
        let folder = directory.join(folder);
        fs::create_dir_all(&folder)?;
        generate_to(shell, &mut command, "tiebreak", &folder)?;
    }
    let pages = directory.join("man");
    fs::create_dir_all(&pages)?;
    command.build();
    write_pages(&command, "tiebreak", &pages)?;
    Ok(())
}

/// One page for each command that is not hidden, and for those below it.
fn write_pages(command: &clap::Command, name: &str, pages: &Path) -> std::io::Result<()> {
    let page = command.clone().name(name.to_owned());
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text)?;
    fs::write(pages.join(format!("{name}.1")), text)?;
    for below in command.get_subcommands() {
        if !below.is_hide_set() && below.get_name() != "help" {
            write_pages(below, &format!("{name}-{}", below.get_name()), pages)?;
        }
    }
    Ok(())
}
