//! Watching for changes of nftables, whoever makes them.

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::encode::NEW_GENERATION;
use crate::{
    Error, Netns,
    datagram::{Meaning, messages},
    watch::{Event, Events, subscribe},
};

/// `NFNLGRP_NFTABLES`
const GROUP: u32 = 7;

/// What happened to nftables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NftablesEvent {
    /// A transaction of somebody was carried out, be it one's own.
    Changed,
    /// More happened than the kernel could queue: look at everything again.
    Missed,
}

/// The transactions of a namespace, in their order.
#[derive(Debug)]
pub struct NftablesMonitor(Events<NftablesEvent>);

impl NftablesMonitor {
    /// Starts to watch. Nothing that happens from now on is lost, so look at the table after this.
    ///
    /// To be called within a Tokio runtime.
    ///
    /// # Errors
    /// When the process may have no more open files, or may not enter the namespace, or the kernel
    /// has no nftables.
    pub fn open(netns: &Netns) -> Result<Self, Error> {
        Events::of(netns.run(|| subscribe(NETLINK_NETFILTER, GROUP))?).map(Self)
    }

    /// The next event. Cancelling the wait loses none.
    ///
    /// # Errors
    /// When the socket fails for good.
    pub async fn next(&mut self) -> Result<NftablesEvent, Error> {
        self.0.next().await
    }
}

impl Event for NftablesEvent {
    const WATCHING: &str = "watch nftables";
    const MISSED: Self = Self::Missed;

    /// Each transaction ends with its number, after a message for each thing that it changed.
    fn all_in(datagram: &[u8]) -> impl Iterator<Item = Self> {
        messages(datagram).filter_map(|message| match message.meaning() {
            Ok(Meaning::Object(object)) if object.is(NEW_GENERATION) => Some(Self::Changed),
            Ok(_) => None,
            Err(_) => Some(Self::Missed),
        })
    }
}
