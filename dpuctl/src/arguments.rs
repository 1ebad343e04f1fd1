//! The command line.

mod examples;
mod history;
mod listed;

use std::{ffi::OsString, net::IpAddr, path::PathBuf, str::FromStr, time::Duration};

use clap::{
    Args, Parser, Subcommand, ValueEnum,
    builder::{NonEmptyStringValueParser, TypedValueParser},
};
use clap_complete::Shell;
use mtls::{IdentityError, Role, authority};
use offload_proto::v1::ConditionType;
use vf_alloc::{FunctionId, ParseIdError};

pub(crate) use listed::{ListFormat, ListOptions, Listed};

pub use history::{Audit, Events, Why};

const AFTER_HELP: &str = "\
Exit codes:
  0  done
  1  the DPU refused or failed the call, there is no such thing, or `doctor` found something
  2  the command line, the configuration or a file given is wrong
  3  the DPU can't be reached or did not answer in time
  4  a certificate is missing, expired or refused
  5  `status` or `doctor`: the DPU has answered, and a condition that affects pods is false

Configuration: --config, else $DPUCTL_CONFIG, else ~/.config/dpu-offload/dpuctl.toml, else
/etc/dpu-offload/dpuctl.toml.";

/// Shows and changes what a DPU does for its hosts.
#[derive(Debug, Parser)]
#[command(name = "dpuctl", version, after_help = AFTER_HELP, disable_help_subcommand = true)]
pub struct Arguments {
    /// What goes for every verb.
    #[command(flatten)]
    pub options: Options,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The command line with `describe KIND/NAME` as `describe KIND NAME`: `get -o name` prints such names.
pub fn with_kind_apart(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    const KINDS: [&str; 3] = ["attachment", "host", "network"];
    let mut all: Vec<_> = arguments.collect();
    let Some(verb) = all.iter().position(|argument| argument == "describe") else { return all };
    let named = all.get(verb + 1).and_then(|argument| argument.to_str()?.split_once('/'));
    if let Some((kind, name)) = named.filter(|(kind, _)| KINDS.contains(kind)) {
        let apart = [kind, name].map(OsString::from);
        drop(all.splice(verb + 1..verb + 2, apart));
    }
    all
}

/// What goes for every verb.
#[derive(Debug, Args)]
pub struct Options {
    /// Configuration file
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address of the DPU's service, instead of the configuration's
    #[arg(long, global = true, value_name = "HOST:PORT")]
    pub endpoint: Option<String>,
    /// Name of the DPU, as in its certificate, instead of the configuration's
    #[arg(long, global = true, value_name = "NAME")]
    pub dpu: Option<String>,
    /// How long to wait for the DPU, in seconds
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 10,
          value_parser = whole("seconds", 3600))]
    pub timeout: u64,
}

