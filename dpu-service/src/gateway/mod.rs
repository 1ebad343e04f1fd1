//! This DPU as the gateway of networks with `gateway_mode = "dpu"`.
//!
//! [`Gateways`] is the only entry. A pass makes the kernel agree with the networks.
//!
//! | file | contents |
//! | --- | --- |
//! | `plan` | derives links, addresses and the nftables table from the networks; pure |
//! | `links` | a gateway's addresses and settings on the link that the fabric provides |
//! | `routes` | its routes, marked with our protocol number |
//! | `table` | our nftables table, and whether another program has changed it |
//! | `others`, `asked` | whether another device answers a gateway's address |
//! | `neighbour_entries` | permanent neighbour entries for pods |
//! | `neighbours` | the sets and rules that limit unknown neighbours; pure |
//! | `wanted`, `names` | the input of a pass, and the names of what it makes |
//! | `thresholds` | the kernel's limit of neighbour entries |
//! | `redirections` | the maps and rules of mapped ports; pure |
//! | `connections` | flushes connections by ports that lead elsewhere now |
//! | `settings` | the configuration section |
//! | `work` | a pass, and the changes of attachments with mapped ports |
//! | `shown` | the state after the latest pass, for operators |
//!
//! The reconciler, every change of networks and every change of nftables starts a pass. All passes take the lock
//! `work`, so they run one after the other. A pass reads the networks after it has the lock, so the last pass has
//! the latest ones.
//!
//! Locks, in this order: the lock of networks (changes only), an attachment's key, then `work`; the registry is
//! asked within. Attach and detach take `work` only for mapped ports. Permanent neighbours have a lock of their
//! own, which attach, detach and comparisons take after the key: see `neighbour_entries`. `shown` is never held across an
//! await or while another lock is taken.
//!
//! Everything stays when the service stops, because pods continue. Nothing is recorded: links are known by their
//! names and aliases, the table by its name.

mod asked;
mod connections;
mod gateways;
mod links;
mod names;
mod neighbour_entries;
mod neighbours;
mod others;
mod plan;
mod redirections;
mod routes;
mod settings;
mod shown;
mod table;
mod thresholds;
mod wanted;
mod work;

pub(crate) use gateways::Gateways;
pub(crate) use others::watch_for_conflicts;
pub(crate) use redirections::Redirection;
pub(crate) use settings::GatewaySettings;
pub use shown::GatewayView;
pub(crate) use wanted::{PodAddress, Remapping, Scope, Wanted};
