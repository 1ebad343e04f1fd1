//! The arguments of `dpuctl get`.

use clap::{Args, Subcommand, ValueEnum, builder::TypedValueParser};

use super::{examples, name, name_of};
use crate::sort::SortBy;

/// The things that `get` lists.
#[derive(Debug, Subcommand)]
pub(crate) enum Listed {
    /// Virtual functions
    #[command(visible_alias = "vf", after_help = examples::GET_VFS)]
    Vfs {
        /// Only this VF, such as pf0vf3, or by PCI address
        #[arg(value_parser = name_of("vf/"))]
        name: Option<String>,
        /// Only VFs of this host
        #[arg(long, value_parser = name_of("host/"))]
        host: Option<String>,
        #[command(flatten)]
        options: ListOptions,
    },
    /// Attachments
    #[command(visible_alias = "attachment", after_help = examples::GET_ATTACHMENTS)]
    Attachments {
        /// Only attachments with this id, pod, container, address, MAC address or VF; a pod is NAME or NAMESPACE/NAME,
        /// and four characters of an id are enough
        #[arg(value_parser = name_of("attachment/"), value_name = "ID|POD|CONTAINER|ADDRESS|VF")]
        wanted: Option<String>,
        /// Only attachments of this network
        #[arg(long, value_parser = name_of("network/"))]
        network: Option<String>,
        /// Only attachments of this host
        #[arg(long, value_parser = name_of("host/"))]
        host: Option<String>,
        #[command(flatten)]
        options: ListOptions,
    },
    /// Networks
    #[command(visible_alias = "network", after_help = examples::GET_NETWORKS)]
    Networks {
        /// Only this network
        #[arg(value_parser = name_of("network/"))]
        name: Option<String>,
        #[command(flatten)]
        options: ListOptions,
    },
    /// Pools of VFs
    #[command(visible_alias = "pool", after_help = examples::GET_POOLS)]
    Pools {
        /// Only this pool
        #[arg(value_parser = name_of("pool/"))]
        name: Option<String>,
        #[command(flatten)]
        options: ListOptions,
    },
    /// Hosts of the service's configuration
    #[command(visible_alias = "host", after_help = examples::GET_HOSTS)]
    Hosts {
        /// Only this host
        #[arg(value_parser = name_of("host/"))]
        name: Option<String>,
        #[command(flatten)]
        options: ListOptions,
    },
}

/// Options of a list.
#[derive(Debug, Args)]
pub(crate) struct ListOptions {
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: ListFormat,
    /// Print tables without headings
    #[arg(long)]
    pub(crate) no_headers: bool,
    /// Sort by a column, such as STATE, or by a field of the JSON form, such as .vf.pf
    #[arg(long, value_name = "COLUMN|.FIELD",
          value_parser = name().try_map(|by| by.parse::<SortBy>()))]
    pub(crate) sort_by: Option<SortBy>,
    /// Continue, and print what is added, modified or deleted, until interrupted; polls once a second
    #[arg(short, long)]
    pub(crate) watch: bool,
}

/// Output formats of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListFormat {
    /// For people
    #[default]
    Table,
    /// For people, with more columns
    Wide,
    /// Protobuf's JSON form, with counts and sizes as numbers
    Json,
    /// The same as YAML
    Yaml,
    /// Kind and name, such as `vf/pf0vf3`, which other commands take
    Name,
}

impl ListFormat {
    pub(crate) const fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }

    pub(crate) const fn is_wide(self) -> bool {
        matches!(self, Self::Wide)
    }
}
