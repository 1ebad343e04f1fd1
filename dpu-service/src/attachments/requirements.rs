//! Requirements of networks that the cards of their pools do not meet. An attach is refused for its port; this module
//! reports them when the network is applied, and as conditions.

use std::collections::{BTreeMap, BTreeSet};

use offload_proto::{ConditionReason, Failure, Reason};
use vf_alloc::{FunctionId, PfId};

use super::{engine::Engine, registry::Registry};
use crate::conditions::Fault;
use model::Network;

/// One VF with a port for each PF in a pool: all VFs of a PF have the same abilities.
type Examples = BTreeMap<PfId, FunctionId>;

/// A VF of no card: what it cannot have, no VF of any card can.
const OF_NO_CARD: FunctionId = FunctionId::local(u16::MAX, u16::MAX);

/// Requirements of a network that are not met.
struct Lack {
    /// Whether no known VF meets them.
    is_complete: bool,
    sentences: Vec<String>,
}

/// Refuses a network that no card of its pool supports. If some cards do, [`unmet`] reports the others.
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

/// Unmet requirements of all networks, one fault for each network and reason.
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

/// Examples for each pool, by the pool's name.
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

/// The requirements of `network` that are not met. `None`: every known VF meets them.
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
        // What no card supports is known without an example.
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
        sentences: sentences(network, lacking),
    })
}

/// One sentence for each reason, with all places that share it.
fn sentences(network: &Network, lacking: Vec<(String, String)>) -> Vec<String> {
    let mut reasons = BTreeMap::<_, BTreeSet<_>>::new();
    for (why, place) in lacking {
        reasons.entry(why).or_default().insert(place);
    }
    let sentence = |(why, places): (String, BTreeSet<String>)| {
        let places = Vec::from_iter(places).join(", ");
        format!("network {} can't have pods of {places}: {why}", network.name)
    };
    reasons.into_iter().map(sentence).collect()
}

/// The VF's host and card, as far as they are known.
fn place(engine: &Engine, registry: &Registry, vf: FunctionId) -> String {
    let owner = registry.hosts().owner(vf.pf);
    let host = owner.map_or_else(|| format!("PF {}", vf.pf), |host| format!("host {host}"));
    match engine.programmer().card_of(vf) {
        Some(card) => format!("{host} (card {card})"),
        None => host,
    }
}
