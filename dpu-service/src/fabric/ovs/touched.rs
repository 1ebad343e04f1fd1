//! Which ports this process changes itself, so that whoever watches can tell what others change.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use ovsdb::Replica;

use super::{Inner, rows::Port};
use crate::fabric::Membership;

/// What there is to see of a port of ours. `None`: it is not there.
pub(super) type Shown = Option<ShownPort>;

/// Its link's index, its number, by which flows know it, and how it is joined.
pub(super) type ShownPort = (Option<u32>, Option<u32>, Membership);

/// Looks at a port.
pub(super) fn shown(replica: &Replica, port: &str) -> Shown {
    Port::find(replica, port).filter(Port::is_ours).map(shown_port)
}

pub(super) fn shown_port(port: Port<'_>) -> ShownPort {
    (port.index(), port.number(), port.membership())
}

/// The ports that are being changed, and those that were.
#[derive(Debug, Default)]
pub(super) struct Touched(Mutex<Ports>);

/// The ports that this process changes.
#[derive(Debug, Default)]
pub(super) struct Ports {
    /// Those that it is changing.
    pub(super) now: BTreeSet<String>,
    /// How it has left others, until whoever watches has seen that.
    pub(super) left: BTreeMap<String, Shown>,
}

/// A port is being changed until this is dropped.
#[derive(Debug)]
pub(super) struct Touching<'a> {
    fabric: &'a Inner,
    port: String,
}

impl Touched {
    /// What there is of both. It forgets how ports were left.
    pub(super) fn take(&self) -> Ports {
        let mut ports = self.lock();
        Ports { now: ports.now.clone(), left: std::mem::take(&mut ports.left) }
    }

    fn lock(&self) -> MutexGuard<'_, Ports> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Nobody else in this process changes that port at the same time.
    pub(super) fn touch(&self, port: &str) -> Touching<'_> {
        self.touched.lock().now.insert(port.to_owned());
        Touching { fabric: self, port: port.to_owned() }
    }
}

impl Drop for Touching<'_> {
    fn drop(&mut self) {
        let port = std::mem::take(&mut self.port);
        let left = self.fabric.vswitch.glance(|replica| shown(replica, &port));
        let mut ports = self.fabric.touched.lock();
        ports.now.remove(&port);
        // Without a connection whoever watches begins anew, too.
        ports.left.extend(left.map(|left| (port, left)));
    }
}
