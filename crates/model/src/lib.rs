//! The domain's types, and the checks of them: networks and what is in them, attachments, and what hosts request.
//!
//! Pure: no I/O, no clock. The journal stores these types as JSON. What host and service both turn into parts of API
//! messages has its conversion here; the service's `api::convert` has the others, and the checks of what it reads.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod allow;
pub mod anti_spoofing;
mod bandwidth;
pub mod check;
mod duplicates;
mod former_owner;
mod ip_families;
mod key;
mod label;
mod layer2_domain;
mod network;
mod port_mapping;
mod port_settings;
mod record;
mod request;
mod resource_version;
mod rights;
mod routing;
mod state;
mod subnet;

pub use allow::{AllowRule, AllowedProtocol, IngressRule, PortRange, Prefixes};
pub use anti_spoofing::{AntiSpoofing, Source};
pub use bandwidth::{Bandwidth, TotalRate};
pub use duplicates::duplicates;
pub use former_owner::FormerOwner;
pub use ip_families::IpFamilies;
pub use key::{AttachmentId, AttachmentKey, HostName};
pub use label::Label;
pub use layer2_domain::{CooledAddress, DomainAddress, Layer2Domain, Layer2Domains, overlap};
pub use netlink::{RouteKind, RouteScope};
pub use network::{Dns, GatewayMode, Network};
pub use port_mapping::{PortMapping, Protocol, share_an_address};
pub use port_settings::PortSettings;
pub use record::{FurtherLease, Phase, Record};
pub use request::{AttachSpec, InterfaceRequest, LeaseSpec, WantedAddress};
pub use resource_version::ResourceVersion;
pub use rights::HostRights;
pub use routing::{MAIN_TABLE, PolicyRule, Route, RuleSource, Sysctls};
pub use state::{AttachmentState, AttachmentView};
pub use subnet::{AddressRange, Lease, Subnet};

/// `&T` because `skip_serializing_if` passes a reference.
fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}
