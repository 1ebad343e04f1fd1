//! `manual FOLDER` writes the manual pages and shell completions of all programs into a folder, in the layout of
//! `/usr/share`. Packaging runs it. It is a program of its own, so that the shipped programs do not contain the
//! generators.
#![forbid(unsafe_code)]

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate_to};
use clap_mangen::Man;

/// Bash finds completions by the program's name, zsh by the function's, fish by the file's.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions"),
    (Shell::Zsh, "zsh/vendor-completions"),
    (Shell::Fish, "fish/vendor_completions.d"),
];

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    let written = match (arguments.next(), arguments.next()) {
        (Some(folder), None) => write_all(Path::new(&folder)),
        _ => Err(io::Error::other("say one folder to write to")),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell_error(&error);
            ExitCode::FAILURE
        }
    }
}

fn write_all(folder: &Path) -> io::Result<()> {
    for (section, program) in programs() {
        write_completions(&program, folder)?;
        write_pages(program, section, folder)?;
    }
    Ok(())
}

/// The programs with a command line, with their section of the manual: 1 is for people, 8 for the system.
fn programs() -> [(&'static str, Command); 4] {
    [
        ("1", dpuctl::Arguments::command()),
        ("8", dpu_service::arguments::Arguments::command()),
        ("8", host_shim::agent::Arguments::command()),
        ("8", virtual_nic::arguments::Arguments::command()),
    ]
}

/// Writes a completion script for each shell.
fn write_completions(program: &Command, folder: &Path) -> io::Result<()> {
    for (shell, place) in COMPLETIONS {
        let place = made(folder.join(place))?;
        generate_to(shell, &mut program.clone(), program.get_name(), place)?;
    }
    Ok(())
}

/// Writes one page for the program and one for each of its commands.
fn write_pages(program: Command, section: &str, folder: &Path) -> io::Result<()> {
    let place = made(folder.join(format!("man/man{section}")))?;
    let mut program = program.disable_help_subcommand(true);
    // Expands command names to their full form, such as dpuctl-get-vfs.
    program.build();
    for command in with_commands(program) {
        Man::new(command).section(section).manual("dpu-offload").generate_to(&place)?;
    }
    Ok(())
}

fn with_commands(program: Command) -> Vec<Command> {
    let commands = program.get_subcommands().filter(|command| !command.is_hide_set());
    let mut all: Vec<_> = commands.cloned().flat_map(with_commands).collect();
    all.push(program);
    all
}

fn made(folder: PathBuf) -> io::Result<PathBuf> {
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

#[expect(clippy::print_stderr, reason = "the program's answer")]
fn tell_error(error: &io::Error) {
    eprintln!("manual: {error}");
}
