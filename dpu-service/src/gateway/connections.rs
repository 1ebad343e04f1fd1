//! Connections outlive the rules by which they were begun: a client that goes on sending would never reach
//! who has a mapped port next.
//!
//! Once a port leads to a pod no more, those are forgotten that do. Once it leads to a pod, those are that lead
//! into the DPU itself, as they were begun when it was nobody's; of TCP there are none, for they were refused.

use std::{collections::BTreeSet, net::IpAddr};

use bootstrap::Chain;
use netlink::{
    Error, Rtnl,
    nftables::{Connection, Connections},
};
use tokio::task::spawn_blocking;

use super::Redirection;
use crate::model::Protocol;

/// Has connections forgotten that lead where these no longer do.
pub(super) fn forget_former(redirections: &[Redirection]) {
    let is_former = |one: &Redirection, connection: &Connection| {
        let is_to = one.mapping.one_address().is_none_or(|ip| ip == connection.to.ip());
        is_to && connection.answered_from == one.target
    };
    tell(forget(redirections, is_former));
}

/// Has connections forgotten, soon, that lead into the DPU and not where these do.
pub(super) fn forget_earlier(mut redirections: Vec<Redirection>) {
    redirections.retain(|one| one.mapping.protocol != Protocol::Tcp);
    if redirections.is_empty() {
        return;
    }
    spawn_blocking(move || tell(forget_in(&redirections)));
}

fn forget_in(redirections: &[Redirection]) -> Result<(), Error> {
    let own: BTreeSet<IpAddr> =
        Rtnl::open()?.all_addresses()?.iter().map(|(_, address)| address.ip()).collect();
    forget(redirections, |one, connection| {
        let is_to = one.mapping.one_address().is_none_or(|ip| ip == connection.to.ip());
        is_to && connection.answered_from == connection.to && own.contains(&connection.to.ip())
    })
}

fn forget(
    redirections: &[Redirection],
    is_stale: impl Fn(&Redirection, &Connection) -> bool,
) -> Result<(), Error> {
    if redirections.is_empty() {
        return Ok(());
    }
    let mut connections = Connections::open()?;
    for one in redirections {
        let is_stale = |connection: &Connection| is_stale(one, connection);
        let forgotten = connections.forget(one.family(), one.port(), is_stale)?;
        tracing::debug!(port = %one.mapping, forgotten, "stale connections are forgotten");
    }
    Ok(())
}

fn tell(outcome: Result<(), Error>) {
    if let Err(error) = outcome {
        let reason = Chain(&error).to_string();
        tracing::warn!(reason, "connections by mapped ports may lead where they led before");
    }
}