impl Options {
    /// How long to wait for the DPU.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// How the DPU and its hosts are
    #[command(after_help = examples::STATUS)]
    Status {
        /// Wait until this condition is true, for as long as --timeout says
        #[arg(long, value_name = "CONDITION", value_parser = <ConditionType as FromStr>::from_str)]
        wait: Option<ConditionType>,
        /// How to print it
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Compare hosts, DPU and records, and show the problems
    #[command(after_help = examples::DOCTOR)]
    Doctor {
        /// Repair it
        #[arg(long)]
        fix: bool,
        /// Why it is repaired, for the audit
        #[arg(long, value_name = "TEXT", value_parser = reason, requires = "fix")]
        reason: Option<String>,
        /// Show what was checked, too: hosts and VFs
        #[arg(short, long)]
        verbose: bool,
        /// How to print it
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// List VFs, attachments, networks, pools or hosts
    #[command(subcommand_value_name = "vfs|attachments|networks|pools|hosts", after_help = examples::GET)]
    Get {
        /// Of what.
        #[command(subcommand)]
        what: Listed,
    },
    /// All about one thing
    #[command(subcommand_value_name = "attachment|dpu|host|network", after_help = examples::DESCRIBE)]
    Describe {
        /// About what.
        #[command(subcommand)]
        what: Described,
    },
    /// What happened, oldest first
    #[command(after_help = examples::EVENTS)]
    Events(Events),
    /// Who has changed what and why, oldest first
    #[command(after_help = examples::AUDIT)]
    Audit(Audit),
    /// What attachments send and receive in a second, or where the time of attaching goes, until interrupted
    #[command(after_help = examples::TOP)]
    Top(Top),
    /// Create or change networks
    #[command(after_help = examples::APPLY)]
    Apply {
        /// YAML or JSON with networks, or what `get networks` prints so; `-` reads standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Only check
        #[arg(long)]
        dry_run: bool,
        /// Replace what other operators have changed since the file was printed
        #[arg(long)]
        force_conflicts: bool,
        /// Why
        #[command(flatten)]
        why: Why,
    },
    /// Edit a network in $VISUAL, $EDITOR or vi
    #[command(subcommand_value_name = "network", after_help = examples::EDIT)]
    Edit {
        /// Of what.
        #[command(subcommand)]
        what: Edited,
    },
    /// Give a network another name
    #[command(subcommand_value_name = "network", after_help = examples::RENAME)]
    Rename {
        /// Of what.
        #[command(subcommand)]
        what: Renamed,
    },
    /// Add a subnet to a network
    #[command(subcommand_value_name = "subnet", after_help = examples::ADD)]
    Add {
        /// What.
        #[command(subcommand)]
        what: Added,
    },
    /// Delete a network, or a subnet of one
    #[command(subcommand_value_name = "network|subnet", after_help = examples::DELETE)]
    Delete {
        /// Of what.
        #[command(subcommand)]
        what: Deleted,
    },
    /// Take an attachment away from its pod, or end all attachments of a host that was removed
    #[command(after_help = examples::RELEASE)]
    Release {
        /// The attachment's id, or a unique beginning of it
        #[arg(value_parser = name_of("attachment/"), required_unless_present = "host", conflicts_with = "host")]
        id: Option<String>,
        /// All attachments of this host, which is no longer in the service's configuration
        #[arg(long, value_parser = name())]
        host: Option<String>,
        /// Why, for the audit
        #[arg(long, value_parser = reason)]
        reason: String,
        /// Don't wait for the VF, which no longer exists
        #[arg(long, conflicts_with = "host")]
        forget: bool,
        /// Don't ask
        #[arg(short, long)]
        yes: bool,
    },
    /// Give a quarantined VF back to its pools
    #[command(after_help = examples::CLEAR_QUARANTINE)]
    ClearQuarantine {
        /// The VF, such as pf0vf3
        #[arg(value_parser = function)]
        vf: FunctionId,
        /// Why
        #[command(flatten)]
        why: Why,
    },
    /// Write an archive for a bug report: versions, configuration, state and metrics of the DPU, without secrets
    #[command(after_help = examples::BUNDLE)]
    Bundle {
        /// The archive to write, instead of dpu-offload-DPU-TIME.tar.gz in this folder; an existing file is refused
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Certificates for development and tests
    #[command(subcommand_value_name = "init|issue", after_help = examples::PKI)]
    Pki {
        /// Do what.
        #[command(subcommand)]
        what: Pki,
    },
    /// Explain a code of an error, a condition or the doctor; needs no DPU
    #[command(after_help = examples::EXPLAIN)]
    Explain {
        /// The code, such as VFS_EXHAUSTED, or its number in CNI, such as 102; without it, all are listed
        code: Option<String>,
    },
    /// Print completions for a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// Of what `top` tells, and how often.
#[derive(Debug, Args)]
pub struct Top {
    /// Where the time of attaching and of giving back goes on the DPU, in place of what attachments send and receive
    #[arg(long, conflicts_with_all = ["lines", "network", "host"])]
    pub phases: bool,
    /// Print one table, and end
    #[arg(long)]
    pub once: bool,
    /// How long it is from one look to the next, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = whole("seconds", 3600))]
    pub interval: u64,
    /// Print so many attachments at most, in a table; without it, as many as there are, and 20 on a terminal
    #[arg(long, value_name = "NUMBER", value_parser = whole("lines", 1_000_000))]
    pub lines: Option<u64>,
    /// Only those of this network
    #[arg(long, value_parser = name())]
    pub network: Option<String>,
    /// Only those of this host
    #[arg(long, value_parser = name())]
    pub host: Option<String>,
    /// How to print them; json is one line per look and yaml one document, with counters in place of rates
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

impl Top {
    pub(crate) const fn interval(&self) -> Duration {
        Duration::from_secs(self.interval)
    }
}

/// How to print an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Table,
    /// For people, with more columns
    Wide,
    /// Protobuf's JSON form
    Json,
    /// The same as YAML
    Yaml,
}

impl Format {
    /// Whether it is a table.
    pub(crate) const fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

/// What can be described.
#[derive(Debug, Subcommand)]
pub enum Described {
    /// An attachment
    #[command(after_help = examples::DESCRIBE_ATTACHMENT)]
    Attachment {
        /// Its id or the beginning of it, or its pod, container, address, MAC address or VF, as for `get attachments`
        #[arg(value_parser = name_of("attachment/"), value_name = "ID|POD|CONTAINER|ADDRESS|VF")]
        name: String,
    },
    /// The DPU itself
    #[command(after_help = examples::DESCRIBE_DPU)]
    Dpu,
    /// A host, and what it may ask for
    #[command(after_help = examples::DESCRIBE_HOST)]
    Host {
        /// Its name
        #[arg(value_parser = name_of("host/"))]
        name: String,
    },
    /// A network
    #[command(after_help = examples::DESCRIBE_NETWORK)]
    Network {
        /// Its name
        #[arg(value_parser = name_of("network/"))]
        name: String,
    },
}

/// What can be edited.
#[derive(Debug, Subcommand)]
pub enum Edited {
    /// A network of the API
    #[command(after_help = examples::EDIT)]
    Network {
        /// Its name
        #[arg(value_parser = name_of("network/"))]
        name: String,
        /// Why
        #[command(flatten)]
        why: Why,
    },
}

/// What can be renamed.
#[derive(Debug, Subcommand)]
pub enum Renamed {
    /// A network of the API; its attachments keep their addresses
    #[command(after_help = examples::RENAME)]
    Network {
        /// Its name
        #[arg(value_parser = name_of("network/"))]
        name: String,
        /// Its new name
        #[arg(value_parser = name())]
        new_name: String,
        /// Why
        #[command(flatten)]
        why: Why,
    },
}

/// What can be added.
#[derive(Debug, Subcommand)]
pub enum Added {
    /// A subnet, at once, under running attachments
    #[command(after_help = examples::ADD)]
    Subnet {
        /// The network's name
        #[arg(value_parser = name())]
        network: String,
        /// The subnet, such as 10.3.0.0/16
        #[arg(value_parser = subnet)]
        cidr: String,
        /// Its gateway
        #[arg(long, value_name = "ADDRESS")]
        gateway: Option<IpAddr>,
        /// Never to be handed out; any number of times
        #[arg(long, value_name = "CIDR", value_parser = name())]
        exclude: Vec<String>,
        /// Why
        #[command(flatten)]
        why: Why,
    },
}

/// What can be deleted.
#[derive(Debug, Subcommand)]
pub enum Deleted {
    /// A network
    #[command(after_help = examples::DELETE_NETWORK)]
    Network {
        /// Its name
        #[arg(value_parser = name_of("network/"))]
        name: String,
        /// Even while attachments use it; these keep its settings until they end
        #[arg(long)]
        force: bool,
        /// Why
        #[command(flatten)]
        why: Why,
    },
    /// A subnet of a network, of which no attachment has an address
    #[command(after_help = examples::DELETE_SUBNET)]
    Subnet {
        /// The network's name
        #[arg(value_parser = name())]
        network: String,
        /// The subnet, such as 10.3.0.0/16
        #[arg(value_parser = subnet)]
        cidr: String,
        /// Why
        #[command(flatten)]
        why: Why,
    },
}

/// What can be done about certificates.
#[derive(Debug, Subcommand)]
pub enum Pki {
    /// Make a certificate authority
    #[command(after_help = examples::PKI_INIT)]
    Init {
        /// Its folder
        #[arg(long, value_name = "FOLDER", default_value = "pki")]
        dir: PathBuf,
        /// The realm of the names it certifies
        #[arg(long, value_name = "NAME", default_value = "dpu-offload.local")]
        trust_domain: String,
        /// How long it is valid
        #[arg(long, default_value_t = authority::CA_DAYS, value_parser = days())]
        days: u64,
        /// Replace an authority that is there, and with it all that it certified
        #[arg(long)]
        force: bool,
    },
    /// Make a key and a certificate
    #[command(after_help = examples::PKI_ISSUE)]
    Issue {
        /// host, dpu, operator or viewer
        #[arg(value_parser = role)]
        role: Role,
        /// The holder's name
        #[arg(value_parser = name())]
        name: String,
        /// The authority's folder
        #[arg(long, value_name = "FOLDER", default_value = "pki")]
        dir: PathBuf,
        /// Where to write <role>-<name>.crt and .key, instead of the authority's folder
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
        /// How long it is valid
        #[arg(long, default_value_t = authority::CERTIFICATE_DAYS, value_parser = days())]
        days: u64,
        /// Replace earlier ones of the same name, such as to renew them
        #[arg(long)]
        force: bool,
    },
}

fn days() -> impl Fn(&str) -> Result<u64, String> + Clone {
    whole("days", 36500)
}

/// A whole number of `unit`, from 1 to `most`, with nothing behind it.
fn whole(unit: &'static str, most: u64) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| (1..=most).contains(number));
        number.ok_or_else(|| {
            format!("it must be a whole number of {unit} from 1 to {most}, such as 30")
        })
    }
}

/// A name or id. Empty ones, such as of an unset variable of a script, would mean all or none.
fn name() -> NonEmptyStringValueParser {
    NonEmptyStringValueParser::new()
}

/// A name, with or without its kind, such as `vf/`, which `-o name` prints before it.
fn name_of(kind: &'static str) -> impl TypedValueParser<Value = String> {
    name().map(move |name| name.strip_prefix(kind).map(String::from).unwrap_or(name))
}

fn function(text: &str) -> Result<FunctionId, ParseIdError> {
    text.strip_prefix("vf/").unwrap_or(text).parse()
}

/// A subnet, which without its length would be a single address.
fn subnet(text: &str) -> Result<String, &'static str> {
    if text.contains('/') {
        Ok(text.into())
    } else {
        Err("write its prefix length, too, such as 10.3.0.0/16")
    }
}

fn reason(text: &str) -> Result<String, &'static str> {
    if text.trim().is_empty() {
        Err("say why: the log and the event show it")
    } else {
        Ok(text.into())
    }
}

fn role(text: &str) -> Result<Role, IdentityError> {
    text.parse()
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};

    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        Arguments::try_parse_from(line.split(' ')).map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_is_well_made() {
        Arguments::command().debug_assert();
    }

    /// Whoever names a kind that there is not is shown the usage.
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

    /// All commands, those that have further ones included.
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

    #[test]
    fn lines_that_operators_type_are_understood() {
        let lines = [
            "dpuctl status",
            "dpuctl doctor",
            "dpuctl doctor --fix --reason rebooted -o json",
            "dpuctl doctor -v",
            "dpuctl bundle -o /tmp/report.tar.gz",
            "dpuctl get vfs",
            "dpuctl get vf pf0vf3 -o yaml",
            "dpuctl get attachments --network blue --host node-1 -o wide",
            "dpuctl get attachments web/shop --watch --no-headers --sort-by AGE",
            "dpuctl get attachments attachment/0190aaaa -o name --sort-by .createdAt",
            "dpuctl get hosts host/node-1 -w",
            "dpuctl get networks blue -ojson --timeout 3",
            "dpuctl --endpoint 10.0.0.1:7443 --dpu dpu-2 get pools",
            "dpuctl describe attachment 0190",
            "dpuctl describe dpu",
            "dpuctl describe network blue",
            "dpuctl edit network blue --reason tidy",
            "dpuctl rename network blue azure",
            "dpuctl apply -f - --force-conflicts",
            "dpuctl audit --since 3d --object blue --operator alice -o json",
            "dpuctl rename network blue azure --reason tidy",
            "dpuctl events",
            "dpuctl events --since 10m --object pool/default --type Warning -o wide",
            "dpuctl events --follow --type HostConnected -o json",
            "dpuctl top",
            "dpuctl top --once --interval 5 --lines 3 --network blue --host node-1 -o wide",
            "dpuctl top --phases --once --interval 5 -o wide",
            "dpuctl apply -f - --dry-run",
            "dpuctl add subnet blue 10.9.0.0/16 --gateway 10.9.0.1 --exclude 10.9.1.0/24",
            "dpuctl delete network blue --force",
            "dpuctl delete subnet blue fd00::/64",
            "dpuctl release 0190 --reason maintenance -y",
            "dpuctl clear-quarantine c1pf0vf3",
            "dpuctl pki init --dir /tmp/pki --trust-domain lab.example --force",
            "dpuctl pki issue viewer eve --dir /tmp/pki --out /tmp --days 1 --force",
            "dpuctl explain VFS_EXHAUSTED",
            "dpuctl explain 11",
            "dpuctl explain",
            "dpuctl completions zsh",
        ];
        for line in lines {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn mistakes_are_told_by_name() {
        let told = [
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
        for (line, expected) in told {
            let error = parse(line).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
