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
use mtls::{Role, authority};
use offload_proto::v1::ConditionType;
use vf_alloc::{FunctionId, ParseIdError};

pub(crate) use history::{Audit, Events, Why};
pub(crate) use listed::{ListFormat, ListOptions, Listed};

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

/// Shows and changes what a DPU provides to its hosts.
#[derive(Debug, Parser)]
#[command(name = "dpuctl", version, after_help = AFTER_HELP, disable_help_subcommand = true)]
pub struct Arguments {
    #[command(flatten)]
    pub(crate) options: Options,
    #[command(subcommand)]
    pub(crate) verb: Verb,
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

/// Options of every command.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Configuration file
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Address of the DPU's service, instead of the configuration's
    #[arg(long, global = true, value_name = "HOST:PORT")]
    pub(crate) endpoint: Option<String>,
    /// Name of the DPU, as in its certificate, instead of the configuration's
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) dpu: Option<String>,
    /// How long to wait for the DPU, in seconds
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 10,
          value_parser = whole("seconds", 3600))]
    pub(crate) timeout: u64,
}

impl Options {
    /// The time limit of one command.
    #[must_use]
    pub(crate) const fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show the state of the DPU and its hosts
    #[command(after_help = examples::STATUS)]
    Status {
        /// Wait until this condition is true, for as long as --timeout says
        #[arg(long, value_name = "CONDITION", value_parser = <ConditionType as FromStr>::from_str)]
        wait: Option<ConditionType>,
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Compare hosts, DPU and records, and show the problems
    #[command(after_help = examples::DOCTOR)]
    Doctor {
        /// Repair the problems
        #[arg(long)]
        fix: bool,
        /// Reason of the repair, for the audit
        #[arg(long, value_name = "TEXT", value_parser = reason, requires = "fix")]
        reason: Option<String>,
        /// Also show what was checked: hosts and VFs
        #[arg(short, long)]
        verbose: bool,
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// List VFs, attachments, networks, pools or hosts
    #[command(subcommand_value_name = "vfs|attachments|networks|pools|hosts", after_help = examples::GET)]
    Get {
        #[command(subcommand)]
        what: Listed,
    },
    /// Show everything about one thing
    #[command(subcommand_value_name = "attachment|dpu|host|network", after_help = examples::DESCRIBE)]
    Describe {
        #[command(subcommand)]
        what: Described,
    },
    /// List events, oldest first
    #[command(after_help = examples::EVENTS)]
    Events(Events),
    /// List changes with author and reason, oldest first
    #[command(after_help = examples::AUDIT)]
    Audit(Audit),
    /// Show traffic of attachments per second, or the phases of attaching, until interrupted
    #[command(after_help = examples::TOP)]
    Top(Top),
    /// Create or change networks
    #[command(after_help = examples::APPLY)]
    Apply {
        /// YAML or JSON with networks, or the output of `get networks` in these formats; `-` reads standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Check only; change nothing
        #[arg(long)]
        dry_run: bool,
        /// Also replace what other operators have changed since the file was printed
        #[arg(long)]
        force_conflicts: bool,
        #[command(flatten)]
        why: Why,
    },
    /// Edit a network in $VISUAL, $EDITOR or vi
    #[command(subcommand_value_name = "network", after_help = examples::EDIT)]
    Edit {
        #[command(subcommand)]
        what: Edited,
    },
    /// Rename a network
    #[command(subcommand_value_name = "network", after_help = examples::RENAME)]
    Rename {
        #[command(subcommand)]
        what: Renamed,
    },
    /// Add a subnet to a network
    #[command(subcommand_value_name = "subnet", after_help = examples::ADD)]
    Add {
        #[command(subcommand)]
        what: Added,
    },
    /// Delete a network, or a subnet of one
    #[command(subcommand_value_name = "network|subnet", after_help = examples::DELETE)]
    Delete {
        #[command(subcommand)]
        what: Deleted,
    },
    /// Take an attachment from its pod, or end all attachments of a removed host
    #[command(after_help = examples::RELEASE)]
    Release {
        /// The attachment's id, or a unique beginning of it
        #[arg(value_parser = name_of("attachment/"), required_unless_present = "host", conflicts_with = "host")]
        id: Option<String>,
        /// All attachments of this host, which is no longer in the service's configuration
        #[arg(long, value_parser = name())]
        host: Option<String>,
        /// Reason, for the audit
        #[arg(long, value_parser = reason)]
        reason: String,
        /// Do not wait for the VF, which no longer exists
        #[arg(long, conflicts_with = "host")]
        forget: bool,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Return a quarantined VF to its pools
    #[command(after_help = examples::CLEAR_QUARANTINE)]
    ClearQuarantine {
        /// The VF, such as pf0vf3
        #[arg(value_parser = function)]
        vf: FunctionId,
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
        #[command(subcommand)]
        what: Pki,
    },
    /// Explain a code of an error, a condition or the doctor; needs no DPU
    #[command(after_help = examples::EXPLAIN)]
    Explain {
        /// The code, such as VFS_EXHAUSTED, or its CNI number, such as 102; without it, list all codes
        code: Option<String>,
    },
    /// Print completions for a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// The arguments of `top`.
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Show the phases of attaching and detaching on the DPU instead of traffic
    #[arg(long, conflicts_with_all = ["lines", "network", "host"])]
    pub(crate) phases: bool,
    /// Print one table and exit
    #[arg(long)]
    pub(crate) once: bool,
    /// Interval between two samples, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = whole("seconds", 3600))]
    pub(crate) interval: u64,
    /// Print at most this many attachments in a table; the default is all, and 20 on a terminal
    #[arg(long, value_name = "NUMBER", value_parser = whole("lines", 1_000_000))]
    pub(crate) lines: Option<u64>,
    /// Only attachments of this network
    #[arg(long, value_parser = name())]
    pub(crate) network: Option<String>,
    /// Only attachments of this host
    #[arg(long, value_parser = name())]
    pub(crate) host: Option<String>,
    /// Output format; json is one line per sample and yaml one document, with counters instead of rates
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

impl Top {
    pub(crate) const fn interval(&self) -> Duration {
        Duration::from_secs(self.interval)
    }
}

/// Output formats of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
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
    pub(crate) const fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

/// The things that `describe` accepts.
#[derive(Debug, Subcommand)]
pub(crate) enum Described {
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
    /// A host, and what it may use
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

/// The things that `edit` accepts.
#[derive(Debug, Subcommand)]
pub(crate) enum Edited {
    /// A network that was created through the API
    #[command(after_help = examples::EDIT)]
    Network {
        /// Its name
        #[arg(value_parser = name_of("network/"))]
        name: String,
        #[command(flatten)]
        why: Why,
    },
}

/// The things that `rename` accepts.
#[derive(Debug, Subcommand)]
pub(crate) enum Renamed {
    /// A network that was created through the API; its attachments keep their addresses
    #[command(after_help = examples::RENAME)]
    Network {
        /// Its name
        #[arg(value_parser = name_of("network/"))]
        name: String,
        /// Its new name
        #[arg(value_parser = name())]
        new_name: String,
        #[command(flatten)]
        why: Why,
    },
}

/// The things that `add` accepts.
#[derive(Debug, Subcommand)]
pub(crate) enum Added {
    /// A subnet, effective at once, also under running attachments
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
        /// Addresses that are never allocated; may be repeated
        #[arg(long, value_name = "CIDR", value_parser = name())]
        exclude: Vec<String>,
        #[command(flatten)]
        why: Why,
    },
}

/// The things that `delete` accepts.
#[derive(Debug, Subcommand)]
pub(crate) enum Deleted {
    /// A network
    #[command(after_help = examples::DELETE_NETWORK)]
    Network {
        /// Its name
        #[arg(value_parser = name_of("network/"))]
        name: String,
        /// Delete it even if attachments use it; they keep its settings until they end
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        why: Why,
    },
    /// A subnet of a network in which no attachment has an address
    #[command(after_help = examples::DELETE_SUBNET)]
    Subnet {
        /// The network's name
        #[arg(value_parser = name())]
        network: String,
        /// The subnet, such as 10.3.0.0/16
        #[arg(value_parser = subnet)]
        cidr: String,
        #[command(flatten)]
        why: Why,
    },
}

/// Operations on certificates.
#[derive(Debug, Subcommand)]
pub(crate) enum Pki {
    /// Create a certificate authority
    #[command(after_help = examples::PKI_INIT)]
    Init {
        /// Its folder
        #[arg(long, value_name = "FOLDER", default_value = "pki")]
        dir: PathBuf,
        /// Trust domain of the names that it certifies
        #[arg(long, value_name = "NAME", default_value = "dpu-offload.local")]
        trust_domain: String,
        /// Validity in days
        #[arg(long, default_value_t = authority::CA_DAYS, value_parser = days())]
        days: u64,
        /// Replace an existing authority; all certificates that it issued become invalid
        #[arg(long)]
        force: bool,
    },
    /// Create a key and a certificate
    #[command(after_help = examples::PKI_ISSUE)]
    Issue {
        /// host, dpu, operator or viewer
        #[arg(value_parser = <Role as FromStr>::from_str)]
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
        /// Validity in days
        #[arg(long, default_value_t = authority::CERTIFICATE_DAYS, value_parser = days())]
        days: u64,
        /// Replace existing files of the same name, such as to renew them
        #[arg(long)]
        force: bool,
    },
}

fn days() -> impl Fn(&str) -> Result<u64, String> + Clone {
    whole("days", 36500)
}

/// A whole number from 1 to `most`, without a unit behind it.
fn whole(unit: &'static str, most: u64) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| (1..=most).contains(number));
        number.ok_or_else(|| {
            format!("it must be a whole number of {unit} from 1 to {most}, such as 30")
        })
    }
}

/// A non-empty name or id. An empty one, as from an unset variable of a script, could mean all or none.
fn name() -> NonEmptyStringValueParser {
    NonEmptyStringValueParser::new()
}

/// A name with or without the prefix that `-o name` prints, such as `vf/`.
fn name_of(kind: &'static str) -> impl TypedValueParser<Value = String> {
    name().map(move |name| name.strip_prefix(kind).map(String::from).unwrap_or(name))
}

fn function(text: &str) -> Result<FunctionId, ParseIdError> {
    text.strip_prefix("vf/").unwrap_or(text).parse()
}

/// A subnet. Without its length it would be a single address.
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

#[cfg(test)]
mod tests;
