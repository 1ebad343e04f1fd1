//! The networks whose attaches the DPU refuses.

use std::collections::HashSet;

use offload_proto::{Failure, Reason};
use parking_lot::Mutex;

use crate::protocol::AddRequest;

/// The networks whose latest attach the DPU refused. Their pods are tried again and again, without a speculative move.
#[derive(Debug, Default)]
pub(in crate::agent) struct Refusing(Mutex<HashSet<String>>);

impl Refusing {
    /// The upper bound of remembered networks: pods may request any name.
    const MOST: usize = 1000;

    /// Whether the network's last answer was a refusal.
    pub(super) fn is_refusing(&self, network: &str) -> bool {
        self.0.lock().contains(network)
    }

    /// Records whether the DPU granted these requests.
    pub(super) fn note(&self, requests: &[AddRequest], failure: Option<&Failure>) {
        let mut refusing = self.0.lock();
        match (failure, requests) {
            (None, _) => {
                for request in requests {
                    refusing.remove(&request.interface.network);
                }
            }
            (Some(failure), [request]) if is_of_network(failure.reason) => {
                if refusing.len() >= Self::MOST {
                    refusing.clear();
                }
                refusing.insert(request.interface.network.clone());
            }
            // Of several networks the refusal does not say which one it is about.
            (Some(_), _) => {}
        }
    }
}

/// Whether every ADD to the network fails with this reason. A pod's own request or rights, or an ended caller or
/// session, say nothing about others.
const fn is_of_network(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::AddressesExhausted
            | Reason::FabricFull
            | Reason::FabricUnavailable
            | Reason::JournalUnavailable
            | Reason::NetworkUnknown
            | Reason::PortsUnreadable
            | Reason::ProgrammingFailed
            | Reason::VfsExhausted
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{agent::vfs::record, protocol::Key};

    fn to(network: &str) -> AddRequest {
        let key: Key = record("a", "c").key();
        AddRequest::plain(key, "/run/netns/a".into(), network.into())
    }

    fn failed(reason: Reason) -> Failure {
        Failure::new(reason, "no")
    }

    #[test]
    fn refused_network_is_remembered_until_granted() {
        let refusing = Refusing::default();
        for network in ["blue", "red"] {
            refusing.note(&[to(network)], Some(&failed(Reason::ProgrammingFailed)));
        }
        assert!(refusing.is_refusing("blue") && refusing.is_refusing("red"));
        refusing.note(&[to("blue")], None);
        assert!(!refusing.is_refusing("blue") && refusing.is_refusing("red"));
    }

    #[test]
    fn one_pods_refusal_is_not_the_networks() {
        let refusing = Refusing::default();
        for reason in [
            Reason::DeadlineExceeded,
            Reason::DpuUnreachable,
            Reason::AddressNotAllowed,
            Reason::NetworkNotAllowed,
            Reason::PoolPinnedOnly,
        ] {
            refusing.note(&[to("blue")], Some(&failed(reason)));
        }
        let of_either = failed(Reason::NetworkUnknown);
        refusing.note(&[to("blue"), to("red")], Some(&of_either));
        assert!(!refusing.is_refusing("blue") && !refusing.is_refusing("red"));
    }

    #[test]
    fn refused_network_cache_is_bounded() {
        let refusing = Refusing::default();
        for number in 0..=Refusing::MOST {
            refusing.note(&[to(&number.to_string())], Some(&failed(Reason::NetworkUnknown)));
        }
        assert!(refusing.is_refusing(&Refusing::MOST.to_string()) && !refusing.is_refusing("0"));
    }
}
