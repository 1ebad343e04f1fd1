//! Monitor of nftables changes by any program.

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::encode::NEW_GENERATION;
use crate::{
    datagram::Object,
    error::Error,
    netns::Netns,
    watch::{Event, Events, subscribe},
};

/// `NFNLGRP_NFTABLES`
const GROUP: u32 = 7;

/// An event of nftables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NftablesEvent {
    /// A transaction of any program, including this one, was committed.
    Changed,
    /// The kernel's queue overflowed and events are lost. Read everything again.
    Missed,
}

/// Receives the nftables transactions of a namespace, in order.
#[derive(Debug)]
pub struct NftablesMonitor(Events<NftablesEvent>);

impl NftablesMonitor {
    /// Starts to watch. Read the tables after this call, so that no change is lost in between.
    ///
    /// Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// If the process has no free file descriptor, may not enter the namespace, or the kernel has no nftables.
    pub fn open(netns: &Netns) -> Result<Self, Error> {
        Events::of(netns.run(|| subscribe(NETLINK_NETFILTER, GROUP))?).map(Self)
    }

    /// Waits for the next event. Cancel safe: no event is lost.
    ///
    /// # Errors
    /// If the socket fails permanently.
    pub async fn next(&mut self) -> Result<NftablesEvent, Error> {
        self.0.next().await
    }
}

impl Event for NftablesEvent {
    const WATCHING: &str = "watch nftables";
    const MISSED: Self = Self::Missed;

    /// The kernel ends each transaction's events with the new generation, so only that message counts.
    fn of(object: Object<'_>) -> Result<Option<Self>, String> {
        Ok((object.kind == NEW_GENERATION).then_some(Self::Changed))
    }
}
