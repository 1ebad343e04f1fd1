//! Tells the neighbours of pods where addresses are now.

use std::{
    io,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

use netlink::{MacAddress, Netns};

/// Announcements that may wait. Each keeps its pod's namespace open, and takes some 20 ms, because
/// the kernel takes that long to close the socket that it needs.
const WAITING: usize = 64;

/// A thread that announces addresses, so that no attach waits for it. Ends with its last handle.
#[derive(Clone, Debug)]
pub struct Announcer {
    queue: SyncSender<Announcement>,
    dropped: Arc<AtomicU64>,
}

/// What is announced by an interface.
#[derive(Debug)]
pub(super) struct Announcement {
    /// Where the interface is.
    pub netns: Arc<Netns>,
    /// The interface's index.
    pub interface: u32,
    /// Its MAC address.
    pub mac: MacAddress,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

impl Announcer {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start() -> io::Result<Self> {
        let (queue, announcements) = sync_channel(WAITING);
        let work = move || announce_all(&announcements);
        thread::Builder::new().name("announcer".into()).spawn(work)?;
        Ok(Self { queue, dropped: Arc::default() })
    }

    /// Announces soon. Best effort: neighbours find out by themselves, so what is too much is
    /// dropped.
    pub(super) fn announce(&self, announcement: Announcement) {
        if self.queue.try_send(announcement).is_err() {
            let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            tracing::warn!(dropped, "too much to announce: some addresses are not");
        }
    }
}

fn announce_all(announcements: &Receiver<Announcement>) {
    for Announcement { netns, interface, mac, addresses } in announcements {
        match netns.run(|| netlink::announce(interface, mac, &addresses)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) | Err(error) => tracing::warn!(%error, "addresses are not announced"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_dropped_and_counted() {
        let (queue, _announcements) = sync_channel(1);
        let announcer = Announcer { queue, dropped: Arc::default() };
        let netns = Arc::new(Netns::current().unwrap());
        for _ in 0..3 {
            announcer.announce(Announcement {
                netns: Arc::clone(&netns),
                interface: 1,
                mac: MacAddress([2, 0, 0, 0, 0, 7]),
                addresses: Vec::new(),
            });
        }
        assert_eq!(announcer.dropped.load(Ordering::Relaxed), 2);
        assert_eq!(Arc::strong_count(&netns), 2, "what is dropped keeps no namespace open");
    }
}
