//! What networks require of the cards whose VFs are in their pools. An attach is refused what its port can't be given;
//! of networks that is told before the first.

use std::collections::{BTreeMap, BTreeSet};

use offload_proto::{ConditionReason, Failure, Reason};
use vf_alloc::{FunctionId, PfId};

use super::{engine::Engine, registry::Registry};
use crate::{conditions::Fault, model::Network};

/// Of each PF with a VF in a pool that has a port, one of these: what one can do, the others can.
type Examples = BTreeMap<PfId, FunctionId>;

/// A VF that no card has: what it can't be given, none can.
const OF_NO_CARD: FunctionId = FunctionId::local(u16::MAX, u16::MAX);

/// What of a network can't be done.
struct Lack {
    /// Whether no VF can be given the network, of those that are known.
    is_complete: bool,
    /// One sentence for each reason.
    sentences: Vec<String>,
}

/// Refuses a network that no card of its pool can do. Where some can, it is of use, and [`unmet`] tells of the others.
pub(super) fn check_requirements(engine: &Engine, network: &Network) -> Result<(), Failure> {
    let registry = engine.registry();
    let examples = examples(&registry).remove(&*network.pool).unwrap_or_default();
    match lack(engine, &registry, network, &examples) {
        Some(Lack { is_complete: true, sentences }) => {
            Err(Failure::new(Reason::Unsupported, sentences.join("; ")))
        }
        _ => Ok(()),
    }
}

/// What cards can't do of the networks there are, one fault for each network and reason.
pub(super) fn unmet(engine: &Engine, registry: &Registry) -> Vec<Fault> {
    let (examples, none) = (examples(registry), Examples::default());
    let lacks = registry.networks().iter().filter_map(|entry| {
        let network = entry.network();
        let examples = examples.get(&*network.pool).unwrap_or(&none);
        Some((&network.name, lack(engine, registry, network, examples)?))
    });
    let faults = lacks.flat_map(|(network, lack)| {
        let fault = move |sentence| {
            Fault::of_network(ConditionReason::NetworkUnsupported, network, sentence)
        };
        lack.sentences.into_iter().map(fault)
    });
    faults.collect()
}

/// Of each pool, by name.
fn examples(registry: &Registry) -> BTreeMap<&str, Examples> {
    let vfs = registry.vfs();
    let mut examples = BTreeMap::<_, Examples>::new();
    for view in vfs.vfs().filter(|view| view.has_port) {
        for pool in vfs.pools_of(view.vf) {
            examples.entry(pool).or_default().insert(view.vf.pf, view.vf);
        }
    }
    examples
}

/// `None`: each VF that is known can be given the network.
fn lack(
    engine: &Engine,
    registry: &Registry,
    network: &Network,
    examples: &Examples,
) -> Option<Lack> {
    let named = registry.networks().named_in(network);
    let settings = |vf| network.port_settings(vf, &named);
    let hosts = registry.hosts();
    let may_use = |vf: &&FunctionId| {
        hosts.owner(vf.pf).is_none_or(|host| hosts.rights(host).allows(&network.name))
    };
    if examples.is_empty() {
        // What none can be given is known without one.
        let unsupported = engine.programmer().check(&settings(OF_NO_CARD)).err()?;
        let sentences = vec![format!("network {}: {unsupported}", network.name)];
        return Some(Lack { is_complete: true, sentences });
    }
    let check = |vf: &FunctionId| {
        let unsupported = engine.programmer().check(&settings(*vf)).err()?;
        Some((unsupported.to_string(), place(engine, registry, *vf)))
    };
    let wanted: Vec<_> = examples.values().filter(may_use).collect();
    let lacking: Vec<_> = wanted.iter().copied().filter_map(check).collect();
    (!lacking.is_empty()).then(|| Lack {
        is_complete: lacking.len() == wanted.len(),
        sentences: told(network, lacking),
    })
}

/// What is lacking for the same reason is told together.
fn told(network: &Network, lacking: Vec<(String, String)>) -> Vec<String> {
    let mut reasons = BTreeMap::<_, BTreeSet<_>>::new();
    for (why, place) in lacking {
        reasons.entry(why).or_default().insert(place);
    }
    let tell = |(why, places): (String, BTreeSet<String>)| {
        let places = Vec::from_iter(places).join(", ");
        format!("network {} can't have pods of {places}: {why}", network.name)
    };
    reasons.into_iter().map(tell).collect()
}

/// Whose VF it is, and of which card, as far as is known.
fn place(engine: &Engine, registry: &Registry, vf: FunctionId) -> String {
    let owner = registry.hosts().owner(vf.pf);
    let host = owner.map_or_else(|| format!("PF {}", vf.pf), |host| format!("host {host}"));
    match engine.programmer().card_of(vf) {
        Some(card) => format!("{host} (card {card})"),
        None => host,
    }
}
