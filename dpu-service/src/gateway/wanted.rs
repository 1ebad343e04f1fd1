//! The input of a pass, and of a change for one attachment.

use std::{net::IpAddr, sync::Arc};

use netlink::MacAddress;

use super::redirections::Redirection;
use model::Network;

/// Selects redirections and pods.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope<'a> {
    All,
    /// At least the redirections that share a port or a pod's address with one of these.
    Beside(&'a [Redirection]),
    /// No redirections, and the pods that share an address with one of these.
    PodsOnly(&'a [PodAddress]),
}

/// The input of a pass.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) networks: Vec<Arc<Network>>,
    pub(crate) redirections: Vec<Redirection>,
    pub(crate) pods: Vec<PodAddress>,
}

/// The redirections that change as an attachment comes or goes.
#[derive(Debug, Default)]
pub(crate) struct Remapping {
    pub(crate) begun: Vec<Redirection>,
    pub(crate) ended: Vec<Redirection>,
}

/// An address of a pod.
#[derive(Clone, Debug)]
pub(crate) struct PodAddress {
    pub(crate) network: Arc<Network>,
    pub(crate) address: IpAddr,
    pub(crate) mac: MacAddress,
}
