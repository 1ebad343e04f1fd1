//! Announces pods' addresses to their neighbours, on one thread, so that no attach waits for the announcement.

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

/// The queue's limit. A queued announcement keeps its pod's namespace open. One takes about 20 ms, because the kernel
/// takes that long to close the packet socket.
const WAITING: usize = 64;

/// A handle of the announcing thread. The thread ends with the last handle.
#[derive(Clone, Debug)]
pub struct Announcer {
    queue: SyncSender<Announcement>,
    dropped: Arc<AtomicU64>,
}

/// Addresses to announce on one interface.
#[derive(Debug)]
pub(super) struct Announcement {
    /// The interface's namespace.
    pub netns: Arc<Netns>,
    /// The interface's index.
    pub interface: u32,
    /// The interface's MAC address, announced as the addresses' owner.
    pub mac: MacAddress,
    /// The addresses to announce.
    pub addresses: Vec<IpAddr>,
}

impl Announcer {
    /// Starts the announcing thread.
    ///
    /// # Errors
    /// The system refuses to start a thread.
    pub fn start() -> io::Result<Self> {
        let (queue, announcements) = sync_channel(WAITING);
        let work = move || announce_all(&announcements);
        thread::Builder::new().name("announcer".into()).spawn(work)?;
        Ok(Self { queue, dropped: Arc::default() })
    }

    /// Queues an announcement. Drops it when the queue is full: neighbours resolve the address by themselves.
    pub(super) fn announce(&self, announcement: Announcement) {
        if self.queue.try_send(announcement).is_err() {
            let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            tracing::warn!(dropped, "announcement queue is full; addresses are not announced");
        }
    }
}

fn announce_all(announcements: &Receiver<Announcement>) {
    // Dropped after each announcement: `netns` keeps the pod's namespace alive.
    for Announcement { netns, interface, mac, addresses } in announcements {
        match netns.run(|| netlink::announce(interface, mac, &addresses)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) | Err(error) => tracing::warn!(%error, "cannot announce addresses"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_queue_drops_and_counts_announcements() {
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
        assert_eq!(Arc::strong_count(&netns), 2, "a dropped announcement keeps no namespace open");
    }
}
