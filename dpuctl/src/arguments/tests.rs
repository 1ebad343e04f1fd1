use clap::{Command, CommandFactory};

use super::*;

fn parse(line: &str) -> Result<Arguments, String> {
    Arguments::try_parse_from(line.split(' ')).map_err(|error| error.to_string())
}

#[test]
fn command_line_definition_is_valid() {
    Arguments::command().debug_assert();
}

/// A usage error for an unknown kind lists the kinds.
#[test]
fn usages_list_the_kinds_that_there_are() {
    for verb in Arguments::command().get_subcommands_mut() {
        let kinds: Vec<_> = verb.get_subcommands().map(Command::get_name).collect();
        if !kinds.is_empty() {
            let kinds = format!("<{}>", kinds.join("|"));
            let usage = verb.render_usage().to_string();
            assert!(usage.ends_with(&kinds), "{usage}: {kinds}");
        }
    }
}

/// All commands and their subcommands.
fn commands(of: &Command) -> Vec<Command> {
    let further = of.get_subcommands().flat_map(commands);
    of.get_subcommands().cloned().chain(further).collect()
}

#[test]
fn each_help_has_examples_that_parse() {
    for mut command in commands(&Arguments::command()) {
        let help = command.render_long_help().to_string();
        let name = command.get_name();
        let (_, examples) = help.split_once("\nExamples:\n").expect(name);
        let lines: Vec<_> = examples.lines().map(str::trim).collect();
        assert!(lines.iter().any(|line| line.contains(name)), "{name}: {lines:?}");
        for line in lines {
            let end = [" | ", " > "].iter().filter_map(|end| line.find(end)).min();
            let line = &line[..end.unwrap_or(line.len())];
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
}

#[test]
fn printed_names_are_taken_back() {
    let id = |line: &str| match parse(line).unwrap().verb {
        Verb::Describe { what: Described::Attachment { name } } => name,
        Verb::ClearQuarantine { vf, .. } => vf.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(id("dpuctl describe attachment attachment/0190aaaa"), "0190aaaa");
    assert_eq!(id("dpuctl describe attachment 0190aaaa"), "0190aaaa");
    assert_eq!(id("dpuctl clear-quarantine vf/pf0vf3"), "pf0vf3");
}

#[test]
fn kind_and_name_are_taken_apart() {
    let apart = |line: &str| {
        let apart = with_kind_apart(line.split(' ').map(OsString::from)).into_iter();
        apart.map(|argument| argument.into_string().unwrap()).collect::<Vec<_>>().join(" ")
    };
    for (line, expected) in [
        ("dpuctl describe attachment/0190aaaa", "dpuctl describe attachment 0190aaaa"),
        ("dpuctl describe host/node-1", "dpuctl describe host node-1"),
        ("dpuctl describe attachment web/shop", "dpuctl describe attachment web/shop"),
        ("dpuctl describe dpu", "dpuctl describe dpu"),
        ("dpuctl get vfs vf/pf0vf3", "dpuctl get vfs vf/pf0vf3"),
    ] {
        assert_eq!(apart(line), expected);
    }
}

/// In addition to the examples.
#[test]
fn lines_that_operators_type_are_understood() {
    let lines = [
        "dpuctl doctor --fix --reason rebooted -o json",
        "dpuctl doctor -v",
        "dpuctl get vf pf0vf3 -o yaml",
        "dpuctl get attachments --network blue --host node-1 -o wide",
        "dpuctl get attachments web/shop --watch --no-headers --sort-by AGE",
        "dpuctl get attachments attachment/0190aaaa -o name --sort-by .createdAt",
        "dpuctl get hosts host/node-1 -w",
        "dpuctl get networks blue -ojson --timeout 3",
        "dpuctl --endpoint 10.0.0.1:7443 --dpu dpu-2 get pools",
        "dpuctl describe attachment 0190",
        "dpuctl edit network blue --reason tidy",
        "dpuctl apply -f - --force-conflicts",
        "dpuctl audit --since 3d --object blue --operator alice -o json",
        "dpuctl rename network blue azure --reason tidy",
        "dpuctl events",
        "dpuctl events --since 10m --object pool/default --type Warning -o wide",
        "dpuctl events --follow --type HostConnected -o json",
        "dpuctl top",
        "dpuctl top --once --interval 5 --lines 3 --network blue --host node-1 -o wide",
        "dpuctl top --phases --once --interval 5 -o wide",
        "dpuctl add subnet blue 10.9.0.0/16 --gateway 10.9.0.1 --exclude 10.9.1.0/24",
        "dpuctl delete network blue --force",
        "dpuctl delete subnet blue fd00::/64",
        "dpuctl release 0190 --reason maintenance -y",
        "dpuctl clear-quarantine c1pf0vf3",
        "dpuctl pki init --dir /tmp/pki --trust-domain lab.example --force",
        "dpuctl pki issue viewer eve --dir /tmp/pki --out /tmp --days 1 --force",
        "dpuctl explain",
        "dpuctl completions zsh",
    ];
    for line in lines {
        parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

#[test]
fn mistakes_are_named() {
    let shown = [
        ("dpuctl clear-quarantine vf3", "\"vf3\" does not name a VF, such as pf0vf3"),
        ("dpuctl pki issue root eve", "the roles are host, dpu, operator and viewer"),
        ("dpuctl doctor --reason x", "--fix"),
        ("dpuctl get vfs -o xml", "[possible values: table, wide, json, yaml, name]"),
        ("dpuctl status -o xml", "[possible values: table, wide, json, yaml]"),
        ("dpuctl get vfs --sort-by .", "name a column, such as STATE, or a field"),
        ("dpuctl release 0190", "--reason <REASON>"),
        ("dpuctl release 0190 --reason ", "say why: the log and the event show it"),
        ("dpuctl get attachments ", "a value is required for '[ID|POD|CONTAINER|ADDRESS|VF]'"),
        ("dpuctl describe network ", "a value is required for '<NAME>'"),
        ("dpuctl get vfs --host ", "a value is required for '--host <HOST>'"),
        ("dpuctl status --timeout 0", "a whole number of seconds from 1 to 3600, such as 30"),
        ("dpuctl status --timeout 1ms", "a whole number of seconds from 1 to 3600, such as 30"),
        ("dpuctl pki init --days 1y", "a whole number of days from 1 to 36500, such as 30"),
        ("dpuctl events --since 10", "such as 10m, 2h or 3d"),
        ("dpuctl events --type nope", "use normal, warning or one of the kinds"),
        ("dpuctl top --lines x", "a whole number of lines from 1 to 1000000, such as 30"),
        ("dpuctl top --interval 0", "a whole number of seconds from 1 to 3600, such as 30"),
        ("dpuctl top --phases --lines 3", "'--phases' cannot be used with '--lines <NUMBER>'"),
        ("dpuctl top --host a --phases", "'--host <HOST>' cannot be used with '--phases'"),
        ("dpuctl top phases", "unexpected argument 'phases' found"),
        ("dpuctl add subnet blue", "<CIDR>"),
        ("dpuctl add subnet blue 10.9.0.0", "write its prefix length, too"),
        ("dpuctl add subnet blue 10.9.0.0/16 --gateway x", "invalid IP address syntax"),
        ("dpuctl describe vf", "dpuctl describe [OPTIONS] <attachment|dpu|host|network>"),
    ];
    for (line, expected) in shown {
        let error = parse(line).expect_err(line);
        assert!(error.contains(expected), "{line}: {error}");
    }
}
