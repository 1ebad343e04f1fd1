//! Several VFs of one pod, moved together.

use host_shim::mover::{Arrival, Failed, MoveSpec, VfMove};
use netlink::VethEnd;

use crate::stage::{Stage, assert_clean, spec};

const NAME: &str = "p0v4";
const ALIAS: &str = "virtual-nic d000:00:00.5 pf0vf4";

/// A host with two VFs and their specs.
pub(crate) fn two(in_pod: [&str; 2]) -> (Stage, [MoveSpec; 2]) {
    let stage = Stage::new();
    let first = spec(&stage);
    stage.plug_vf(NAME, &VethEnd::new(NAME), ALIAS, "pf0vf4");
    let mut second = MoveSpec { device: "d000:00:00.5".into(), ..first.clone() };
    let link = stage.host.rtnl().link_by_name(NAME).unwrap().unwrap();
    second.original = (&link).into();
    second.plan.routing.addresses.clear();
    second.plan.routing.routes.clear();
    let mut specs = [first, second];
    for (spec, name) in specs.iter_mut().zip(in_pod) {
        spec.plan.routing.name = name.into();
    }
    (stage, specs)
}

pub(crate) fn move_in(stage: &Stage, specs: &[MoveSpec]) -> Result<Vec<Arrival>, Failed> {
    VfMove::move_in_together(specs.iter().map(|spec| stage.vf_move(spec)).collect())
}

#[test]
fn vfs_with_clashing_altnames_move_together() {
    let (stage, specs) = two(["eth0", "net1"]);
    let before = stage.host.links();
    stage.host.ip(&format!("link property add dev {NAME} altname eth0"));
    drop(move_in(&stage, &specs).unwrap());
    assert_eq!(stage.pod.link_names(), ["eth0", "net1"]);
    assert!(stage.host.link_names().is_empty());
    for spec in &specs {
        stage.vf_move(spec).move_out().unwrap();
    }
    assert_clean(&stage, &before);
}

#[test]
fn failure_of_second_vf_undoes_both() {
    let (stage, mut specs) = two(["eth0", "net1"]);
    let before = stage.host.links();
    let mtu = std::mem::replace(&mut specs[1].plan.mtu, 1 << 20);
    let failed = move_in(&stage, &specs).unwrap_err();
    assert_eq!((failed.step, failed.context, failed.left.len()), ("configure", 1, 0));
    assert_clean(&stage, &before);
    specs[1].plan.mtu = mtu;
    drop(move_in(&stage, &specs).unwrap());
}
