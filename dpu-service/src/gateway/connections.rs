//! Flushes conntrack entries that remain after a mapped port is gone. Otherwise a client that keeps sending would
//! never reach the port's next pod.
//!
//! When a port no longer leads to a pod, the connections to that pod are flushed. When a port starts to lead to a
//! pod, the connections that lead into the DPU itself are flushed: they began while the port was free. Of TCP there
//! are none, because the DPU refused them.

use std::{collections::BTreeSet, net::IpAddr};

use bootstrap::Chain;
use netlink::{
    Error, Rtnl,
    nftables::{Connection, Connections},
};
use tokio::task::spawn_blocking;

use super::Redirection;
use model::Protocol;

/// Flushes connections to the former targets of these redirections.
pub(super) fn flush_former(redirections: &[Redirection]) {
    let is_former = |one: &Redirection, connection: &Connection| {
        let is_to = one.mapping.one_address().is_none_or(|ip| ip == connection.to.ip());
        is_to && connection.answered_from == one.target
    };
    log_failure(flush(redirections, is_former));
}

/// Flushes connections into the DPU that these redirections should catch, on a thread of its own.
pub(super) fn flush_earlier(mut redirections: Vec<Redirection>) {
    redirections.retain(|one| one.mapping.protocol != Protocol::Tcp);
    if redirections.is_empty() {
        return;
    }
    spawn_blocking(move || log_failure(flush_into_dpu(&redirections)));
}

fn flush_into_dpu(redirections: &[Redirection]) -> Result<(), Error> {
    let own: BTreeSet<IpAddr> =
        Rtnl::open()?.all_addresses()?.iter().map(|(_, address)| address.ip()).collect();
    flush(redirections, |one, connection| {
        let is_to = one.mapping.one_address().is_none_or(|ip| ip == connection.to.ip());
        is_to && connection.answered_from == connection.to && own.contains(&connection.to.ip())
    })
}

fn flush(
    redirections: &[Redirection],
    is_stale: impl Fn(&Redirection, &Connection) -> bool,
) -> Result<(), Error> {
    if redirections.is_empty() {
        return Ok(());
    }
    let mut connections = Connections::open()?;
    for one in redirections {
        let is_stale = |connection: &Connection| is_stale(one, connection);
        let flushed = connections.forget(one.family(), one.port(), is_stale)?;
        tracing::debug!(port = %one.mapping, flushed, "flushed stale connections");
    }
    Ok(())
}

fn log_failure(outcome: Result<(), Error>) {
    if let Err(error) = outcome {
        let reason = Chain(&error).to_string();
        tracing::warn!(
            reason,
            "cannot flush connections by mapped ports; they may lead to former pods"
        );
    }
}
