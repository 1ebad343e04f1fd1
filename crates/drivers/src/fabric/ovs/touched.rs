//! Records which ports this process changes, so that the watching thread can tell other programs' changes from
//! ours.

use std::collections::{BTreeMap, BTreeSet};

use ovsdb::Replica;
use parking_lot::Mutex;

use super::{rows::Port, vswitch::Vswitch};
use crate::fabric::Membership;

/// A port's visible state. `None`: the port does not exist.
pub(super) type Shown = Option<ShownPort>;

/// The index of the port's link, the port's OpenFlow number, and its membership.
pub(super) type ShownPort = (Option<u32>, Option<u32>, Membership);

/// Reads a port's visible state.
pub(super) fn shown(replica: &Replica, port: &str) -> Shown {
    Port::find(replica, port).filter(Port::is_ours).map(shown_port)
}

pub(super) fn shown_port(port: Port<'_>) -> ShownPort {
    (port.index(), port.number(), port.membership())
}

/// The ports that this process is changing, and those that it has changed.
#[derive(Debug, Default)]
pub(super) struct Touched(Mutex<Ports>);

/// The ports that this process changes.
#[derive(Debug, Default)]
pub(super) struct Ports {
    /// Ports being changed.
    pub(super) now: BTreeSet<String>,
    /// The state in which this process left changed ports. The watching thread takes the entries.
    pub(super) left: BTreeMap<String, Shown>,
}

/// Marks a port as being changed until it is dropped.
#[derive(Debug)]
pub(super) struct Touching<'a> {
    touched: &'a Touched,
    vswitch: &'a Vswitch,
    port: String,
}

impl Touched {
    /// Returns both sets, and clears `left`.
    pub(super) fn take(&self) -> Ports {
        let mut ports = self.0.lock();
        Ports { now: ports.now.clone(), left: std::mem::take(&mut ports.left) }
    }

    /// Marks the port. The caller holds the lock of the port's VF, so no other call marks it at the same time.
    pub(super) fn touch<'a>(&'a self, vswitch: &'a Vswitch, port: &str) -> Touching<'a> {
        self.0.lock().now.insert(port.to_owned());
        Touching { touched: self, vswitch, port: port.to_owned() }
    }
}

impl Drop for Touching<'_> {
    fn drop(&mut self) {
        let port = std::mem::take(&mut self.port);
        let left = self.vswitch.glance(|replica| shown(replica, &port));
        let mut ports = self.touched.0.lock();
        ports.now.remove(&port);
        // Without a connection there is no state to record, and the watching thread starts over, too.
        ports.left.extend(left.map(|left| (port, left)));
    }
}
