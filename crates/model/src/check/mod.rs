//! Checks of networks and of what pods request. Each returns sentences that name the setting, the value and the remedy.

mod allow;
mod bandwidth;
mod bridges;
mod form;
mod label;
mod networks;
mod routing;
mod sources;

pub use allow::{check_named_networks, prefixes_of};
pub use bandwidth::{LimitsOf, check_bandwidth};
pub use bridges::check_bridge;
pub use form::is_label;
pub use networks::{check_network, check_networks, check_reaches, check_routed_subnets};
pub use routing::check_routing;
pub use sources::{check_source, check_without_eswitch};
